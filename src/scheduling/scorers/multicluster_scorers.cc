#include "scheduling/scorers/multicluster_scorers.h"

#include <algorithm>

#include "scheduling/endpoint_attribute.h"

namespace penstock::scheduling {

void MulticlusterQueueScorer::declare_data(DataDeclaration& declaration) const {
  declaration.require<EndpointScalar>(data_keys::kMulticlusterQueueSize);
}

void MulticlusterQueueScorer::bind_slots(const SlotResolver& slots) {
  slot_ = slots.slot(data_keys::kMulticlusterQueueSize);
}

void MulticlusterQueueScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                    std::span<double> scores) const {
  std::fill(scores.begin(), scores.end(), 0.0);
  const std::span<const EndpointScalar> column = ctx.attributes.column<EndpointScalar>(slot_);
  if (column.empty()) return;
  const Range range = range_of(column, candidates);
  for (size_t i = 0; i < scores.size(); ++i) {
    const EndpointScalar& queue = column[candidates[i]];
    if (queue.known) scores[i] = range.fall(queue.value);
  }
}

void MulticlusterQueueScorer::explain(const SchedulingContext& ctx, Candidate candidate,
                                      std::string& out) const {
  append_scalar(ctx, "queue of the other cluster", unit_of(data_keys::kMulticlusterQueueSize), slot_,
                candidate, out);
}

void MulticlusterKvCacheUtilizationScorer::declare_data(DataDeclaration& declaration) const {
  declaration.require<EndpointScalar>(data_keys::kMulticlusterKvUsage);
}

void MulticlusterKvCacheUtilizationScorer::bind_slots(const SlotResolver& slots) {
  slot_ = slots.slot(data_keys::kMulticlusterKvUsage);
}

void MulticlusterKvCacheUtilizationScorer::score(SchedulingContext& ctx,
                                                 std::span<const Candidate> candidates,
                                                 std::span<double> scores) const {
  std::fill(scores.begin(), scores.end(), 0.0);
  const std::span<const EndpointScalar> column = ctx.attributes.column<EndpointScalar>(slot_);
  if (column.empty()) return;
  for (size_t i = 0; i < scores.size(); ++i) {
    const EndpointScalar& usage = column[candidates[i]];
    if (usage.known) scores[i] = 1.0 - usage.value;
  }
}

void MulticlusterKvCacheUtilizationScorer::explain(const SchedulingContext& ctx, Candidate candidate,
                                                   std::string& out) const {
  append_scalar(ctx, "KV cache usage of the other cluster", unit_of(data_keys::kMulticlusterKvUsage), slot_,
                candidate, out);
}

}  // namespace penstock::scheduling
