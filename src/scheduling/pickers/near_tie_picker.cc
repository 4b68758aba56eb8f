#include "scheduling/pickers/near_tie_picker.h"

#include <algorithm>
#include <cmath>

#include "scheduling/number_text.h"

namespace penstock::scheduling {

void NearTiePicker::bind(config::Binder& b, Params& p) {
  PickerParams::bind(b, p.common);
  b.field("epsilon", p.epsilon, "", "How far below the best total still counts as a tie, at least 0.");
  b.field("relative", p.relative, "", "epsilon is a share of the best total, at most 1.");
  std::string choice = "least-in-flight";
  b.field("choice", choice, "",
          "least-in-flight (of two drawn the one with fewer tokens in flight) or random.");
  if (b.describing()) return;
  if (!(p.epsilon >= 0) || !std::isfinite(p.epsilon) || (p.relative && p.epsilon > 1))
    b.fail("epsilon", "must be at least 0, and at most 1 where relative");
  p.random = choice == "random";
  if (!p.random && choice != "least-in-flight")
    b.fail("choice", "must be \"least-in-flight\" or \"random\", got \"" + choice + "\"");
}

std::span<const Candidate> NearTiePicker::pick(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                               std::span<const double> totals) const {
  const size_t count = params_.common.count(candidates.size());
  if (count == 0) return {};
  const double best = *std::max_element(totals.begin(), totals.end());
  const double floor = params_.relative ? best - std::abs(best) * params_.epsilon : best - params_.epsilon;
  const std::span<uint32_t> tied = ctx.arena.make_span<uint32_t>(candidates.size());
  uint32_t ties = 0;
  for (uint32_t i = 0; i < totals.size(); ++i) {
    if (totals[i] >= floor) tied[ties++] = i;
  }
  const uint32_t first = ctx.random.below(ties);
  uint32_t winner = tied[first];
  if (ties > 1 && !params_.random) {
    // Another than the first, each equally likely.
    const uint32_t second = tied[(first + 1 + ctx.random.below(ties - 1)) % ties];
    const auto load = [&](uint32_t i) {
      const EndpointLive::InFlight load = ctx.pool.endpoints[candidates[i]]->live->in_flight();
      return std::pair(load.tokens, load.requests);
    };
    if (load(second) < load(winner)) winner = second;
  }
  const std::span<Candidate> out = ctx.arena.make_span<Candidate>(count);
  out[0] = candidates[winner];
  if (count == 1) return out;
  const std::span<uint32_t> rest = ctx.arena.make_span<uint32_t>(candidates.size());
  size_t others = 0;
  for (uint32_t i = 0; i < candidates.size(); ++i) {
    if (i != winner) rest[others++] = i;
  }
  std::partial_sort(rest.begin(), rest.begin() + static_cast<ptrdiff_t>(count - 1),
                    rest.begin() + static_cast<ptrdiff_t>(others), [&](uint32_t a, uint32_t b) {
                      return totals[a] != totals[b] ? totals[a] > totals[b] : a < b;
                    });
  for (size_t i = 1; i < count; ++i) out[i] = candidates[rest[i - 1]];
  return out;
}

void NearTiePicker::explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const {
  if (params_.random) return;
  const EndpointLive::InFlight load = ctx.pool.endpoints[candidate]->live->in_flight();
  append_number(out, load.tokens);
  out += " tokens in flight, ";
  append_number(out, load.requests);
  out += " requests";
}

}  // namespace penstock::scheduling
