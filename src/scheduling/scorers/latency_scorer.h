#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `latency-scorer`: prefers endpoints by how far their predicted latency is from the request's objectives.
//   1. Nobody has a prediction: composite = wkv (1 - kv) + wq (maxQ - q) / maxQ + wp match / total, weights
//      divided by their sum (kv alone where that is not positive), rounded to hundredths; an empty queue
//      everywhere counts 1.
//   2. Somebody meets both objectives (no headroom below 0; no prediction counts as headroom 0): only those
//      are scored, by the configured strategy.
//   3. Else, where idle endpoints (no dispatched request) exist, only those; else the first that has members
//      of: TPOT alone missed, TTFT alone missed, both missed. Strategy least. All others 0.
//   Within such a group: |headroom| per dimension from 0 (smallest) to 1 (largest), 0.5 where all are equal;
//   combined by the weights, a dimension that alone differs counts alone; least: trunc((1 - c) 100) + 1,
//   most: trunc(c 100) + 1; score = that / 100, so at most 1.01, which the profile caps.
// Examples, weights 0.8 and 0.2: TTFT headrooms {100, 300, 200}, TPOT all 0: least {1.01, 0.01, 0.51}, most
// {0.01, 1.01, 0.51}; (100, 10), (300, 30), (200, 10): least {1.01, 0.01, 0.61}.
class LatencyScorer final : public Scorer {
 public:
  static constexpr std::string_view kType = "latency-scorer";
  struct Params {
    double ttft_weight = 0.8;
    double tpot_weight = 0.2;
    bool most = false;
    double kv_weight = 1;
    double queue_weight = 1;
    double prefix_weight = 1;
    std::string latency_producer;
    std::string prefix_producer;
  };
  static void bind(config::Binder& b, Params& p);
  explicit LatencyScorer(Params params);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;

 private:
  // Which of the groups above an endpoint is in; those outside the group that is scored get 0.
  enum class Group : uint8_t { kMet, kIdle, kTpotMissed, kTtftMissed, kBothMissed };

  // Of the composite score; they add up to 1.
  struct CompositeWeights {
    double kv = 1;
    double queue = 0;
    double prefix = 0;
  };
  CompositeWeights composite_weights() const;
  void explain_composite(const SchedulingContext& ctx, Candidate candidate, std::string& out) const;
  void composite(SchedulingContext& ctx, std::span<const Candidate> candidates,
                 std::span<double> scores) const;
  void score_group(std::span<const LatencyPrediction> column, std::span<const Candidate> candidates,
                   std::span<const bool> members, bool most, std::span<double> scores) const;

  Params params_;
  DataKey latency_key_;
  DataKey prefix_key_;
  AttributeSlot latency_slot_ = kNoSlot;
  AttributeSlot prefix_slot_ = kNoSlot;
};

}  // namespace penstock::scheduling
