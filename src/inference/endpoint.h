#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "inference/unseen_requests.h"

namespace penstock {

// The number of an endpoint's row in every per-endpoint table (signals, prefix index members). Unique
// among living endpoints; given to a new one only after everything about the old one is forgotten.
using EndpointSlot = uint16_t;
inline constexpr size_t kMaxEndpoints = 4096;

// What changes with every request, updated without locks from any loop; what decisions read of every
// endpoint is the first cache line. Outlives every snapshot that names it (held by shared_ptr from the
// registry, and by the request's guard).
struct alignas(64) EndpointLive {
  // Requests in flight in the upper 20 bits, their tokens in the lower 44: one fetch_add reserves both.
  std::atomic<uint64_t> load{0};
  // Passive health, kept by director::EndpointHealth. Until when this endpoint is ejected, in ns of the
  // monotonic clock; past: it is half-open; 0: it is healthy.
  std::atomic<int64_t> ejected_until_ns{0};
  // Rises with every ejection and return: an outcome counts only for the state in which its request was sent.
  std::atomic<uint32_t> health_generation{0};
  // A half-open endpoint's one request is on its way, or about to be.
  std::atomic<bool> on_trial{false};
  // The engine says that it sleeps (signals::Scraper); false where nobody knows.
  std::atomic<bool> asleep{false};
  // Of the requests in flight those that no scrape has shown.
  UnseenRequests unseen;
  // What other replicas of this process have in flight here, in the form of `load`, and how many of those
  // requests no scrape of theirs has shown. Written by sharing::Replicas only; 0 where nothing is shared or
  // nothing recent is known.
  std::atomic<uint64_t> others{0};
  std::atomic<uint32_t> others_unseen{0};

  // Passive health further: requests that failed in a row.
  std::atomic<uint32_t> consecutive_failures{0};
  // When it last sent output for anybody, to a fraction of the stall bound; in ns, 0: never.
  std::atomic<int64_t> last_output_ns{0};
  // Outcomes of the last window in slices: number of the slice in the upper 24 bits, then answers and
  // failures in 20 bits each.
  static constexpr size_t kOutcomeSlices = 10;
  std::array<std::atomic<uint64_t>, kOutcomeSlices> outcomes{};

  // Of the ejections; under the lock of the pool's EndpointHealth.
  struct Ejections {
    uint32_t in_a_row = 0;       // until the endpoint has been healthy for long
    uint8_t reason = 0;          // director::EjectionReason of the last one
    bool gone = false;           // left the pool
    TimePoint back_at = kNever;  // end of the last ejection
  };
  Ejections ejections;

  static constexpr uint32_t kTokenBits = 44;
  static constexpr uint64_t kTokenMask = (uint64_t{1} << kTokenBits) - 1;
  static uint64_t pack(uint64_t requests, uint64_t tokens) { return (requests << kTokenBits) + tokens; }
  static uint32_t requests_of(uint64_t word) { return static_cast<uint32_t>(word >> kTokenBits); }
  static uint64_t tokens_of(uint64_t word) { return word & kTokenMask; }

  struct InFlight {
    uint64_t requests = 0;
    uint64_t tokens = 0;
    friend auto operator<=>(const InFlight&, const InFlight&) = default;
  };
  // Of this replica alone.
  InFlight own_in_flight() const {
    const uint64_t own = load.load(std::memory_order_relaxed);
    return {requests_of(own), tokens_of(own)};
  }
  // Of all replicas, as far as is known: what a choice goes by.
  InFlight in_flight() const {
    const uint64_t own = load.load(std::memory_order_relaxed);
    const uint64_t theirs = others.load(std::memory_order_relaxed);
    return {uint64_t{requests_of(own)} + requests_of(theirs), tokens_of(own) + tokens_of(theirs)};
  }
};
static_assert(offsetof(EndpointLive, others_unseen) + sizeof(uint32_t) <= 64);

// One model server rank: immutable once published. A change of anything here makes a new Endpoint with
// the same slot and the same live side.
struct Endpoint {
  EndpointSlot slot = 0;
  std::string ns;       // namespace
  std::string name;     // pod or configured name
  std::string id;       // "<namespace>/<name>-rank-<n>" from pods, "<namespace>/<name>" from files
  std::string address;  // IP literal without brackets, or host name
  uint16_t port = 0;
  std::string host_port;     // "address:port", IPv6 in brackets: the value of the destination header
  std::string metrics_host;  // host:port that is scraped
  int rank = 0;
  bool tls = false;  // requests and scrapes go over https
  std::map<std::string, std::string, std::less<>> labels;
  std::string engine;     // "vllm", "sglang", ... from the label or by detection; "" = default
  bool draining = false;  // gets no new work
  std::string tls_name;   // server name for SNI and verification when `tls`; empty: the address
  std::shared_ptr<EndpointLive> live;

  // The label's value, or "" when absent.
  std::string_view label(std::string_view key) const {
    const auto it = labels.find(key);
    return it == labels.end() ? std::string_view() : std::string_view(it->second);
  }
  // "address:other port", IPv6 in brackets.
  std::string host_port_at(uint16_t other) const {
    const bool v6 = address.find(':') != std::string::npos;
    return (v6 ? "[" + address + "]" : address) + ":" + std::to_string(other);
  }
};

// The membership of one pool at one instant, ordered by id. Immutable; published by pointer with a
// rising epoch. Requests index into it with `Candidate` numbers.
struct PoolSnapshot {
  std::string pool_name;
  std::string pool_namespace;
  uint64_t epoch = 0;
  std::vector<std::shared_ptr<const Endpoint>> endpoints;
};

// Index into PoolSnapshot::endpoints.
using Candidate = uint32_t;

}  // namespace penstock
