#include "scheduling/producers/topology_extractor.h"

namespace penstock::scheduling {

void TopologyExtractor::bind(config::Binder& b, Params& p) {
  b.field("hostname", p.hostname, "", "Label that names the host.");
  b.field("rack", p.rack, "", "Label that names the rack.");
  b.field("zone", p.zone, "", "Label that names the zone.");
  b.field("region", p.region, "", "Label that names the region.");
}

void TopologyExtractor::declare_data(DataDeclaration& declaration) const {
  declaration.produce<Topology>(key());
}

void TopologyExtractor::bind_slots(const SlotResolver& slots) {
  slot_ = slots.slot(key());
}

Status TopologyExtractor::produce(SchedulingContext& ctx) const {
  if (slot_ == kNoSlot) return {};
  const auto places = places_.get(ctx.pool, [&](const PoolSnapshot& pool) {
    std::vector<Topology> out;
    out.reserve(pool.endpoints.size());
    for (const auto& endpoint : pool.endpoints) {
      out.push_back({endpoint->label(params_.hostname), endpoint->label(params_.rack),
                     endpoint->label(params_.zone), endpoint->label(params_.region)});
    }
    return out;
  });
  const std::span<Topology> column = ctx.attributes.create<Topology>(slot_);
  for (const Candidate c : ctx.candidates) column[c] = (*places)[c];
  return {};
}

}  // namespace penstock::scheduling
