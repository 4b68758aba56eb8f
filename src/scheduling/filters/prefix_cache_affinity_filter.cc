#include "scheduling/filters/prefix_cache_affinity_filter.h"

#include <algorithm>
#include <limits>

namespace penstock::scheduling {

void PrefixCacheAffinityFilter::bind(config::Binder& b, Params& p) {
  b.field("affinityThreshold", p.affinity_threshold, "ratio",
          "Share of the prompt an endpoint must hold to be sticky, at most 1; 0 or less: the filter is off.");
  b.field("explorationProbability", p.exploration, "ratio",
          "Share of requests, 0 to 1, for which all endpoints stay.");
  b.field("maxTTFTPenaltyMs", p.max_penalty_ms, "ms",
          "How much later the first token may come for the sake of the cache; 0: any time.");
  std::string source = "prefillThroughput";
  b.field("ttftSource", source, "",
          "Where times to the first token come from: prefillThroughput (tokens in flight over "
          "peakPrefillThroughput) or latencyPredictor.");
  b.field("peakPrefillThroughput", p.peak_throughput, "tokens/s", "Prefill speed of an endpoint.");
  b.field("prefixMatchInfoProducerName", p.prefix_producer, "",
          "Name of the prefix cache producer to read; empty: approx-prefix-cache-producer.");
  b.field("latencyPredictionInfoProducerName", p.latency_producer, "",
          "Name of the latency producer to read; empty: predicted-latency-producer.");
  b.field("inFlightLoadProducerName", p.load_producer, "",
          "Name of the inflight-load-producer to read; empty: the default one.");
  if (b.describing()) return;
  p.use_predictor = source == "latencyPredictor";
  if (!(p.affinity_threshold <= 1)) b.fail("affinityThreshold", "affinityThreshold must be <= 1.0");
  if (!(p.exploration >= 0 && p.exploration <= 1))
    b.fail("explorationProbability", "explorationProbability must be between 0 and 1");
  if (!(p.max_penalty_ms >= 0)) b.fail("maxTTFTPenaltyMs", "maxTTFTPenaltyMs must be >= 0");
  if (!(p.peak_throughput >= 0)) b.fail("peakPrefillThroughput", "peakPrefillThroughput must be >= 0");
  if (!p.use_predictor && source != "prefillThroughput") {
    b.fail("ttftSource",
           "ttftSource must be \"prefillThroughput\" or \"latencyPredictor\", got \"" + source + "\"");
  }
  if (!p.use_predictor && p.max_penalty_ms > 0 && p.peak_throughput == 0) {
    b.fail("peakPrefillThroughput",
           "peakPrefillThroughput must be > 0 when ttftSource is prefillThroughput and maxTTFTPenaltyMs > 0");
  }
}

PrefixCacheAffinityFilter::PrefixCacheAffinityFilter(Params params)
    : params_(std::move(params)),
      prefix_key_(data_keys::kPrefixMatch.with_producer(params_.prefix_producer)),
      latency_key_(data_keys::kLatencyPrediction.with_producer(params_.latency_producer)),
      load_key_(data_keys::kInFlightLoad.with_producer(params_.load_producer)) {}

void PrefixCacheAffinityFilter::declare_data(DataDeclaration& declaration) const {
  declaration.require<PrefixMatch>(prefix_key_);
  if (params_.max_penalty_ms <= 0) return;
  if (params_.use_predictor) {
    declaration.require<LatencyPrediction>(latency_key_);
  } else {
    declaration.require<InFlightLoad>(load_key_);
  }
}

void PrefixCacheAffinityFilter::bind_slots(const SlotResolver& slots) {
  prefix_slot_ = slots.slot(prefix_key_);
  if (params_.max_penalty_ms <= 0) return;
  if (params_.use_predictor) {
    latency_slot_ = slots.slot(latency_key_);
  } else {
    load_slot_ = slots.slot(load_key_);
  }
}

double PrefixCacheAffinityFilter::ttft_ms(const SchedulingContext& ctx, Candidate candidate) const {
  if (params_.use_predictor) {
    const auto column = ctx.attributes.column<LatencyPrediction>(latency_slot_);
    const bool known = !column.empty() && column[candidate].ttft_known;
    return known ? column[candidate].ttft_ms : std::numeric_limits<double>::max();
  }
  const auto column = ctx.attributes.column<InFlightLoad>(load_slot_);
  if (column.empty()) return 0;
  return static_cast<double>(column[candidate].tokens) / params_.peak_throughput * 1000.0;
}

size_t PrefixCacheAffinityFilter::filter(SchedulingContext& ctx, std::span<Candidate> inout) const {
  const size_t all = inout.size();
  if (all <= 1 || params_.affinity_threshold <= 0) return all;
  if (params_.exploration > 0 && ctx.random.uniform() < params_.exploration) return all;
  const auto matches = ctx.attributes.column<PrefixMatch>(prefix_slot_);
  const auto sticky = [&](Candidate c) {
    return !matches.empty() && matches[c].ratio() >= params_.affinity_threshold;
  };
  const auto count = static_cast<size_t>(std::count_if(inout.begin(), inout.end(), sticky));
  if (count == 0 || count == all) return all;
  if (params_.max_penalty_ms > 0) {
    constexpr double kMax = std::numeric_limits<double>::max();
    double best_sticky = kMax;
    double best_other = kMax;
    for (const Candidate c : inout) {
      double& best = sticky(c) ? best_sticky : best_other;
      best = std::min(best, ttft_ms(ctx, c));
    }
    if (best_sticky - best_other > params_.max_penalty_ms) return all;
  }
  const auto end = std::remove_if(inout.begin(), inout.end(), [&](Candidate c) { return !sticky(c); });
  return static_cast<size_t>(end - inout.begin());
}

}  // namespace penstock::scheduling
