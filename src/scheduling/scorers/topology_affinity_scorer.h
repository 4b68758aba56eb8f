#pragma once

#include "scheduling/topology.h"

namespace penstock::scheduling {

// `topology-affinity-scorer`: how near an endpoint is to the request's peer (the other half of a
// disaggregated request): same host 1, rack 0.2, zone 0.05, region 0.02, else 0; no peer: 0 for all.
// Example: peer {h1, r1, z1}: {h1} 1, {h2, r1, z1} 0.2, {z1} 0.05, {h9} 0.
class TopologyAffinityScorer final : public Scorer {
 public:
  static constexpr std::string_view kType = "topology-affinity-scorer";
  struct Params {
    std::string producer;
  };
  static void bind(config::Binder& b, Params& p);
  explicit TopologyAffinityScorer(const Params& params) : topology_(params.producer) {}

  void declare_data(DataDeclaration& declaration) const override { topology_.declare(declaration); }
  void bind_slots(const SlotResolver& slots) override { topology_.bind_slots(slots); }
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;

 private:
  TopologyReader topology_;
};

}  // namespace penstock::scheduling
