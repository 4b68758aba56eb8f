#pragma once

#include <vector>

#include "inference/plugin.h"
#include "scheduling/epoch_cache.h"

namespace penstock::scheduling {

// `topology-extractor`: where each endpoint runs, from its labels. An endpoint without any of them has no
// place. Labels are read once for each membership of the pool.
// Example: {topology.kubernetes.io/zone: z1} is a zone and nothing else.
//
// The reference also takes a Pod's spec.hostname where the host label is missing; that needs Pod objects.
class TopologyExtractor final : public DataProducer {
 public:
  static constexpr std::string_view kType = "topology-extractor";
  struct Params {
    std::string hostname = "kubernetes.io/hostname";
    std::string rack = "topology.kubernetes.io/rack";
    std::string zone = "topology.kubernetes.io/zone";
    std::string region = "topology.kubernetes.io/region";
  };
  static void bind(config::Binder& b, Params& p);
  explicit TopologyExtractor(Params params) : params_(std::move(params)) {}

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  Status produce(SchedulingContext& ctx) const override;

 private:
  DataKey key() const { return data_keys::kTopology.with_producer(name()); }

  Params params_;
  AttributeSlot slot_ = kNoSlot;
  mutable EpochCache<std::vector<Topology>> places_;  // by Candidate
};

}  // namespace penstock::scheduling
