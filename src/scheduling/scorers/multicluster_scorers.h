#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `multicluster-queue-scorer`: queue-scorer's formula on the queue size that another cluster's picker reports
// for its pool: (max - q) / (max - min) over the candidates that have it, 1 where they are equal; 0 without
// it. Takes no parameters. Example: {0, 5, 10, missing} give {1, 0.5, 0, 0}.
class MulticlusterQueueScorer final : public Scorer {
 public:
  static constexpr std::string_view kType = "multicluster-queue-scorer";
  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;
  AttributeSlot aging_attribute() const override { return slot_; }

 private:
  AttributeSlot slot_ = kNoSlot;
};

// `multicluster-kv-cache-utilization-scorer`: 1 - the KV cache usage that another cluster's picker reports; 0
// without it. Takes no parameters. Example: {0.3, missing} give {0.7, 0}.
class MulticlusterKvCacheUtilizationScorer final : public Scorer {
 public:
  static constexpr std::string_view kType = "multicluster-kv-cache-utilization-scorer";
  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;
  AttributeSlot aging_attribute() const override { return slot_; }

 private:
  AttributeSlot slot_ = kNoSlot;
};

}  // namespace penstock::scheduling
