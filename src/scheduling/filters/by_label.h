#pragma once

#include <string>
#include <vector>

#include "inference/plugin.h"

namespace penstock::scheduling {

// Which values of one label an endpoint may have. An absent label counts as "" too.
struct LabelRule {
  std::string label;
  std::vector<std::string> valid_values;
  bool allows_no_label = false;

  bool accepts(const Endpoint& endpoint) const;
  // Keeps the accepted candidates in their order; returns how many.
  size_t apply(const SchedulingContext& ctx, std::span<Candidate> inout) const;
};

// `by-label`, deprecated for label-selector-filter: keeps an endpoint when its label has one of the valid
// values, or lacks the label and allowsNoLabel is set.
// Example: {label: role, validValues: [decode]} keeps {role: decode}, drops {role: prefill} and {}.
class ByLabel final : public Filter {
 public:
  using Params = LabelRule;
  static void bind(config::Binder& b, Params& p);
  explicit ByLabel(Params rule) : rule_(std::move(rule)) {}

  size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const override {
    return rule_.apply(ctx, inout);
  }

 private:
  LabelRule rule_;
};

}  // namespace penstock::scheduling
