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
  if (ctx.freshness != nullptr) {
    return std::any_of(candidates.begin(), candidates.end(), [&](Candidate c) {
      return ctx.freshness->influence(ctx.signals, signal, c, ctx.now) >= 1.0;
    });
  }
  const auto& states = ctx.signals.state[static_cast<size_t>(signal)];
  return std::any_of(candidates.begin(), candidates.end(),
                     [&](Candidate c) { return states[c] == SignalState::kFresh; });
}

UsableSignal usable(const SchedulingContext& ctx, Signal signal, Candidate candidate) {
  const SignalValue read = ctx.signals.at(signal, candidate);
  if (!is_known(read.state, read.observed_at)) return {};
  if (ctx.freshness == nullptr) return {true, read.value, 0};
  if (ctx.now - read.observed_at >= ctx.freshness->of(signal).unknown_after) return {};
  const uint32_t credit = ctx.freshness->has_credit(signal) ? unseen_requests(ctx, candidate) : 0;
  return {true, read.value + credit, credit};
}

namespace {

// Sets the column's range from the values of which `known` says so; the others get the largest of them.
template <typename Known>
void finish_column(SignalColumn& column, std::span<double> values, Known&& known) {
  Range range;
  for (size_t i = 0; i < values.size(); ++i) {
    if (known(i)) {
      range.add(values[i]);
    } else {
      ++column.unknown;
    }
  }
  if (range.min <= range.max) {
    column.min = range.min;
    column.max = range.max;
  }
  if (column.unknown == 0) return;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!known(i)) values[i] = column.max;
  }
}

// Strict mode while all values are fresh, which is the usual case: one pass, as each decision of every
// endpoint pays for it.
template <bool kCredit>
SignalColumn gather_fresh(SchedulingContext& ctx, std::span<const Candidate> candidates, Signal signal) {
  const double* values = ctx.signals.value[static_cast<size_t>(signal)].data();
  const std::span<double> out = ctx.arena.make_span<double>(candidates.size());
  Range range;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate c = candidates[i];
    double value = values[c];
    // As a signed number, which is what a processor converts.
    if constexpr (kCredit) value += static_cast<int32_t>(unseen_requests(ctx, c));
    out[i] = value;
    range.add(value);
  }
  SignalColumn column{out};
  if (range.min <= range.max) {
    column.min = range.min;
    column.max = range.max;
  }
  return column;
}

// Strict mode: what is too old is unknown, and what was sent since counts.
SignalColumn gather_by_age(SchedulingContext& ctx, std::span<const Candidate> candidates, Signal signal) {
  const bool credit = ctx.freshness->has_credit(signal);
  if (ctx.freshness->all_fresh(ctx.signals, signal_bit(signal), ctx.now)) {
    return credit ? gather_fresh<true>(ctx, candidates, signal)
                  : gather_fresh<false>(ctx, candidates, signal);
  }
  const auto row = static_cast<size_t>(signal);
  const double* values = ctx.signals.value[row].data();
  const TimePoint* observed = ctx.signals.observed_at[row].data();
  const SignalState* states = ctx.signals.state[row].data();
  // Values observed at or before it are unknown.
  const TimePoint bound = ctx.now - ctx.freshness->of(signal).unknown_after;
  const std::span<double> out = ctx.arena.make_span<double>(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate c = candidates[i];
    out[i] = values[c] + (credit ? unseen_requests(ctx, c) : 0);
  }
  SignalColumn column{out};
  finish_column(column, out, [&](size_t i) {
    const Candidate c = candidates[i];
    return is_known(states[c], observed[c]) && observed[c] > bound;
  });
  return column;
}

}  // namespace

SignalColumn gather(SchedulingContext& ctx, std::span<const Candidate> candidates, Signal signal) {
  if (ctx.freshness != nullptr) return gather_by_age(ctx, candidates, signal);
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
  if (column.unknown == 0) {
    finish_column(column, out, [](size_t) { return true; });
    return column;
  }
  column.unknown = 0;
  finish_column(column, out,
                [&](size_t i) { return is_known(states[candidates[i]], observed[candidates[i]]); });
  return column;
}

void score_least(const SignalColumn& column, std::span<double> scores) {
  const Range range{column.min, column.max};
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = range.fall(column.values[i]);
}

void append_signal(const SchedulingContext& ctx, Candidate candidate, Signal signal, std::string& out) {
  const SignalValue read = ctx.signals.at(signal, candidate);
  const UsableSignal usable_value = usable(ctx, signal, candidate);
  out += short_name(signal);
  if (!usable_value.known) {
    out += " unknown (";
    if (is_known(read.state, read.observed_at)) {
      out += "last seen ";
      append_millis(out, ctx.now - read.observed_at);
      out += " ago";
    } else {
      out += signal_state_name(read.state);
    }
    out += "): counts as the largest known value, or 0 where none is known";
    return;
  }
  out += ' ';
  append_rounded(out, usable_value.value, 4);
  out += ' ';
  out += signal_unit(signal);
  if (usable_value.credit != 0) {
    out += ", ";
    append_number(out, uint64_t{usable_value.credit});
    out += " of them sent since";
  }
  out += ", age ";
  append_millis(out, ctx.now - read.observed_at);
  out += ", ";
  out += signal_state_name(read.state);
  if (ctx.freshness == nullptr) return;
  const double influence = ctx.freshness->of(signal).influence(ctx.now - read.observed_at);
  if (influence >= 1) return;
  out += ", influence ";
  append_rounded(out, influence);
}

}  // namespace penstock::scheduling
