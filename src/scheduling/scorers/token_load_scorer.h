#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `token-load-scorer`: prefers endpoints with few tokens of ours in flight. t = tokens in flight + tokens of
// this request the endpoint would have to prefill (each 0 when unknown); t <= 0: 1; else 1 - min(t, T) / T
// with T = queueThresholdTokens. Example, T = 4194304: 0 gives 1, 1048576 + 1048576 gives 0.5, 5000000
// gives 0.
class TokenLoadScorer final : public Scorer {
 public:
  static constexpr int64_t kDefaultThreshold = 4194304;
  struct Params {
    int64_t threshold = kDefaultThreshold;  // tokens
    std::string in_flight_producer;
  };
  static void bind(config::Binder& b, Params& p);
  explicit TokenLoadScorer(Params params);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;

 private:
  DataKey load_key_;
  DataKey uncached_key_;
  AttributeSlot load_slot_ = kNoSlot;
  AttributeSlot uncached_slot_ = kNoSlot;
  int64_t threshold_;
};

}  // namespace penstock::scheduling
