#pragma once

#include <string>
#include <vector>

#include "inference/plugin.h"

namespace penstock::scheduling {

// A Kubernetes label selector: every requirement must hold.
// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
struct LabelRequirement {
  enum class Operator : uint8_t { kIn, kNotIn, kExists, kDoesNotExist };
  std::string key;
  Operator op = Operator::kIn;
  std::vector<std::string> values;

  // NotIn also holds where the label is absent.
  bool holds(const Endpoint& endpoint) const;
};

// `label-selector-filter` (older name `by-label-selector`): keeps endpoints whose labels the selector
// matches; an empty selector matches all.
// Examples: {matchLabels: {a: "1"}} keeps {a: 1}, drops {a: 2} and {}; {matchExpressions: [{key: r,
// operator: NotIn, values: [x]}]} keeps {}, drops {r: x}.
class LabelSelectorFilter final : public Filter {
 public:
  struct Params {
    std::vector<LabelRequirement> requirements;
  };
  static void bind(config::Binder& b, Params& p);
  explicit LabelSelectorFilter(Params params) : requirements_(std::move(params.requirements)) {}

  size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const override;

 private:
  std::vector<LabelRequirement> requirements_;
};

}  // namespace penstock::scheduling
