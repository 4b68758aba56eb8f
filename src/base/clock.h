#pragma once

#include <chrono>
#include <cstdint>

namespace penstock {

using Duration = std::chrono::nanoseconds;
// Monotonic time. The zero value means "never".
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;
using WallTime = std::chrono::time_point<std::chrono::system_clock, Duration>;

inline constexpr TimePoint kNever{};

// The only source of time for everything that decides. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  virtual WallTime wall_now() const = 0;
};

class SystemClock final : public Clock {
 public:
  TimePoint now() const override {
    return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
  }
  WallTime wall_now() const override {
    return std::chrono::time_point_cast<Duration>(std::chrono::system_clock::now());
  }
};

// A clock that moves only when told: simulator, replay and tests. Not thread-safe.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(TimePoint start = TimePoint(std::chrono::seconds(1000))) : now_(start) {}
  TimePoint now() const override { return now_; }
  WallTime wall_now() const override { return WallTime(now_.time_since_epoch()); }
  void advance(Duration by) { now_ += by; }
  void set(TimePoint to) { now_ = to; }

 private:
  TimePoint now_;
};

inline double to_seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}
inline double to_millis(Duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

}  // namespace penstock
