#include "scheduling/signal_column.h"

#include <algorithm>

#include "scheduling/number_text.h"
#include "scheduling/range.h"

namespace penstock::scheduling {

namespace {

std::string_view short_name(Signal signal) {
  switch (signal) {
    case Signal::kWaitingRequests:
      return "waiting";
    case Signal::kRunningRequests:
      return "running";
    case Signal::kKvUsage:
      return "kv usage";
    case Signal::kCacheBlockSize:
      return "cache block size";
    case Signal::kCacheNumBlocks:
      return "cache blocks";
  }
  return "";
}

}  // namespace

bool signals_usable(const SchedulingContext& ctx, std::span<const Candidate> candidates, Signal signal) {
  const auto& states = ctx.signals.state[static_cast<size_t>(signal)];
  return std::any_of(candidates.begin(), candidates.end(),
                     [&](Candidate c) { return states[c] == SignalState::kFresh; });
}

SignalColumn gather(SchedulingContext& ctx, std::span<const Candidate> candidates, Signal signal) {
  const auto row = static_cast<size_t>(signal);
  const double* values = ctx.signals.value[row].data();
  const TimePoint* observed = ctx.signals.observed_at[row].data();
  const SignalState* states = ctx.signals.state[row].data();

  std::span<double> out = ctx.arena.make_span<double>(candidates.size());
  SignalColumn column{out};
  // Usually all are known; that is found first, without a branch for each.
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate c = candidates[i];
    out[i] = values[c];
    column.unknown += is_known(states[c]) ? 0 : 1;
  }
  const bool all = column.unknown == 0;
  column.unknown = 0;
  Range range;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (all || is_known(states[candidates[i]], observed[candidates[i]])) {
      range.add(out[i]);
    } else {
      ++column.unknown;
    }
  }
  if (range.min <= range.max) {
    column.min = range.min;
    column.max = range.max;
  }
  if (column.unknown == 0) return column;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate c = candidates[i];
    if (!is_known(states[c], observed[c])) out[i] = column.max;
  }
  return column;
}

void score_least(const SignalColumn& column, std::span<double> scores) {
  const Range range{column.min, column.max};
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = range.fall(column.values[i]);
}

void append_signal(const SchedulingContext& ctx, Candidate candidate, Signal signal, std::string& out) {
  const SignalValue value = ctx.signals.at(signal, candidate);
  out += short_name(signal);
  if (!is_known(value.state, value.observed_at)) {
    out += " unknown (";
    out += signal_state_name(value.state);
    out += "): counts as the largest known value, or 0 where none is known";
    return;
  }
  out += ' ';
  append_number(out, value.value);
  if (signal != Signal::kKvUsage) {
    out += ' ';
    out += signal_unit(signal);
  }
  out += ", age ";
  append_millis(out, ctx.now - value.observed_at);
  out += ", ";
  out += signal_state_name(value.state);
}

}  // namespace penstock::scheduling
