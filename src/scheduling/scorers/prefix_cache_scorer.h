#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `prefix-cache-scorer`: prefers endpoints that hold the beginning of the prompt.
//   ratio = match / total blocks; L = min(1, match * block size / scale)^2 when w > 0 and the block size is
//   known, else 0; score = w * L + (1 - w) * ratio; w = matchLengthWeight, scale = matchLengthScaleTokens.
// Without data, or for a prompt without blocks: 0.
// Examples: 3 of 10 blocks, w 0: 0.3; 64 of 128 blocks of 64 tokens, w 0.5, scale 8192:
// 0.5 * 0.25 + 0.5 * 0.5 = 0.375; 256 of 256, w 1: 1.
class PrefixCacheScorer final : public Scorer {
 public:
  struct Params {
    std::string producer;
    double length_weight = 0.0;   // ratio
    int64_t scale_tokens = 8192;  // tokens
  };
  static void bind(config::Binder& b, Params& p);
  explicit PrefixCacheScorer(Params params);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;

 private:
  DataKey key_;
  AttributeSlot slot_ = kNoSlot;
  double length_weight_;
  double scale_tokens_;
};

}  // namespace penstock::scheduling
