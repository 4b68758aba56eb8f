#pragma once

#include <optional>
#include <string>

#include "inference/plugin.h"

namespace penstock::scheduling {

// `context-length-aware`: prefers endpoints whose context range (a label "min-max" in tokens) fits the
// prompt; with enableFiltering it also is a filter that drops the others. ctx = prompt tokens, 0 when
// unknown.
//   Score: no label 0.5; unreadable label 0; in range with width = max - min: 1 for width 0, else
//   0.3 + 0.7 * (0.7 / (1 + width / 10000) + 0.3 * (max - ctx) / width); out of range by d tokens:
//   0.3 / (1 + d / 1000).
//   Filter: no label: kept; unreadable: dropped; else kept when min <= ctx <= max.
// Examples: ctx 1500 on "0-2048" 0.762898, on "2048-8192" 0.193798; ctx 0 on "0-10000" 0.755.
class ContextLengthAware final : public Scorer, public Filter {
 public:
  struct Params {
    std::string label = "llm-d.ai/context-length-range";
    bool filtering = false;
  };
  struct Range {
    int64_t min = 0;
    int64_t max = 0;
  };
  static void bind(config::Binder& b, Params& p);
  explicit ContextLengthAware(Params params) : params_(std::move(params)) {}

  void declare_data(DataDeclaration& declaration) const override;
  size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;

  // "min-max" with exactly one '-', blanks around the numbers allowed, min <= max; else nothing.
  static std::optional<Range> parse_range(std::string_view text);
  static double score_in(const Range& range, int64_t context_tokens);

 private:
  Params params_;
};

}  // namespace penstock::scheduling
