#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <span>

#include "inference/plugin.h"

// What becomes of one scorer's scores: a row, one score a candidate.
namespace penstock::scheduling {

// What a row holds before its scorer runs: a NaN that no arithmetic makes, so that a score left out is told
// from one that is no number. All its bytes are alike, for the sake of mark_missing().
inline constexpr double kMissingScore = std::bit_cast<double>(~uint64_t{0});
// Fills rows with it.
void mark_missing(std::span<double> rows);

// Scores that were outside of what a scorer promises. Each counts as 0.
struct ScoreFaults {
  uint32_t not_a_number = 0;
  uint32_t negative = 0;
  uint32_t missing = 0;

  bool any() const { return (not_a_number | negative | missing) != 0; }
};

// Clamps every score of the row to [0, 1]; below 0, NaN and missing ones become 0 and are told of.
ScoreFaults clamp_row(std::span<double> row);
// The same, and total += score * weight.
ScoreFaults clamp_and_add_row(std::span<double> row, double weight, std::span<double> totals);

// Lets old values speak less: with w the influence of the signals that the scorer read (freshness.h) and
// `mean` = sum(w * score) / sum(w) over the candidates that have them,
//
//   score' = mean + w * (score - mean)
//
// so a fresh score stays, one of influence 0.5 goes half of the way to the mean, and near the second bound it
// neither draws nor repels. A candidate whose value is unknown (w = 0) keeps the score that the scorer gives
// to unknown ones. Candidates with equal scores and influences stay equal.
// Example: scores 1, 0.2, 0, influences 0.5, 1, 1: mean = 0.7 / 2.5 = 0.28, the first becomes 0.64.
// REQUIRES: the row is clamped; ctx.freshness.
// `attribute`: a column of EndpointScalar that was read too, or kNoSlot.
void fade_row(SchedulingContext& ctx, SignalSet signals, AttributeSlot attribute,
              std::span<const Candidate> candidates, std::span<double> row);

// total += score * weight, held within +-max_contribution. REQUIRES: the row is clamped.
void add_row(std::span<const double> row, double weight, double max_contribution, std::span<double> totals);

}  // namespace penstock::scheduling
