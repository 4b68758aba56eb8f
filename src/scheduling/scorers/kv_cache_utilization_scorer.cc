#include "scheduling/scorers/kv_cache_utilization_scorer.h"

#include "scheduling/signal_column.h"

namespace penstock::scheduling {

void KvCacheUtilizationScorer::declare_data(DataDeclaration& declaration) const {
  declaration.require<SignalValue>(data_keys::kKvCacheUsagePercent);
}

void KvCacheUtilizationScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                     std::span<double> scores) const {
  const SignalColumn usage = gather(ctx, candidates, Signal::kKvUsage);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = 1.0 - usage.values[i];
}

void KvCacheUtilizationScorer::explain(const SchedulingContext& ctx, Candidate candidate,
                                       std::string& out) const {
  append_signal(ctx, candidate, Signal::kKvUsage, out);
}

}  // namespace penstock::scheduling
