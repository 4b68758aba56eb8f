#include "scheduling/filters/slo_headroom_tier_filter.h"

#include <algorithm>

namespace penstock::scheduling {

void SloHeadroomTierFilter::bind(config::Binder& b, Params& p) {
  b.field("epsilonExploreNeg", p.epsilon, "ratio",
          "Share of requests, 0 to 1, that go to endpoints expected to miss an objective.");
  b.field("latencyPredictionInfoProducerName", p.producer, "",
          "Name of the latency producer to read; empty: predicted-latency-producer.");
  if (!b.describing() && !(p.epsilon >= 0 && p.epsilon <= 1))
    b.fail("epsilonExploreNeg", "epsilonExploreNeg must be between 0 and 1");
}

SloHeadroomTierFilter::SloHeadroomTierFilter(Params params)
    : epsilon_(params.epsilon), key_(data_keys::kLatencyPrediction.with_producer(params.producer)) {}

void SloHeadroomTierFilter::declare_data(DataDeclaration& declaration) const {
  declaration.require<LatencyPrediction>(key_);
}

void SloHeadroomTierFilter::bind_slots(const SlotResolver& slots) {
  slot_ = slots.slot(key_);
}

size_t SloHeadroomTierFilter::filter(SchedulingContext& ctx, std::span<Candidate> inout) const {
  const auto column = ctx.attributes.column<LatencyPrediction>(slot_);
  if (inout.size() <= 1 || column.empty()) return inout.size();
  const auto positive = [&](Candidate c) {
    const LatencyPrediction& p = column[c];
    return p.known && p.ttft_headroom_ms >= 0 && p.tpot_headroom_ms >= 0;
  };
  const auto met = static_cast<size_t>(std::count_if(inout.begin(), inout.end(), positive));
  if (met == 0 || met == inout.size()) return inout.size();
  const bool explore = ctx.random.uniform() < epsilon_;
  const auto end =
      std::remove_if(inout.begin(), inout.end(), [&](Candidate c) { return positive(c) == explore; });
  return static_cast<size_t>(end - inout.begin());
}

}  // namespace penstock::scheduling
