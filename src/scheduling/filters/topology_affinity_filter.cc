#include "scheduling/filters/topology_affinity_filter.h"

#include <algorithm>
#include <array>

namespace penstock::scheduling {

void TopologyAffinityFilter::bind(config::Binder& b, Params& p) {
  constexpr std::array<std::string_view, 4> kNames{"host", "rack", "zone", "region"};
  std::string min_affinity = "host";
  b.field("minAffinity", min_affinity, "", "How near an endpoint must be: host, rack, zone or region.");
  b.field("topologyProducerName", p.producer, "",
          "Name of the topology extractor to read; empty: topology-extractor.");
  if (b.describing()) return;
  const auto* found = std::find(kNames.begin(), kNames.end(), min_affinity);
  if (found == kNames.end()) {
    b.fail("minAffinity", "must be one of host, rack, zone, region, got \"" + min_affinity + "\"");
    return;
  }
  p.min_affinity = static_cast<Nearness>(found - kNames.begin());
}

size_t TopologyAffinityFilter::filter(SchedulingContext& ctx, std::span<Candidate> inout) const {
  const std::optional<Topology> peer = topology_.peer(ctx);
  if (!peer) return inout.size();
  const std::span<const Topology> column = topology_.column(ctx);
  const auto far = [&](Candidate c) {
    return !column[c].known() || nearness(*peer, column[c]) > min_affinity_;
  };
  if (std::all_of(inout.begin(), inout.end(), far)) return inout.size();
  const auto end = std::remove_if(inout.begin(), inout.end(), far);
  return static_cast<size_t>(end - inout.begin());
}

}  // namespace penstock::scheduling
