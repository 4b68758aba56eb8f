#include "scheduling/score_row.h"

#include <algorithm>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace penstock::scheduling {

namespace {

[[gnu::noinline]] void count_fault(double score, ScoreFaults& faults) {
  const bool missing = std::bit_cast<uint64_t>(score) == std::bit_cast<uint64_t>(kMissingScore);
  ++(score < 0 ? faults.negative : missing ? faults.missing : faults.not_a_number);
}

// One score as it counts.
double proper(double score, ScoreFaults& faults) {
  if (!(score >= 0)) [[unlikely]] {
    count_fault(score, faults);
    return 0;
  }
  return score < 1 ? score : 1;
}

}  // namespace

void mark_missing(std::span<double> rows) {
  if (!rows.empty()) std::memset(rows.data(), 0xFF, rows.size_bytes());
}

ScoreFaults clamp_row(std::span<double> row) {
  ScoreFaults faults;
  for (double& score : row) score = proper(score, faults);
  return faults;
}

ScoreFaults clamp_and_add_row(std::span<double> row, double weight, std::span<double> totals) {
  ScoreFaults faults;
  const auto one = [&](size_t i) {
    row[i] = proper(row[i], faults);
    totals[i] += row[i] * weight;
  };
  size_t i = 0;
#if defined(__SSE2__)
  // Four at once, with the same results; one that is no proper score sends its four the long way.
  const __m128d least = _mm_setzero_pd();
  const __m128d most = _mm_set1_pd(1);
  const __m128d by = _mm_set1_pd(weight);
  for (; i + 4 <= row.size(); i += 4) {
    const __m128d a = _mm_loadu_pd(&row[i]);
    const __m128d b = _mm_loadu_pd(&row[i + 2]);
    if (_mm_movemask_pd(_mm_or_pd(_mm_cmpnge_pd(a, least), _mm_cmpnge_pd(b, least))) != 0) [[unlikely]] {
      for (size_t k = i; k < i + 4; ++k) one(k);
      continue;
    }
    const __m128d score_a = _mm_min_pd(a, most);
    const __m128d score_b = _mm_min_pd(b, most);
    _mm_storeu_pd(&row[i], score_a);
    _mm_storeu_pd(&row[i + 2], score_b);
    _mm_storeu_pd(&totals[i], _mm_add_pd(_mm_loadu_pd(&totals[i]), _mm_mul_pd(score_a, by)));
    _mm_storeu_pd(&totals[i + 2], _mm_add_pd(_mm_loadu_pd(&totals[i + 2]), _mm_mul_pd(score_b, by)));
  }
#endif
  for (; i < row.size(); ++i) one(i);
  return faults;
}

void fade_row(SchedulingContext& ctx, SignalSet signals, AttributeSlot attribute,
              std::span<const Candidate> candidates, std::span<double> row) {
  const Freshness& freshness = *ctx.freshness;
  const std::span<const EndpointScalar> column = ctx.attributes.column<EndpointScalar>(attribute);
  const std::span<double> influence = ctx.arena.make_span<double>(candidates.size());
  double weights = 0;
  double mean = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate c = candidates[i];
    influence[i] = freshness.influence(ctx.signals, signals, c, ctx.now);
    if (!column.empty()) {
      const Duration age = ctx.now - column[c].observed_at;
      influence[i] = std::min(influence[i], column[c].known ? freshness.attributes.influence(age) : 0.0);
    }
    weights += influence[i];
    mean += influence[i] * row[i];
  }
  if (!(weights > 0)) return;
  mean /= weights;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (influence[i] > 0 && influence[i] < 1) row[i] = mean + influence[i] * (row[i] - mean);
  }
}

void add_row(std::span<const double> row, double weight, double max_contribution, std::span<double> totals) {
  for (size_t i = 0; i < row.size(); ++i) {
    totals[i] += std::clamp(row[i] * weight, -max_contribution, max_contribution);
  }
}

}  // namespace penstock::scheduling
