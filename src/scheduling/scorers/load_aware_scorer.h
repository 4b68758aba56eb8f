#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `load-aware-scorer`: an absolute measure of the waiting queue q. q = 0: 0.5; else
// 0.5 * (1 - min(q, T) / T) with T = threshold. Unknown queues: see SignalColumn.
// Example, T = 128: {0, 1, 64, 128, 500} give {0.5, 0.49609375, 0.25, 0, 0}.
class LoadAwareScorer final : public Scorer {
 public:
  struct Params {
    int threshold = 128;  // requests
  };
  static void bind(config::Binder& b, Params& p);
  explicit LoadAwareScorer(Params params);

  void declare_data(DataDeclaration& declaration) const override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;

 private:
  double threshold_;
};

}  // namespace penstock::scheduling
