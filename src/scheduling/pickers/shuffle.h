#pragma once

#include <span>
#include <utility>

#include "inference/plugin.h"

namespace penstock::scheduling {

// The first `count` numbers of a uniformly random permutation of [0, n), by Fisher-Yates; all n lie in the
// result, those behind `count` in an order that is not uniform. In ctx.arena.
inline std::span<uint32_t> shuffled_indices(SchedulingContext& ctx, size_t n, size_t count) {
  std::span<uint32_t> order = ctx.arena.make_span<uint32_t>(n);
  for (uint32_t i = 0; i < n; ++i) order[i] = i;
  for (size_t i = 0; i < count && i + 1 < n; ++i) {
    std::swap(order[i], order[i + ctx.random.below(static_cast<uint32_t>(n - i))]);
  }
  return order;
}
inline std::span<uint32_t> shuffled_indices(SchedulingContext& ctx, size_t n) {
  return shuffled_indices(ctx, n, n);
}

}  // namespace penstock::scheduling
