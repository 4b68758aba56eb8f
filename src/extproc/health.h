#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/grpc.h"

namespace penstock::extproc {

inline constexpr std::string_view kExtProcService = "envoy.service.ext_proc.v3.ExternalProcessor";

// grpc.health.v1.HealthCheckResponse.ServingStatus.
enum class ServingStatus : uint8_t { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

// What health is made of.
struct HealthInputs {
  bool pool_known = false;  // the pool's definition has been read
  bool protocol_ok = true;  // every parser takes the pool's appProtocol (true while that is not known)
  bool plugins_ready = false;
  bool draining = false;
  bool leader = false;  // only looked at with leader election

  bool operator==(const HealthInputs&) const = default;
};

// The gRPC health service (grpc.health.v1: Check, List, Watch) of an endpoint picker. Any thread.
//
// kPicker, the health port; live = pool_known && protocol_ok && !draining:
//   service                        no leader election        with leader election
//   "liveness"                     live                      SERVING
//   "readiness", "", ExtProc name  live && plugins_ready     live && plugins_ready && leader
//   any other name                 live                      SERVICE_UNKNOWN
// Of several pools pool_known says that those which there were at first are known, and each has a name of its
// own, "<namespace>/<name>": as "readiness" says, of that pool; no such pool: NOT_FOUND.
// kStatic, beside ext-proc (--health-checking): "" and the ExtProc name are SERVING whatever the inputs; any
// other name is NOT_FOUND in Check, SERVICE_UNKNOWN in Watch.
//
// Watch sends the present status at once and then each change, until the client goes or the table ends. A
// watcher that is slow misses what lies between, never the last. At most kMaxWatchers; beyond,
// RESOURCE_EXHAUSTED.
class Health {
 public:
  static constexpr size_t kMaxWatchers = 1024;
  enum class Kind : uint8_t { kPicker, kStatic };

  explicit Health(Kind kind, bool leader_election = false) : kind_(kind), leader_election_(leader_election) {}
  Health(const Health&) = delete;
  Health& operator=(const Health&) = delete;
  ~Health();

  // Answers by the table's other column from now on; before anything is served.
  void expect_leader() { leader_election_ = true; }
  // There are several pools, or none yet; before anything is served.
  void expect_pools() { many_ = true; }
  HealthInputs inputs() const;
  // Watchers are told what changed for them. `pools` by name, where there are several.
  void set(const HealthInputs& inputs, std::map<std::string, HealthInputs> pools = {});

  // kUnknown: a name that Check answers with NOT_FOUND.
  ServingStatus status(std::string_view service) const;
  // What List shows: the ExtProc name, with leader election also liveness and readiness; each pool's name.
  std::vector<std::pair<std::string, ServingStatus>> list() const;

  // The three methods. The table must outlive the router's use.
  void serve_on(io::GrpcRouter& router);
  // Ends every Watch with UNAVAILABLE: before the server is drained. Final.
  void end_watches();
  size_t watchers() const;

 private:
  struct Watcher;
  ServingStatus status_locked(std::string_view service) const;
  io::Task<io::GrpcStatus> watch(io::GrpcServerStream& stream);
  void wake_all();

  const Kind kind_;
  bool leader_election_;
  bool many_ = false;
  mutable std::mutex mutex_;
  HealthInputs inputs_;
  std::map<std::string, HealthInputs> pools_;
  bool ended_ = false;
  std::vector<std::shared_ptr<Watcher>> watchers_;
};

}  // namespace penstock::extproc
