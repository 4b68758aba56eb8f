#include "scheduling/scorers/queue_scorer.h"

#include "scheduling/signal_column.h"

namespace penstock::scheduling {

void QueueScorer::declare_data(DataDeclaration& declaration) const {
  declaration.require<SignalValue>(data_keys::kWaitingQueueSize);
}

void QueueScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                        std::span<double> scores) const {
  score_least(gather(ctx, candidates, Signal::kWaitingRequests), scores);
}

void QueueScorer::explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const {
  append_signal(ctx, candidate, Signal::kWaitingRequests, out);
}

}  // namespace penstock::scheduling
