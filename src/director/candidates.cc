#include "director/candidates.h"

#include <algorithm>
#include <string_view>

namespace penstock::director {

namespace {

bool has(std::span<const EndpointSlot> slots, EndpointSlot slot) {
  return std::find(slots.begin(), slots.end(), slot) != slots.end();
}

}  // namespace

void TrialClaims::give_back(Candidate but, Candidate and_but) {
  Claim* kept = nullptr;
  for (Claim* claim = first_; claim != nullptr;) {
    Claim* next = claim->next;
    if (claim->candidate == but || claim->candidate == and_but) {
      claim->next = kept;
      kept = claim;
    } else {
      HealthWatch::give_back(*claim->live);
    }
    claim = next;
  }
  first_ = kept;
}

bool TrialClaims::has(Candidate candidate) const {
  for (const Claim* claim = first_; claim != nullptr; claim = claim->next) {
    if (claim->candidate == candidate) return true;
  }
  return false;
}

void CandidateFinder::note_members(const std::shared_ptr<const PoolSnapshot>& pool) {
  reach_of_ = pool;
  reach_.clear();
  for (const std::shared_ptr<const Endpoint>& endpoint : pool->endpoints) {
    reach_.push_back({endpoint->live.get(), endpoint->slot, endpoint->draining});
  }
}

CandidateFinder::Found CandidateFinder::find(const std::shared_ptr<const PoolSnapshot>& pool,
                                             const Wanted& wanted, TimePoint now, Arena& arena,
                                             TrialClaims* claims, bool ejected_too) {
  if (reach_of_ != pool) note_members(pool);
  std::span<Candidate> candidates = arena.make_span<Candidate>(reach_.size());
  std::span<const bool> allowed;
  if (wanted.subset) allowed = allowed_by(*wanted.subset, *pool, arena);
  const bool anybody = !wanted.subset && wanted.excluded.empty();
  const auto may_have = [&](Candidate c) {
    return anybody || ((!wanted.subset || allowed[c]) && !has(wanted.excluded, reach_[c].slot));
  };
  Found found;
  found.of_pool = wanted.excluded.empty();
  LeftOut& left_out = found.left_out;
  PoolSize size;
  size_t count = 0;
  size_t trials = 0;
  for (Candidate c = 0; c < reach_.size(); ++c) {
    EndpointLive& live = *reach_[c].live;
    const bool out = live.ejected_until_ns.load(std::memory_order_relaxed) != 0;
    // Whoever drains gets no new work, whose engine sleeps can do none.
    if (reach_[c].draining || live.asleep.load(std::memory_order_relaxed)) {
      ++(reach_[c].draining ? left_out.draining : left_out.asleep);
      if (out) ++size.others_out;
      continue;
    }
    ++size.endpoints;
    if (!may_have(c)) {
      found.of_pool = false;
      continue;
    }
    if (out && !ejected_too) {
      const HealthWatch::Entry entry = health_.admit(live, now, claims != nullptr);
      if (entry == HealthWatch::Entry::kEjected) ++left_out.ejected;
      if (entry == HealthWatch::Entry::kOnTrial) ++left_out.on_trial;
      if (entry == HealthWatch::Entry::kEjected || entry == HealthWatch::Entry::kOnTrial) continue;
      if (entry == HealthWatch::Entry::kTrial) {
        ++trials;
        if (claims != nullptr) claims->add(c, live);
      }
    }
    candidates[count++] = c;
  }
  health_.set_size(size);
  found.nobody_healthy =
      ejected_too || (count == trials && trials + left_out.ejected + left_out.on_trial != 0);
  if (count == 0 && found.nobody_healthy) {
    for (Candidate c = 0; c < reach_.size(); ++c) {
      if (reach_[c].draining || reach_[c].live->asleep.load(std::memory_order_relaxed)) continue;
      if (may_have(c)) candidates[count++] = c;
    }
  }
  found.candidates = candidates.first(count);
  return found;
}

bool CandidateFinder::may_have(const PoolSnapshot& pool, const Wanted& wanted, Candidate candidate,
                               Arena& arena) {
  if (wanted.subset && !allowed_by(*wanted.subset, pool, arena)[candidate]) return false;
  return !has(wanted.excluded, pool.endpoints[candidate]->slot);
}

std::span<Candidate> CandidateFinder::with_bound(const SchedulingContext& ctx, const Wanted& wanted,
                                                 std::span<const SessionHolder* const> holders) const {
  const auto& endpoints = ctx.pool.endpoints;
  std::span<Candidate> all = ctx.arena.make_span<Candidate>(endpoints.size());
  size_t count = ctx.candidates.size();
  std::copy(ctx.candidates.begin(), ctx.candidates.end(), all.begin());
  std::span<const bool> allowed;
  if (wanted.subset) allowed = allowed_by(*wanted.subset, ctx.pool, ctx.arena);
  for (const SessionHolder* holder : holders) {
    const std::string_view bound = holder->bound_endpoint(ctx);
    if (bound.empty()) continue;
    // The snapshot is ordered by id, and so are the candidates.
    const auto found = std::lower_bound(
        endpoints.begin(), endpoints.end(), bound,
        [](const std::shared_ptr<const Endpoint>& e, std::string_view id) { return e->id < id; });
    if (found == endpoints.end() || (*found)->id != bound || !(*found)->draining) continue;
    const Endpoint& endpoint = **found;
    const auto c = static_cast<Candidate>(found - endpoints.begin());
    if (wanted.subset && !allowed[c]) continue;
    if (has(wanted.excluded, endpoint.slot)) continue;
    // One that fails or sleeps serves no session either.
    if (endpoint.live->asleep.load(std::memory_order_relaxed)) continue;
    if (health_.on() && endpoint.live->ejected_until_ns.load(std::memory_order_relaxed) != 0) continue;
    const auto end = all.begin() + static_cast<ptrdiff_t>(count);
    const auto at = std::lower_bound(all.begin(), end, c);
    if (at != end && *at == c) continue;
    std::copy_backward(at, end, end + 1);
    *at = c;
    ++count;
  }
  return all.first(count);
}

}  // namespace penstock::director
