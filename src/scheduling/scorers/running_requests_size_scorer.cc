#include "scheduling/scorers/running_requests_size_scorer.h"

#include "scheduling/signal_column.h"

namespace penstock::scheduling {

void RunningRequestsSizeScorer::declare_data(DataDeclaration& declaration) const {
  declaration.require<SignalValue>(data_keys::kRunningRequestsSize);
}

void RunningRequestsSizeScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                      std::span<double> scores) const {
  score_least(gather(ctx, candidates, Signal::kRunningRequests), scores);
}

void RunningRequestsSizeScorer::explain(const SchedulingContext& ctx, Candidate candidate,
                                        std::string& out) const {
  append_signal(ctx, candidate, Signal::kRunningRequests, out);
}

}  // namespace penstock::scheduling
