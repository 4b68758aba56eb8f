#include "scheduling/pickers/random_picker.h"

#include "scheduling/pickers/shuffle.h"

namespace penstock::scheduling {

std::span<const Candidate> pick_uniformly(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                          size_t count) {
  if (candidates.empty() || count == 0) return {};
  if (count == 1) {
    const uint32_t i = ctx.random.below(static_cast<uint32_t>(candidates.size()));
    return ctx.arena.make_filled<Candidate>(1, candidates[i]);
  }
  const std::span<const uint32_t> order = shuffled_indices(ctx, candidates.size(), count);
  std::span<Candidate> out = ctx.arena.make_span<Candidate>(count);
  for (size_t i = 0; i < count; ++i) out[i] = candidates[order[i]];
  return out;
}

std::span<const Candidate> RandomPicker::pick(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                              std::span<const double> /*totals*/) const {
  return pick_uniformly(ctx, candidates, params_.count(candidates.size()));
}

}  // namespace penstock::scheduling
