#include "scheduling/scorers/topology_affinity_scorer.h"

#include <algorithm>
#include <array>

namespace penstock::scheduling {

namespace {

// In the order of Nearness.
constexpr std::array<double, 5> kScores{1.0, 0.20, 0.05, 0.02, 0.0};
constexpr std::array<std::string_view, 5> kTexts{"same host as the peer", "same rack as the peer",
                                                 "same zone as the peer", "same region as the peer",
                                                 "nothing in common with the peer's place"};

}  // namespace

void TopologyAffinityScorer::bind(config::Binder& b, Params& p) {
  b.field("topologyProducerName", p.producer, "",
          "Name of the topology extractor to read; empty: topology-extractor.");
}

void TopologyAffinityScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                   std::span<double> scores) const {
  std::fill(scores.begin(), scores.end(), 0.0);
  const std::optional<Topology> peer = topology_.peer(ctx);
  if (!peer) return;
  const std::span<const Topology> column = topology_.column(ctx);
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = kScores[static_cast<size_t>(nearness(*peer, column[candidates[i]]))];
  }
}

void TopologyAffinityScorer::explain(const SchedulingContext& ctx, Candidate candidate,
                                     std::string& out) const {
  const std::optional<Topology> peer = topology_.peer(ctx);
  out += peer ? kTexts[static_cast<size_t>(nearness(*peer, topology_.column(ctx)[candidate]))]
              : std::string_view("no peer, or its place is unknown");
}

}  // namespace penstock::scheduling
