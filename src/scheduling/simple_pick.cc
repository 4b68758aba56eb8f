#include "scheduling/simple_pick.h"

#include <algorithm>

namespace penstock::scheduling {

std::span<const Candidate> SimplePick::pick(SimpleChoice choice, SchedulingContext& ctx,
                                            std::span<const Candidate> candidates, size_t count,
                                            std::span<double> scores) {
  const size_t n = candidates.size();
  const uint64_t turn =
      ctx.explain ? turn_.load(std::memory_order_relaxed) : turn_.fetch_add(1, std::memory_order_relaxed);
  struct Ranked {
    uint64_t requests;
    uint32_t turns;  // until this candidate's turn comes
    Candidate candidate;
  };
  const std::span<Ranked> ranked = ctx.arena.make_span<Ranked>(n);
  for (uint32_t i = 0; i < n; ++i) {
    const EndpointLive& live = *ctx.pool.endpoints[candidates[i]]->live;
    const uint64_t requests = choice == SimpleChoice::kLeastInFlight ? live.in_flight().requests : 0;
    scores[i] = 1.0 / (1.0 + static_cast<double>(requests));
    ranked[i] = {requests, static_cast<uint32_t>((i + n - turn % n) % n), candidates[i]};
  }
  count = std::min(count, n);
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<ptrdiff_t>(count), ranked.end(),
                    [](const Ranked& a, const Ranked& b) {
                      return a.requests != b.requests ? a.requests < b.requests : a.turns < b.turns;
                    });
  const std::span<Candidate> out = ctx.arena.make_span<Candidate>(count);
  for (size_t i = 0; i < count; ++i) out[i] = ranked[i].candidate;
  return out;
}

}  // namespace penstock::scheduling
