#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `lora-affinity-scorer`: prefers endpoints that have the request's adapter (its target model) in use.
// Running there: 1; else fewer adapters running and waiting than the engine's maximum: 0.8; else waiting
// there: 0.6; else 0. Takes no parameters. An endpoint without LoRA information has maximum 0 and scores 0.
// Examples: running {a, b} of 2: a 1, c 0; running {a} of 2, waiting {c}: c 0.6; none running of 2: c 0.8.
class LoraAffinityScorer final : public Scorer {
 public:
  static constexpr std::string_view kType = "lora-affinity-scorer";

  void declare_data(DataDeclaration& declaration) const override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;
};

}  // namespace penstock::scheduling
