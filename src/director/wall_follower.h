#pragma once

#include "base/clock.h"

namespace penstock::director {

// What the wall's clock shows at a moment of the monotonic one. It is asked every 10 ms at most, so that it
// is seen that late to be set anew. Not thread-safe: one a loop.
class WallFollower {
 public:
  explicit WallFollower(const Clock& clock) : clock_(clock) {}
  // `moment`: a reading of the clock, also an older one.
  WallTime at(TimePoint moment) {
    constexpr Duration kKept = std::chrono::milliseconds(10);
    if (asked_at_ == kNever || moment - asked_at_ >= kKept) {
      asked_at_ = clock_.now();
      wall_ = clock_.wall_now();
    }
    return wall_ + (moment - asked_at_);
  }

 private:
  const Clock& clock_;
  TimePoint asked_at_ = kNever;
  WallTime wall_{};
};

}  // namespace penstock::director
