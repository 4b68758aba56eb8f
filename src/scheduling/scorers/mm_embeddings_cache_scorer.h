#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `mm-embeddings-cache-scorer`: the share of the request's distinct media items that an endpoint's encoder
// cache holds; 0 without data or items. Example: 2 of 3 give 0.6667.
class MmEmbeddingsCacheScorer final : public Scorer {
 public:
  static constexpr std::string_view kType = "mm-embeddings-cache-scorer";
  struct Params {
    std::string producer;
  };
  static void bind(config::Binder& b, Params& p);
  explicit MmEmbeddingsCacheScorer(const Params& params)
      : key_(data_keys::kMultiModalMatch.with_producer(params.producer)) {}

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override { slot_ = slots.slot(key_); }
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;

 private:
  DataKey key_;
  AttributeSlot slot_ = kNoSlot;
};

}  // namespace penstock::scheduling
