#include "scheduling/scorers/expected_ttft_scorer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "scheduling/number_text.h"

namespace penstock::scheduling {

void ExpectedTtftScorer::bind(config::Binder& b, Params& p) {
  b.field("prefillTokensPerSecond", p.prefill_tokens_per_second, "tokens/s", "Prefill speed of an endpoint.");
  std::string source = "prefillThroughput";
  b.field("prefillCostSource", source, "",
          "What a token to prefill costs: prefillThroughput (as prefillTokensPerSecond says), or "
          "latencyPredictor (as predicted-latency-producer has measured it; until it knows, as "
          "prefillTokensPerSecond says).");
  b.field("maxBonusMs", p.max_bonus_ms, "ms", "Most that cached prefix may save; 0: no cap.");
  b.field("scaleMs", p.scale_ms, "ms",
          "How much later than the best an endpoint's first token may come before it scores 0.");
  b.field("prefixMatchInfoProducerName", p.prefix_producer, "",
          "Name of the prefix cache producer to read; empty: approx-prefix-cache-producer.");
  b.field("inFlightLoadProducerName", p.load_producer, "",
          "Name of the inflight-load-producer to read; empty: the default one.");
  b.field("latencyPredictionInfoProducerName", p.latency_producer, "",
          "Name of the latency producer to read; empty: predicted-latency-producer.");
  if (b.describing()) return;
  p.use_predictor = source == "latencyPredictor";
  if (!p.use_predictor && source != "prefillThroughput") {
    b.fail("prefillCostSource",
           "must be \"prefillThroughput\" or \"latencyPredictor\", got \"" + source + "\"");
  }
  if (!(p.prefill_tokens_per_second > 0)) b.fail("prefillTokensPerSecond", "must be greater than 0");
  if (!(p.scale_ms > 0)) b.fail("scaleMs", "must be greater than 0");
  if (!(p.max_bonus_ms >= 0)) b.fail("maxBonusMs", "must be at least 0");
}

ExpectedTtftScorer::ExpectedTtftScorer(Params params)
    : cost_ms_(1000.0 / params.prefill_tokens_per_second),
      use_predictor_(params.use_predictor),
      max_bonus_ms_(params.max_bonus_ms > 0 ? params.max_bonus_ms : std::numeric_limits<double>::infinity()),
      scale_ms_(params.scale_ms),
      prefix_key_(data_keys::kPrefixMatch.with_producer(params.prefix_producer)),
      load_key_(data_keys::kInFlightLoad.with_producer(params.load_producer)),
      latency_key_(data_keys::kLatencyPrediction.with_producer(params.latency_producer)) {}

void ExpectedTtftScorer::declare_data(DataDeclaration& declaration) const {
  declaration.require<PrefixMatch>(prefix_key_);
  declaration.require<InFlightLoad>(load_key_);
  if (use_predictor_) declaration.require<LatencyPrediction>(latency_key_);
}

void ExpectedTtftScorer::bind_slots(const SlotResolver& slots) {
  prefix_slot_ = slots.slot(prefix_key_);
  load_slot_ = slots.slot(load_key_);
  if (use_predictor_) latency_slot_ = slots.slot(latency_key_);
}

ExpectedTtftScorer::Parts ExpectedTtftScorer::parts(const SchedulingContext& ctx, Candidate candidate,
                                                    double prompt_tokens) const {
  Parts out;
  const auto predictions = ctx.attributes.column<LatencyPrediction>(latency_slot_);
  out.measured = !predictions.empty() && predictions[candidate].prefill_ms_per_token > 0;
  out.cost_ms = out.measured ? predictions[candidate].prefill_ms_per_token : cost_ms_;
  out.prefill_ms = prompt_tokens * out.cost_ms;
  const auto matches = ctx.attributes.column<PrefixMatch>(prefix_slot_);
  if (!matches.empty()) {
    const PrefixMatch& match = matches[candidate];
    const double cached =
        static_cast<double>(match.cached_blocks) * static_cast<double>(match.block_size_tokens);
    out.saved_ms = std::min(std::min(cached, prompt_tokens) * out.cost_ms, max_bonus_ms_);
  }
  const auto load = ctx.attributes.column<InFlightLoad>(load_slot_);
  if (!load.empty())
    out.wait_ms = static_cast<double>(std::max<int64_t>(load[candidate].tokens, 0)) * out.cost_ms;
  return out;
}

void ExpectedTtftScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                               std::span<double> scores) const {
  const auto prompt_tokens = static_cast<double>(ctx.request.prompt_tokens());
  double best = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = parts(ctx, candidates[i], prompt_tokens).expected_ms();
    best = std::min(best, scores[i]);
  }
  for (double& score : scores) score = 1.0 - std::min(1.0, (score - best) / scale_ms_);
}

void ExpectedTtftScorer::explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const {
  const Parts p = parts(ctx, candidate, static_cast<double>(ctx.request.prompt_tokens()));
  out += "expected TTFT ";
  append_rounded(out, p.expected_ms());
  out += " ms: prefill ";
  append_rounded(out, p.prefill_ms);
  out += " ms - saved ";
  append_rounded(out, p.saved_ms);
  out += " ms + wait ";
  append_rounded(out, p.wait_ms);
  out += " ms, at ";
  append_rounded(out, std::round(1000.0 / p.cost_ms));
  out += " tokens/s";
  if (use_predictor_) out += p.measured ? " as measured" : " as configured, nothing is measured yet";
}

}  // namespace penstock::scheduling
