#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "base/arena.h"
#include "base/clock.h"
#include "inference/endpoint.h"
#include "inference/freshness.h"

namespace penstock {

inline constexpr size_t kRecordedCandidates = 8;
inline constexpr size_t kMaxScorersRecorded = 16;
inline constexpr size_t kMaxFiltersRecorded = 16;

// One candidate of one profile run: its weighted total and the clamped scores of the first
// kMaxScorersRecorded scorers, in the order of the profile.
struct CandidateRecord {
  std::string_view endpoint_id;
  Candidate candidate = 0;
  double total = 0;
  std::span<const float> scores;
};

struct FilterRecord {
  std::string_view plugin_name;
  uint32_t before = 0;
  uint32_t after = 0;
};

struct ScorerRecord {
  std::string_view plugin_name;
  double weight = 1.0;
  double max_contribution = std::numeric_limits<double>::infinity();
};

// What one profile run did. Plain data in the request's arena, always written.
struct ProfileRecord {
  std::string_view profile_name;
  std::span<const FilterRecord> filters;
  std::span<const ScorerRecord> scorers;
  std::span<const CandidateRecord> top;  // best kRecordedCandidates by total; all of them when explaining
  std::string_view picker_name;
  std::string_view picked;  // endpoint id, empty when none
  uint32_t candidates = 0;
  // Scores that counted as 0 because they were no number, below 0, or left out by their scorer.
  uint32_t nan_scores = 0;
  uint32_t negative_scores = 0;
  uint32_t missing_scores = 0;
  // Candidates with fresh values of all signals that the profile needs; counted when not all have.
  uint32_t fresh = 0;
  SimpleChoice simple = SimpleChoice::kNone;  // decided instead of scorers and picker
};

// State of the decision as a whole: anything but kNone has a metric and one log line when it begins.
enum class FallbackState : uint8_t {
  kNone,
  kNoFreshSignals,      // no candidate has a fresh value of a required signal
  kTooFewFreshSignals,  // too few have: the simple choice of Freshness::fallback decided
  kProducerFailed,      // a data producer failed; its consumers used their fallback
  kNoEndpoint,
  kAllEjected,  // every candidate is ejected or half-open: one of them gets the request all the same
  kAllAsleep,   // every candidate's engine sleeps
  kOverTime,    // the request could not be decided before its deadline
};
std::string_view fallback_state_name(FallbackState state);

// Endpoints of the pool that were no candidates, by the first reason that holds.
struct LeftOut {
  uint32_t draining = 0;
  uint32_t asleep = 0;
  uint32_t ejected = 0;   // they failed lately
  uint32_t on_trial = 0;  // half-open, and the one request they get is on its way

  bool any() const { return draining + asleep + ejected + on_trial != 0; }
};

// In which state the winner was picked.
enum class PickedAs : uint8_t {
  kHealthy,
  kTrial,       // half-open: this request decides whether it comes back
  kLastResort,  // ejected, and so was everybody else
  kSession,     // draining, and the request's session is bound to it
  kHolder,      // whatever its state: it alone has the stored response that the request goes on from
};
std::string_view picked_as_name(PickedAs as);

// Why a request went where it went. Views point into the request's arena or into immutable objects that
// outlive the request; telemetry copies what it keeps.
struct DecisionRecord {
  std::string_view request_id;
  std::string_view pool;
  std::string_view incoming_model;
  std::string_view target_model;
  std::string_view identity;
  std::string_view fairness_id;
  int priority = 0;

  // The five moments of a request; kNever while not reached.
  TimePoint arrived_at = kNever;
  TimePoint pool_chosen_at = kNever;
  TimePoint decision_started_at = kNever;
  TimePoint endpoint_chosen_at = kNever;
  TimePoint first_token_at = kNever;

  uint64_t seed = 0;  // of the request's Random
  uint64_t policy_epoch = 0;
  uint64_t membership_epoch = 0;
  uint64_t signal_epoch = 0;
  Duration queue_time{0};
  // Of the oldest signal that the winner's scorers need; Duration::max() when one of them was never observed.
  Duration oldest_signal_age{0};
  FallbackState fallback = FallbackState::kNone;
  LeftOut left_out;
  PickedAs picked_as = PickedAs::kHealthy;
  uint64_t prompt_tokens = 0;
  uint32_t prefix_blocks_matched = 0;  // on the winner
  uint32_t prefix_blocks_total = 0;

  std::span<const ProfileRecord> profiles;
  std::string_view primary_profile;
  std::string_view winner;  // endpoint id, empty when none
  std::string_view winner_host_port;
};

}  // namespace penstock
