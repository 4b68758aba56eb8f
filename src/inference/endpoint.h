#pragma once

#include <atomic>
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

// What changes with every request: one cache line, updated without locks from any loop. Outlives every
// snapshot that names it (held by shared_ptr from the registry, and by the request's guard).
struct alignas(64) EndpointLive {
  // Requests in flight in the upper 20 bits, their tokens in the lower 44: one fetch_add reserves both.
  std::atomic<uint64_t> load{0};
  // Requests whose answer has begun, for the running gauge.
  std::atomic<uint32_t> streaming{0};
  // Passive health: connect failures and 5xx in a row; the time, in ns of the monotonic clock, until
  // which the proxy avoids this endpoint (0: not ejected).
  std::atomic<uint32_t> consecutive_failures{0};
  std::atomic<int64_t> ejected_until_ns{0};
  // Of the requests in flight those that no scrape has shown.
  UnseenRequests unseen;

  static constexpr uint32_t kTokenBits = 44;
  static constexpr uint64_t kTokenMask = (uint64_t{1} << kTokenBits) - 1;
  static uint64_t pack(uint64_t requests, uint64_t tokens) { return (requests << kTokenBits) + tokens; }
  static uint32_t requests_of(uint64_t word) { return static_cast<uint32_t>(word >> kTokenBits); }
  static uint64_t tokens_of(uint64_t word) { return word & kTokenMask; }
};

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
