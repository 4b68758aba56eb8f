#pragma once

#include "scheduling/topology.h"

namespace penstock::scheduling {

// `topology-affinity-filter`: keeps endpoints at least as near to the request's peer (the other half of a
// disaggregated request) as minAffinity says; those whose place is unknown are dropped. Nobody near enough,
// or no peer: all stay.
// Examples: peer {h1, r1, z1}, candidate {h2, r1, z1}: rack; nobody on h1 and minAffinity host: all stay.
class TopologyAffinityFilter final : public Filter {
 public:
  static constexpr std::string_view kType = "topology-affinity-filter";
  struct Params {
    Nearness min_affinity = Nearness::kHost;
    std::string producer;
  };
  static void bind(config::Binder& b, Params& p);
  explicit TopologyAffinityFilter(const Params& params)
      : min_affinity_(params.min_affinity), topology_(params.producer) {}

  void declare_data(DataDeclaration& declaration) const override { topology_.declare(declaration); }
  void bind_slots(const SlotResolver& slots) override { topology_.bind_slots(slots); }
  size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const override;

 private:
  Nearness min_affinity_;
  TopologyReader topology_;
};

}  // namespace penstock::scheduling
