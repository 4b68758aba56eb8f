#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `prefix-cache-affinity-filter`: keeps the endpoints that hold most of the prompt, unless they are so busy
// that starting elsewhere is faster.
//   sticky = {match / total >= affinityThreshold}. All stay when there is one endpoint or none, with a
//   threshold of 0 or less, with probability explorationProbability, when nobody is sticky, and when
//   best TTFT(sticky) - best TTFT(others) > maxTTFTPenaltyMs (0: always stick).
//   TTFT = the predicted one (missing: infinite), or tokens in flight / peakPrefillThroughput * 1000
//   (missing: 0).
// Examples with the defaults: sticky 500,000 tokens in flight, other 100,000: 31391.26 - 6278.25 > 18000,
// all; sticky 300,000: 18834.76 - 6278.25, sticky only.
class PrefixCacheAffinityFilter final : public Filter {
 public:
  static constexpr std::string_view kType = "prefix-cache-affinity-filter";
  struct Params {
    double affinity_threshold = 0.80;  // ratio
    double exploration = 0;            // probability
    double max_penalty_ms = 18000;     // ms
    double peak_throughput = 15928;    // tokens/s
    bool use_predictor = false;
    std::string prefix_producer;
    std::string latency_producer;
    std::string load_producer;
  };
  static void bind(config::Binder& b, Params& p);
  explicit PrefixCacheAffinityFilter(Params params);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const override;

 private:
  double ttft_ms(const SchedulingContext& ctx, Candidate candidate) const;

  Params params_;
  DataKey prefix_key_;
  DataKey latency_key_;
  DataKey load_key_;
  AttributeSlot prefix_slot_ = kNoSlot;
  AttributeSlot latency_slot_ = kNoSlot;
  AttributeSlot load_slot_ = kNoSlot;
};

}  // namespace penstock::scheduling
