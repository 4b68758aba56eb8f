#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/clock.h"
#include "inference/endpoint.h"

namespace penstock::director {

// A request to this endpoint failed. After more than `tolerated` failures in a row the endpoint is avoided
// for a while: 250 ms, doubling up to 30 s. True when it is avoided from now on. Thread-safe.
inline bool note_failure(const Endpoint& endpoint, TimePoint now, uint32_t tolerated) {
  EndpointLive& live = *endpoint.live;
  const uint32_t failures = live.consecutive_failures.fetch_add(1, std::memory_order_relaxed) + 1;
  if (failures <= tolerated) return false;
  const uint32_t doublings = std::min<uint32_t>(failures - tolerated - 1, 7);
  const Duration away =
      std::min<Duration>(std::chrono::milliseconds(250 << doublings), std::chrono::seconds(30));
  live.ejected_until_ns.store((now + away).time_since_epoch().count(), std::memory_order_relaxed);
  return true;
}

inline void note_success(const Endpoint& endpoint) {
  EndpointLive& live = *endpoint.live;
  if (live.consecutive_failures.load(std::memory_order_relaxed) == 0) return;
  live.consecutive_failures.store(0, std::memory_order_relaxed);
  live.ejected_until_ns.store(0, std::memory_order_relaxed);
}

}  // namespace penstock::director
