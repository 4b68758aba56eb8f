#pragma once

#include <vector>

#include "scheduling/test_support.h"

namespace penstock::scheduling {

inline std::vector<Candidate> pick(const Picker& picker, TestPool& pool, const std::vector<double>& totals) {
  const auto targets = picker.pick(*pool.context, pool.candidates, totals);
  return {targets.begin(), targets.end()};
}

// How often each candidate is the destination over `rounds` picks with seeds 1, 2, ….
inline std::vector<int> destinations(const Picker& picker, TestPool& pool, const std::vector<double>& totals,
                                     int rounds) {
  std::vector<int> count(totals.size(), 0);
  for (int i = 1; i <= rounds; ++i) {
    pool.restart(static_cast<uint64_t>(i));
    ++count[picker.pick(*pool.context, pool.candidates, totals)[0]];
  }
  return count;
}

}  // namespace penstock::scheduling
