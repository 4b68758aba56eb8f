#include "scheduling/producers/topology_extractor.h"

#include "scheduling/pods.h"

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
    Places out;
    {
      const std::lock_guard lock(mutex_);
      out.hostnames = hostnames_;
    }
    out.of.reserve(pool.endpoints.size());
    for (const auto& endpoint : pool.endpoints) {
      Topology& place = out.of.emplace_back();
      place = {endpoint->label(params_.hostname), endpoint->label(params_.rack),
               endpoint->label(params_.zone), endpoint->label(params_.region)};
      if (!place.hostname.empty() || out.hostnames->empty()) continue;
      const auto pod = out.hostnames->find(endpoint->ns + "/" + endpoint->name);
      if (pod != out.hostnames->end()) place.hostname = pod->second;
    }
    return out;
  });
  const std::span<Topology> column = ctx.attributes.create<Topology>(slot_);
  for (const Candidate c : ctx.candidates) {
    column[c] = places->of[c];
    // A label lives as long as the snapshot, a Pod's name perhaps not.
    if (!places->hostnames->empty()) column[c].hostname = ctx.arena.copy(column[c].hostname);
  }
  return {};
}

ObjectKind TopologyExtractor::object_kind() const {
  return kPodKind;
}

std::vector<std::string> TopologyExtractor::object_fields() const {
  return pod_fields();
}

void TopologyExtractor::objects(const NotifiedObjects& all) const {
  auto hostnames = std::make_shared<Hostnames>();
  for (Pod& pod : ready_pods(all)) {
    if (!pod.hostname.empty()) (*hostnames)[pod.ns + "/" + pod.name] = std::move(pod.hostname);
  }
  {
    const std::lock_guard lock(mutex_);
    hostnames_ = std::move(hostnames);
  }
  places_.renew();
}

}  // namespace penstock::scheduling
