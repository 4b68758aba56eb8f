#include "scheduling/pickers/max_score_picker.h"

#include <algorithm>

#include "scheduling/pickers/shuffle.h"

namespace penstock::scheduling {

namespace {

// One pass finds the maximum and how many share it, one draw says which of them.
Candidate best(SchedulingContext& ctx, std::span<const Candidate> candidates,
               std::span<const double> totals) {
  double max = totals[0];
  for (const double total : totals) max = std::max(max, total);
  uint32_t ties = 0;
  for (const double total : totals) ties += total == max ? 1 : 0;
  uint32_t skip = ties > 1 ? ctx.random.below(ties) : 0;
  for (size_t i = 0; i < totals.size(); ++i) {
    if (totals[i] == max && skip-- == 0) return candidates[i];
  }
  return candidates[0];
}

}  // namespace

std::span<const Candidate> MaxScorePicker::pick(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                                std::span<const double> totals) const {
  const size_t count = params_.count(candidates.size());
  if (count == 0) return {};
  if (count == 1) return ctx.arena.make_filled<Candidate>(1, best(ctx, candidates, totals));

  struct Ranked {
    double total;
    uint32_t shuffled;
    Candidate candidate;
  };
  const std::span<const uint32_t> order = shuffled_indices(ctx, candidates.size());
  std::span<Ranked> ranked = ctx.arena.make_span<Ranked>(candidates.size());
  for (uint32_t i = 0; i < order.size(); ++i) ranked[i] = {totals[order[i]], i, candidates[order[i]]};
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<ptrdiff_t>(count), ranked.end(),
                    [](const Ranked& a, const Ranked& b) {
                      return a.total != b.total ? a.total > b.total : a.shuffled < b.shuffled;
                    });
  std::span<Candidate> out = ctx.arena.make_span<Candidate>(count);
  for (size_t i = 0; i < count; ++i) out[i] = ranked[i].candidate;
  return out;
}

}  // namespace penstock::scheduling
