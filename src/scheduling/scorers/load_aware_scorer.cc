#include "scheduling/scorers/load_aware_scorer.h"

#include <algorithm>

#include "scheduling/number_text.h"
#include "scheduling/signal_column.h"

namespace penstock::scheduling {

void LoadAwareScorer::bind(config::Binder& b, Params& p) {
  b.field("threshold", p.threshold, "requests",
          "Waiting requests at which the score reaches 0. Values below 1 count as 128.");
}

LoadAwareScorer::LoadAwareScorer(Params params) : threshold_(params.threshold > 0 ? params.threshold : 128) {}

void LoadAwareScorer::declare_data(DataDeclaration& declaration) const {
  declaration.require<SignalValue>(data_keys::kWaitingQueueSize);
}

void LoadAwareScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                            std::span<double> scores) const {
  const SignalColumn waiting = gather(ctx, candidates, Signal::kWaitingRequests);
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = 0.5 * (1.0 - std::clamp(waiting.values[i], 0.0, threshold_) / threshold_);
  }
}

void LoadAwareScorer::explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const {
  append_signal(ctx, candidate, Signal::kWaitingRequests, out);
  out += ", threshold ";
  append_number(out, threshold_);
  out += " requests";
}

}  // namespace penstock::scheduling
