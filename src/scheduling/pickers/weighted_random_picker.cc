#include "scheduling/pickers/weighted_random_picker.h"

#include <algorithm>
#include <cmath>

#include "scheduling/pickers/random_picker.h"
#include "scheduling/pickers/shuffle.h"

namespace penstock::scheduling {

namespace {

// For one endpoint A-Res is a plain weighted choice: one draw and a running sum instead of n powers.
Candidate pick_one(SchedulingContext& ctx, std::span<const Candidate> candidates,
                   std::span<const double> totals, double sum) {
  double at = ctx.random.uniform() * sum;
  Candidate last = candidates[0];
  for (size_t i = 0; i < totals.size(); ++i) {
    if (!(totals[i] > 0)) continue;
    last = candidates[i];
    at -= totals[i];
    if (at < 0) break;
  }
  return last;  // rounding may leave `at` at 0 or above after the last one
}

}  // namespace

double WeightedRandomPicker::key(double u, double total) {
  if (!(total > 0)) return 0;
  return std::pow(u > 0 ? u : 1e-10, 1.0 / total);
}

std::span<const Candidate> WeightedRandomPicker::pick(SchedulingContext& ctx,
                                                      std::span<const Candidate> candidates,
                                                      std::span<const double> totals) const {
  const size_t count = params_.count(candidates.size());
  double sum = 0;
  for (const double total : totals) sum += total > 0 ? total : 0;
  if (!(sum > 0)) return pick_uniformly(ctx, candidates, count);
  if (count == 1) return ctx.arena.make_filled<Candidate>(1, pick_one(ctx, candidates, totals, sum));

  struct Keyed {
    double key;
    uint32_t shuffled;
    Candidate candidate;
  };
  const std::span<const uint32_t> order = shuffled_indices(ctx, candidates.size());
  std::span<Keyed> keyed = ctx.arena.make_span<Keyed>(candidates.size());
  for (uint32_t i = 0; i < order.size(); ++i) {
    keyed[i] = {key(ctx.random.uniform(), totals[order[i]]), i, candidates[order[i]]};
  }
  std::partial_sort(keyed.begin(), keyed.begin() + static_cast<ptrdiff_t>(count), keyed.end(),
                    [](const Keyed& a, const Keyed& b) {
                      return a.key != b.key ? a.key > b.key : a.shuffled < b.shuffled;
                    });
  std::span<Candidate> out = ctx.arena.make_span<Candidate>(count);
  for (size_t i = 0; i < count; ++i) out[i] = keyed[i].candidate;
  return out;
}

}  // namespace penstock::scheduling
