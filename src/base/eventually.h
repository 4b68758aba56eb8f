#pragma once

#include <chrono>
#include <thread>

namespace penstock {

// For tests: true as soon as `condition` holds, false when it does not within ten seconds.
template <typename Condition>
bool eventually(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace penstock
