#include "scheduling/scorers/latency_scorer.h"

#include <algorithm>
#include <cmath>

#include "scheduling/admitters/latency_slo_admitter.h"
#include "scheduling/number_text.h"
#include "scheduling/range.h"
#include "scheduling/signal_column.h"

namespace penstock::scheduling {

namespace {

constexpr double kSameHeadroom = 1e-9;

bool differs(const Range& headrooms) {
  return headrooms.width() > kSameHeadroom;
}
double place(const Range& headrooms, double headroom) {
  return differs(headrooms) ? headrooms.rise(headroom) : 0.5;
}

}  // namespace

void LatencyScorer::bind(config::Binder& b, Params& p) {
  b.field("ttftWeight", p.ttft_weight, "", "Weight of the time to the first token.");
  b.field("tpotWeight", p.tpot_weight, "", "Weight of the time per output token.");
  std::string strategy = "least";
  b.field(
      "headroomSelectionStrategy", strategy, "",
      "least: endpoints that just meet the objectives first; most: those that meet them by far. Any other "
      "value counts as least.");
  b.field("compositeKVWeight", p.kv_weight, "", "Without predictions: weight of free KV cache.");
  b.field("compositeQueueWeight", p.queue_weight, "", "Without predictions: weight of a short queue.");
  b.field("compositePrefixWeight", p.prefix_weight, "", "Without predictions: weight of the cached prefix.");
  b.field("latencyPredictionInfoProducerName", p.latency_producer, "",
          "Name of the latency producer to read; empty: predicted-latency-producer.");
  b.field("prefixMatchInfoProducerName", p.prefix_producer, "",
          "Name of the prefix cache producer to read; empty: approx-prefix-cache-producer.");
  p.most = strategy == "most";
}

LatencyScorer::LatencyScorer(Params params)
    : params_(std::move(params)),
      latency_key_(data_keys::kLatencyPrediction.with_producer(params_.latency_producer)),
      prefix_key_(data_keys::kPrefixMatch.with_producer(params_.prefix_producer)) {}

void LatencyScorer::declare_data(DataDeclaration& declaration) const {
  declaration.require<LatencyPrediction>(latency_key_);
  declaration.require<PrefixMatch>(prefix_key_);
  // Predictions are made from them, and without predictions the composite is.
  declaration.optional<SignalValue>(data_keys::kWaitingQueueSize);
  declaration.optional<SignalValue>(data_keys::kRunningRequestsSize);
  declaration.optional<SignalValue>(data_keys::kKvCacheUsagePercent);
}

void LatencyScorer::bind_slots(const SlotResolver& slots) {
  latency_slot_ = slots.slot(latency_key_);
  prefix_slot_ = slots.slot(prefix_key_);
}

LatencyScorer::CompositeWeights LatencyScorer::composite_weights() const {
  const double sum = params_.kv_weight + params_.queue_weight + params_.prefix_weight;
  if (!(sum > 0)) return {};
  return {params_.kv_weight / sum, params_.queue_weight / sum, params_.prefix_weight / sum};
}

void LatencyScorer::composite(SchedulingContext& ctx, std::span<const Candidate> candidates,
                              std::span<double> scores) const {
  const auto [kv, queue, prefix] = composite_weights();
  const SignalColumn waiting = gather(ctx, candidates, Signal::kWaitingRequests);
  const SignalColumn usage = gather(ctx, candidates, Signal::kKvUsage);
  const auto matches = ctx.attributes.column<PrefixMatch>(prefix_slot_);
  for (size_t i = 0; i < scores.size(); ++i) {
    const double relative = waiting.max > 0 ? (waiting.max - waiting.values[i]) / waiting.max : 1.0;
    const double held = matches.empty() ? 0.0 : matches[candidates[i]].ratio();
    const double total = kv * (1.0 - usage.values[i]) + queue * relative + prefix * held;
    scores[i] = std::round(total * 100.0) / 100.0;
  }
}

void LatencyScorer::score_group(std::span<const LatencyPrediction> column,
                                std::span<const Candidate> candidates, std::span<const bool> members,
                                bool most, std::span<double> scores) const {
  const auto ttft_of = [&](size_t i) {
    return column[candidates[i]].known ? std::abs(column[candidates[i]].ttft_headroom_ms) : 0.0;
  };
  const auto tpot_of = [&](size_t i) {
    return column[candidates[i]].known ? std::abs(column[candidates[i]].tpot_headroom_ms) : 0.0;
  };
  Range ttft;
  Range tpot;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!members[i]) continue;
    ttft.add(ttft_of(i));
    tpot.add(tpot_of(i));
  }
  const double sum = params_.ttft_weight + params_.tpot_weight;
  double alpha = sum > 0 ? params_.ttft_weight / sum : 1.0;
  double beta = sum > 0 ? params_.tpot_weight / sum : 0.0;
  if (differs(ttft) != differs(tpot)) {
    alpha = differs(ttft) ? 1.0 : 0.0;
    beta = 1.0 - alpha;
  }
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!members[i]) continue;
    const double combined = alpha * place(ttft, ttft_of(i)) + beta * place(tpot, tpot_of(i));
    scores[i] = (std::trunc((most ? combined : 1.0 - combined) * 100.0) + 1.0) / 100.0;
  }
}

void LatencyScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                          std::span<double> scores) const {
  std::fill(scores.begin(), scores.end(), 0.0);
  const auto column = ctx.attributes.column<LatencyPrediction>(latency_slot_);
  const auto has = [&](Candidate c) { return column[c].known; };
  if (column.empty() || std::none_of(candidates.begin(), candidates.end(), has)) {
    composite(ctx, candidates, scores);
    return;
  }
  std::span<Group> groups = ctx.arena.make_filled<Group>(candidates.size(), Group::kMet);
  Group best = Group::kBothMissed;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const LatencyPrediction& p = column[candidates[i]];
    const bool ttft_missed = p.known && p.ttft_headroom_ms < 0;
    const bool tpot_missed = p.known && p.tpot_headroom_ms < 0;
    if (ttft_missed || tpot_missed) {
      groups[i] = p.dispatched_requests == 0   ? Group::kIdle
                  : ttft_missed && tpot_missed ? Group::kBothMissed
                  : tpot_missed                ? Group::kTpotMissed
                                               : Group::kTtftMissed;
    }
    best = std::min(best, groups[i]);
  }
  std::span<bool> members = ctx.arena.make_filled<bool>(candidates.size(), false);
  for (size_t i = 0; i < candidates.size(); ++i) members[i] = groups[i] == best;
  score_group(column, candidates, members, best == Group::kMet && params_.most, scores);
}

void LatencyScorer::explain_composite(const SchedulingContext& ctx, Candidate candidate,
                                      std::string& out) const {
  const CompositeWeights weights = composite_weights();
  out += "no latency prediction; ";
  append_rounded(out, weights.kv);
  out += " x free KV cache (";
  append_signal(ctx, candidate, Signal::kKvUsage, out);
  out += ") + ";
  append_rounded(out, weights.queue);
  out += " x short queue, longest 0 (";
  append_signal(ctx, candidate, Signal::kWaitingRequests, out);
  out += ") + ";
  append_rounded(out, weights.prefix);
  out += " x cached prefix (";
  const auto matches = ctx.attributes.column<PrefixMatch>(prefix_slot_);
  const PrefixMatch match = matches.empty() ? PrefixMatch{} : matches[candidate];
  append_number(out, uint64_t{match.match_blocks});
  out += " of ";
  append_number(out, uint64_t{match.total_blocks});
  out += " blocks)";
}

void LatencyScorer::explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const {
  const auto column = ctx.attributes.column<LatencyPrediction>(latency_slot_);
  if (column.empty() || std::none_of(ctx.candidates.begin(), ctx.candidates.end(),
                                     [&](Candidate c) { return column[c].known; })) {
    explain_composite(ctx, candidate, out);
    return;
  }
  const LatencyPrediction& p = column[candidate];
  if (!p.known) {
    out += "no latency prediction: counts as one that just meets the objectives";
    return;
  }
  const auto append = [&out](std::string_view name, bool known, double predicted, double error,
                             double headroom, bool objective) {
    out += name;
    if (!known) {
      out += "not learnt yet (counts as met)";
      return;
    }
    append_rounded(out, predicted);
    if (error > 0) {
      out += " ± ";
      append_rounded(out, error);
    }
    if (!objective) {
      out += " ms (no objective)";
      return;
    }
    out += " ms (headroom ";
    append_rounded(out, headroom);
    out += " ms)";
  };
  append("TTFT ", p.ttft_known, p.ttft_ms, p.ttft_error_ms, p.ttft_headroom_ms,
         ttft_objective_ms(ctx.request) > 0);
  append(", TPOT ", p.tpot_known, p.tpot_ms, p.tpot_error_ms, p.tpot_headroom_ms,
         tpot_objective_ms(ctx.request) > 0);
}

}  // namespace penstock::scheduling
