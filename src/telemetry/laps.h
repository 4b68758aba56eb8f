#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "telemetry/metrics.h"

namespace penstock::telemetry {

// Times consecutive steps into histograms. Reading the clock takes longer than many a step does: it is read
// at the beginning and at the end, and the time between goes to the steps as the processor's tick counter,
// which is read after each, divides it. On the stack of one thread.
class Laps {
 public:
  // `began`: what `clock` has just shown.
  Laps(const Clock& clock, TimePoint began) : clock_(clock), began_(began), last_(ticks()) {}
  // Steps that wait are observed.
  ~Laps() {
    if (count_ != 0) (void)settle();
  }
  Laps(const Laps&) = delete;
  Laps& operator=(const Laps&) = delete;

  // A step has ended, and the next begins. nullptr: nobody counts this one.
  void end(Histogram* into) {
    if (count_ == steps_.size()) (void)settle();
    // Counters of two processors may disagree a little, where the thread has moved.
    const uint64_t now = std::max(ticks(), last_);
    steps_[count_++] = {into, now - last_};
    last_ = now;
  }
  // since_mark() begins with the next step.
  void mark() { marked_at_ = count_; }
  // Observes all steps that ended; the last one ends with the reading of the clock that is returned.
  TimePoint settle();
  // Of the steps after mark() that are settled.
  Duration since_mark() const { return since_mark_; }

 private:
  static constexpr size_t kSteps = 32;  // more make the clock be read in between
  static constexpr size_t kNoMark = SIZE_MAX;
  struct Step {
    Histogram* into;
    uint64_t ticks;
  };
  static uint64_t ticks();

  const Clock& clock_;
  TimePoint began_;
  uint64_t last_;  // ticks
  std::array<Step, kSteps> steps_;
  size_t count_ = 0;
  size_t marked_at_ = kNoMark;
  Duration since_mark_{0};
};

}  // namespace penstock::telemetry
