#include "scheduling/scorers/token_load_scorer.h"

#include <algorithm>

#include "scheduling/number_text.h"

namespace penstock::scheduling {

void TokenLoadScorer::bind(config::Binder& b, Params& p) {
  b.field("queueThresholdTokens", p.threshold, "tokens",
          "Tokens at which the score reaches 0. Values below 1 count as 4194304.");
  b.field("inFlightLoadProducerName", p.in_flight_producer, "",
          "Name of the inflight-load-producer to read; empty: the default one.");
}

TokenLoadScorer::TokenLoadScorer(Params params)
    : load_key_(data_keys::kInFlightLoad.with_producer(params.in_flight_producer)),
      uncached_key_(data_keys::kUncachedRequestTokens.with_producer(params.in_flight_producer)),
      threshold_(params.threshold > 0 ? params.threshold : kDefaultThreshold) {}

void TokenLoadScorer::declare_data(DataDeclaration& declaration) const {
  declaration.require<InFlightLoad>(load_key_);
  declaration.require<UncachedTokens>(uncached_key_);
}

void TokenLoadScorer::bind_slots(const SlotResolver& slots) {
  load_slot_ = slots.slot(load_key_);
  uncached_slot_ = slots.slot(uncached_key_);
}

void TokenLoadScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                            std::span<double> scores) const {
  const std::span<const InFlightLoad> load = ctx.attributes.column<InFlightLoad>(load_slot_);
  const std::span<const UncachedTokens> uncached = ctx.attributes.column<UncachedTokens>(uncached_slot_);
  for (size_t i = 0; i < scores.size(); ++i) {
    const Candidate c = candidates[i];
    const int64_t tokens = (load.empty() ? 0 : load[c].tokens) + (uncached.empty() ? 0 : uncached[c].tokens);
    scores[i] = 1.0 - static_cast<double>(std::clamp<int64_t>(tokens, 0, threshold_)) /
                          static_cast<double>(threshold_);
  }
}

void TokenLoadScorer::explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const {
  const std::span<const InFlightLoad> load = ctx.attributes.column<InFlightLoad>(load_slot_);
  const std::span<const UncachedTokens> uncached = ctx.attributes.column<UncachedTokens>(uncached_slot_);
  out += "in flight ";
  if (load.empty()) {
    out += "unknown, counts as 0";
  } else {
    append_number(out, static_cast<uint64_t>(load[candidate].tokens));
    out += " tokens, live";
  }
  out += "; of this request ";
  if (uncached.empty()) {
    out += "unknown, counts as 0";
  } else {
    append_number(out, static_cast<uint64_t>(uncached[candidate].tokens));
    out += " tokens to prefill";
  }
}

}  // namespace penstock::scheduling
