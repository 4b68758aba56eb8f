#pragma once

#include <span>
#include <string>

#include "inference/plugin.h"

namespace penstock::scheduling {

// Whether a value was ever observed under this state: fresh and stale ones, and those of an endpoint whose
// scrapes fail now but once answered. Stale values are used as they are (as the reference does).
inline bool is_known(SignalState state) {
  return state == SignalState::kFresh || state == SignalState::kStale;
}
inline bool is_known(SignalState state, TimePoint observed_at) {
  return is_known(state) || (state == SignalState::kEndpointDown && observed_at != kNever);
}

// True when at least one candidate has a fresh value: below that a decision runs on old or no numbers and
// counts as FallbackState::kNoFreshSignals.
bool signals_usable(const SchedulingContext& ctx, std::span<const Candidate> candidates, Signal signal);

// One signal over the candidates, for scorers where a small value is a good one.
//
// Unknown values (never seen, or not exported by the engine) read as 0 in the reference, which makes an
// endpoint nobody has scraped the best of all. Here such a candidate gets the largest known value, so that
// it never beats a known one; where no value is known all are 0, as in the reference. That is a deliberate
// difference from it.
struct SignalColumn {
  std::span<const double> values;  // parallel to the candidates, in the request's arena
  double min = 0;
  double max = 0;
  size_t unknown = 0;  // candidates without a known value
};
SignalColumn gather(SchedulingContext& ctx, std::span<const Candidate> candidates, Signal signal);

// (max - value) / (max - min) for each candidate; 1 for all where max equals min.
void score_least(const SignalColumn& column, std::span<double> scores);

// What explain() says of one signal: "waiting 3 requests, age 41 ms, fresh", or
// "waiting unknown (never_seen): counts as the largest known value, or 0 where none is known".
void append_signal(const SchedulingContext& ctx, Candidate candidate, Signal signal, std::string& out);

}  // namespace penstock::scheduling
