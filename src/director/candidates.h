#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/clock.h"
#include "director/endpoint_health.h"
#include "director/subset.h"
#include "inference/decision.h"
#include "inference/endpoint.h"
#include "inference/plugin.h"
#include "inference/session_holder.h"

namespace penstock::director {

// Half-open endpoints among the candidates of one decision: each is claimed while the decision may still pick
// it, so that no other loop sends a second request there. What was not handed over is given back at the end.
class TrialClaims {
 public:
  explicit TrialClaims(Arena& arena) : arena_(arena) {}
  ~TrialClaims() { give_back(kNobody, kNobody); }
  TrialClaims(const TrialClaims&) = delete;
  TrialClaims& operator=(const TrialClaims&) = delete;

  // REQUIRES: HealthWatch::admit() has just claimed it.
  void add(Candidate candidate, EndpointLive& live) {
    first_ = arena_.make<Claim>(Claim{candidate, &live, first_});
  }
  static constexpr Candidate kNobody = ~Candidate{0};
  // Gives back all but those of `one` and `another`.
  void keep(Candidate one, Candidate another = kNobody) { give_back(one, another); }
  bool has(Candidate candidate) const;
  // The claims that were kept are somebody else's from now on.
  void hand_over() { first_ = nullptr; }

 private:
  struct Claim {
    Candidate candidate;
    EndpointLive* live;
    Claim* next;
  };
  void give_back(Candidate but, Candidate and_but);

  Arena& arena_;
  Claim* first_ = nullptr;
};

// Who of a pool may get a request, before any plugin is asked: membership, drain, sleep, health, and what the
// request itself may have. One loop's; not thread-safe.
class CandidateFinder {
 public:
  // `health` outlives it.
  explicit CandidateFinder(HealthWatch& health) : health_(health) {}

  // What one request may have.
  struct Wanted {
    std::optional<std::span<const SubsetEntry>> subset;  // nothing: everybody
    std::span<const EndpointSlot> excluded;              // whom it tried before
  };
  struct Found {
    std::span<Candidate> candidates;  // ascending, in the arena
    LeftOut left_out;
    // Nobody of those that the request may have is healthy. The candidates are half-open ones, or else all:
    // a bad chance is better than none.
    bool nobody_healthy = false;
    // It may have everybody who neither drains nor sleeps: what is found is true of the pool.
    bool of_pool = false;
  };
  // Trials among the candidates are claimed, unless `claims` is nullptr. `ejected_too`: nobody is left out
  // for its health; then there are no trials. REQUIRES: HealthWatch::begin(now).
  Found find(const std::shared_ptr<const PoolSnapshot>& pool, const Wanted& wanted, TimePoint now,
             Arena& arena, TrialClaims* claims, bool ejected_too = false);
  // Whether the request may have this endpoint, whatever its state.
  static bool may_have(const PoolSnapshot& pool, const Wanted& wanted, Candidate candidate, Arena& arena);
  // ctx.candidates and, in their places, draining endpoints that the request's session is bound to.
  std::span<Candidate> with_bound(const SchedulingContext& ctx, const Wanted& wanted,
                                  std::span<const SessionHolder* const> holders) const;

 private:
  // Follows the membership with reach_.
  void note_members(const std::shared_ptr<const PoolSnapshot>& pool);

  // What every decision asks of each endpoint, side by side; by Candidate.
  struct Reach {
    EndpointLive* live;
    EndpointSlot slot;
    bool draining;
  };
  HealthWatch& health_;
  std::shared_ptr<const PoolSnapshot> reach_of_;
  std::vector<Reach> reach_;
};

}  // namespace penstock::director
