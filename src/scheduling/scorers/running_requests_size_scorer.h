#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `running-requests-size-scorer`: prefers few running requests. score = (max - r) / (max - min) over the
// candidates' running requests; all equal: 1 for each. Takes no parameters. Unknown values: see
// SignalColumn. Example: {0, 5, 10} running give {1, 0.5, 0}.
class RunningRequestsSizeScorer final : public Scorer {
 public:
  static constexpr std::string_view kType = "running-requests-size-scorer";

  void declare_data(DataDeclaration& declaration) const override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;
};

}  // namespace penstock::scheduling
