#include "scheduling/scorers/prefix_cache_scorer.h"

#include <algorithm>

#include "scheduling/number_text.h"

namespace penstock::scheduling {

void PrefixCacheScorer::bind(config::Binder& b, Params& p) {
  b.field("prefixMatchInfoProducerName", p.producer, "",
          "Name of the prefix cache producer to read; empty: approx-prefix-cache-producer.");
  b.field("matchLengthWeight", p.length_weight, "ratio",
          "Share of the score that grows with the length of the match instead of its ratio, 0 to 1.");
  b.field("matchLengthScaleTokens", p.scale_tokens, "tokens",
          "Matched tokens at which that share is full; above 0 where matchLengthWeight is.");
  if (b.describing()) return;
  if (!(p.length_weight >= 0 && p.length_weight <= 1)) {
    std::string message = "matchLengthWeight must be between 0.0 and 1.0, got ";
    append_number(message, p.length_weight);
    b.fail("matchLengthWeight", message);
  }
  if (p.length_weight > 0 && p.scale_tokens <= 0) {
    b.fail("matchLengthScaleTokens",
           "matchLengthScaleTokens must be greater than 0 when matchLengthWeight is, got " +
               std::to_string(p.scale_tokens));
  }
}

PrefixCacheScorer::PrefixCacheScorer(Params params)
    : key_(data_keys::kPrefixMatch.with_producer(params.producer)),
      length_weight_(params.length_weight),
      scale_tokens_(static_cast<double>(params.scale_tokens)) {}

void PrefixCacheScorer::declare_data(DataDeclaration& declaration) const {
  declaration.require<PrefixMatch>(key_);
}

void PrefixCacheScorer::bind_slots(const SlotResolver& slots) {
  slot_ = slots.slot(key_);
}

void PrefixCacheScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                              std::span<double> scores) const {
  const std::span<const PrefixMatch> matches = ctx.attributes.column<PrefixMatch>(slot_);
  if (matches.empty()) {
    std::fill(scores.begin(), scores.end(), 0.0);
    return;
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    const PrefixMatch& m = matches[candidates[i]];
    scores[i] = m.ratio();
    if (length_weight_ <= 0 || m.total_blocks == 0) continue;
    const double length =
        std::min(1.0, static_cast<double>(m.match_blocks) * m.block_size_tokens / scale_tokens_);
    scores[i] = length_weight_ * length * length + (1.0 - length_weight_) * m.ratio();
  }
}

void PrefixCacheScorer::explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const {
  const std::span<const PrefixMatch> matches = ctx.attributes.column<PrefixMatch>(slot_);
  if (matches.empty()) {
    out += "prefix match unknown (no data from " + key_.producer + "): scores 0";
    return;
  }
  const PrefixMatch& m = matches[candidate];
  if (m.total_blocks == 0) {
    out += "prompt has no prefix blocks";
    return;
  }
  out += "prefix ";
  append_number(out, uint64_t{m.match_blocks});
  out += " of ";
  append_number(out, uint64_t{m.total_blocks});
  out += " blocks of ";
  append_number(out, uint64_t{m.block_size_tokens});
  out += " tokens";
}

}  // namespace penstock::scheduling
