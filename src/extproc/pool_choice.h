#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::extproc {

// What a data plane says of a pool in a stream's initial metadata: "<namespace>/<name>", or "<name>".
inline constexpr std::string_view kPoolField = "x-penstock-pool";

// A Service as an :authority names it.
struct ServiceName {
  std::string name;
  std::string ns;
  std::optional<uint16_t> port;
  bool certain = false;  // has the form of a Service's name and of nothing else

  friend bool operator==(const ServiceName&, const ServiceName&) = default;
};
// "svc.ns.svc.cluster.local:9002", "svc.ns.svc", "svc.ns:9002", and Envoy's clusters of Istio,
// "outbound|9002||svc.ns.svc.cluster.local" or "outbound_.9002_._.svc.ns.svc.cluster.local". Nothing: an
// address, a name without a dot, another host.
std::optional<ServiceName> service_of(std::string_view authority);

// By what streams may mean a pool.
struct PoolNames {
  std::string ns;
  std::string name;
  std::string service;           // of its endpointPickerRef, of the pool's namespace; "" none
  std::optional<uint16_t> port;  // of that Service
};

// What a stream says of its pool. The texts are the stream's.
struct StreamNames {
  std::span<const std::string_view> fields = {};  // values of kPoolField
  std::string_view authority;
  // Where it came in: 0 at the address for all pools, else a port of a pool's own.
  uint16_t port = 0;
};

// Which of several pools a stream means. Never by guess; the first of these that says something decides:
//   1. kPoolField
//   2. the :authority, where it is the Service of a pool's endpointPickerRef (and its port, where it has one;
//      else, of several such pools, the one whose port it came in at)
//   3. the port, where it is a pool's own
// Immutable.
class PoolChoice {
 public:
  enum class Failure : uint8_t { kUnknown, kAmbiguous, kUnnamed };
  // (A constructor, so that it is no aggregate.)
  struct Answer {
    explicit Answer(size_t index) : pool(index) {}
    Answer(Failure why, std::string text) : failure(why), message(std::move(text)) {}
    std::optional<size_t> pool;
    Failure failure = Failure::kUnnamed;  // why there is none
    std::string message;
  };

  // One pool, and every stream means it.
  PoolChoice() = default;
  // Any number of pools.
  explicit PoolChoice(std::vector<PoolNames> pools);

  bool given() const { return !many_; }
  Answer choose(const StreamNames& stream) const;

 private:
  using Indexes = std::vector<size_t>;
  Answer only(const Indexes& found, std::string_view what, std::string_view value) const;

  bool many_ = false;
  std::vector<PoolNames> pools_;
  std::map<std::string, Indexes, std::less<>> by_name_;     // "<namespace>/<name>" and "<name>"
  std::map<std::string, Indexes, std::less<>> by_service_;  // "<service>.<namespace>"
  std::map<uint16_t, Indexes> by_port_;
};

std::string_view failure_name(PoolChoice::Failure failure);

}  // namespace penstock::extproc
