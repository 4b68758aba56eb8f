#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `queue-scorer`: prefers short waiting queues. score = (max - q) / (max - min) over the candidates'
// waiting requests; all equal: 1 for each. Takes no parameters. Unknown queues: see SignalColumn.
// Example: {0, 5, 10} waiting give {1, 0.5, 0}.
class QueueScorer final : public Scorer {
 public:
  static constexpr std::string_view kType = "queue-scorer";

  void declare_data(DataDeclaration& declaration) const override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;
};

}  // namespace penstock::scheduling
