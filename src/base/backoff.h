#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "base/random.h"

namespace penstock {

// How long to wait before the next attempt: full jitter, so that many don't come back at once.
// The n-th wait is uniform in [0, min(cap, base · 2^n)].
class Backoff {
 public:
  Backoff(Duration base, Duration cap, uint64_t seed) : base_(base), cap_(cap), random_(seed) {}

  Duration next() { return next_within(cap_); }
  // The same with another cap for this one time.
  Duration next_within(Duration cap) {
    const Duration bound = std::min(cap, base_ * (int64_t{1} << std::min(attempts_, 20U)));
    ++attempts_;
    return Duration(static_cast<int64_t>(random_.uniform() * static_cast<double>(bound.count())));
  }
  void reset() { attempts_ = 0; }
  uint32_t attempts() const { return attempts_; }

 private:
  const Duration base_;
  const Duration cap_;
  Random random_;
  uint32_t attempts_ = 0;
};

}  // namespace penstock
