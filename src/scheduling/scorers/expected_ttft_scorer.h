#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `expected-ttft-scorer`, Penstock's own: weighs the prefill time that cached prefix saves against the wait
// for the tokens already on their way to an endpoint, both in milliseconds.
//   cost   = 1000 / prefillTokensPerSecond, or as the latency predictor has measured it on endpoints of this
//            class (prefillCostSource: latencyPredictor, once it knows)  ms a token
//   saved  = min(cached tokens * cost, maxBonusMs), no cap at 0        ms
//   wait   = tokens in flight * cost                                   ms
//   expected TTFT = prompt tokens * cost - saved + wait                ms
//   score  = 1 - min(1, (expected - best expected of the candidates) / scaleMs)
// Without prefix data nothing is saved, without load data nobody waits.
// Example: 10,000 tokens/s, prompt 4,000 tokens, scale 1,000 ms: A holds 3,200 of them and has 5,000 in
// flight: 400 - 320 + 500 = 580; B holds none and is idle: 400. Scores A 0.82, B 1. With 1,000 in flight A
// expects 180: A 1, B 0.78. With a measured cost of 0.05 ms a token on A: 200 - 160 + 250 = 290: A 1, B 0.89.
class ExpectedTtftScorer final : public Scorer {
 public:
  static constexpr std::string_view kType = "expected-ttft-scorer";
  struct Params {
    double prefill_tokens_per_second = 15928;
    double max_bonus_ms = 0;
    double scale_ms = 1000;
    bool use_predictor = false;
    std::string prefix_producer;
    std::string load_producer;
    std::string latency_producer;
  };
  static void bind(config::Binder& b, Params& p);
  explicit ExpectedTtftScorer(Params params);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;

 private:
  struct Parts {
    double cost_ms = 0;  // a token
    bool measured = false;
    double prefill_ms = 0;
    double saved_ms = 0;
    double wait_ms = 0;
    double expected_ms() const { return prefill_ms - saved_ms + wait_ms; }
  };
  Parts parts(const SchedulingContext& ctx, Candidate candidate, double prompt_tokens) const;

  double cost_ms_;  // a token, unless it was measured
  bool use_predictor_;
  double max_bonus_ms_;
  double scale_ms_;
  DataKey prefix_key_;
  DataKey load_key_;
  DataKey latency_key_;
  AttributeSlot prefix_slot_ = kNoSlot;
  AttributeSlot load_slot_ = kNoSlot;
  AttributeSlot latency_slot_ = kNoSlot;
};

}  // namespace penstock::scheduling
