#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "inference/plugin.h"

namespace penstock::scheduling {

// What decides in a profile's place while its signals tell too little (Freshness::fallback): by nothing but
// our own counts.
//
//   least-in-flight: score = 1 / (1 + own requests in flight); the best first, equals in turn
//   round-robin:     score = 1 for all; in turn
//
// The turn goes round over all loops; explaining takes none.
// Example, requests in flight 2, 0, 0: the second and the third in turn, scores 0.3333, 1, 1.
class SimplePick {
 public:
  // Fills in the scores; returns up to `count` candidates, best first, in ctx.arena.
  // REQUIRES: at least one candidate; choice is not kNone.
  std::span<const Candidate> pick(SimpleChoice choice, SchedulingContext& ctx,
                                  std::span<const Candidate> candidates, size_t count,
                                  std::span<double> scores);

 private:
  std::atomic<uint64_t> turn_{0};
};

}  // namespace penstock::scheduling
