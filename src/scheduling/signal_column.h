#pragma once

#include <span>
#include <string>

#include "inference/plugin.h"

namespace penstock::scheduling {

// True when at least one candidate has a fresh value: below that a decision runs on old or no numbers and
// counts as FallbackState::kNoFreshSignals. In strict mode the signal's own budget says what is fresh.
bool signals_usable(const SchedulingContext& ctx, std::span<const Candidate> candidates, Signal signal);

// One endpoint's value as a decision may use it. Strict mode takes a value that is older than the signal's
// second bound for unknown, and counts our requests since the last scrape as waiting and as running (unless
// Freshness::in_flight_credit is off). Otherwise: as it was scraped.
struct UsableSignal {
  bool known = false;
  double value = 0;
  uint32_t credit = 0;  // requests, contained in `value`
};
UsableSignal usable(const SchedulingContext& ctx, Signal signal, Candidate candidate);

// Our requests in flight at an endpoint that its last scrape does not show.
inline uint32_t unseen_requests(const SchedulingContext& ctx, Candidate candidate) {
  return ctx.signals.unseen_requests(*ctx.pool.endpoints[candidate]->live, candidate);
}
// One signal over the candidates, for scorers where a small value is a good one.
//
// Unknown values (never seen, or not exported by the engine) read as 0 in the reference, which makes an
// endpoint nobody has scraped the best of all. Here such a candidate gets the largest known value, so that
// it never beats a known one; where no value is known all are 0, as in the reference. That is a deliberate
// difference from it. Values are those of usable().
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
// "waiting unknown (never_seen): counts as the largest known value, or 0 where none is known". In strict mode
// further ", 2 of them sent since" and, beyond the budget, ", influence 0.75".
void append_signal(const SchedulingContext& ctx, Candidate candidate, Signal signal, std::string& out);

}  // namespace penstock::scheduling
