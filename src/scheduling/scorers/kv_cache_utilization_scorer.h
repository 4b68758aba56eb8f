#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `kv-cache-utilization-scorer`: prefers free KV cache. score = 1 - usage, usage a ratio; the profile clamps
// it. Takes no parameters. Unknown usage: see SignalColumn.
// Example: {0, 0.3, 1, 1.2} give {1, 0.7, 0, -0.2}, the last clamped to 0.
class KvCacheUtilizationScorer final : public Scorer {
 public:
  static constexpr std::string_view kType = "kv-cache-utilization-scorer";

  void declare_data(DataDeclaration& declaration) const override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;
};

}  // namespace penstock::scheduling
