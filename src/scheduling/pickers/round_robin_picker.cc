#include "scheduling/pickers/round_robin_picker.h"

namespace penstock::scheduling {

std::span<const Candidate> RoundRobinPicker::pick(SchedulingContext& ctx,
                                                  std::span<const Candidate> candidates,
                                                  std::span<const double> /*totals*/) const {
  const size_t count = params_.count(candidates.size());
  if (count == 0) return {};
  const uint64_t turn =
      ctx.explain ? turn_.load(std::memory_order_relaxed) : turn_.fetch_add(1, std::memory_order_relaxed);
  const size_t first = turn % candidates.size();
  std::span<Candidate> out = ctx.arena.make_span<Candidate>(count);
  for (size_t i = 0; i < count; ++i) out[i] = candidates[(first + i) % candidates.size()];
  return out;
}

}  // namespace penstock::scheduling
