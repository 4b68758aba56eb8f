#include "telemetry/laps.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace penstock::telemetry {

uint64_t Laps::ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

TimePoint Laps::settle() {
  const TimePoint now = clock_.now();
  const double total = to_seconds(now - began_);
  uint64_t all = 0;
  uint64_t marked = 0;
  // At least one, where the counter is too coarse to tell.
  if (count_ != 0) ++steps_[count_ - 1].ticks;
  for (size_t i = 0; i < count_; ++i) {
    all += steps_[i].ticks;
    if (i >= marked_at_) marked += steps_[i].ticks;
  }
  const double of_tick = all == 0 ? 0 : total / static_cast<double>(all);
  for (size_t i = 0; i < count_; ++i) {
    if (steps_[i].into != nullptr) steps_[i].into->observe(static_cast<double>(steps_[i].ticks) * of_tick);
  }
  since_mark_ += Duration(static_cast<int64_t>(static_cast<double>(marked) * of_tick * 1e9));
  if (marked_at_ != kNoMark) marked_at_ = 0;
  count_ = 0;
  began_ = now;
  last_ = ticks();
  return now;
}

}  // namespace penstock::telemetry
