#pragma once

#include "inference/plugin.h"
#include "scheduling/pickers/picker_params.h"

namespace penstock::scheduling {

// `max-score-picker`: the highest totals, first maxNumOfEndpoints of them. Equal totals are ordered
// uniformly at random: the distribution is that of a uniform shuffle followed by a stable sort.
// Example: totals A 2.2, B 4.1, C 4.8 give C; with maxNumOfEndpoints 2, C then B.
class MaxScorePicker final : public Picker {
 public:
  using Params = PickerParams;
  static void bind(config::Binder& b, Params& p) { PickerParams::bind(b, p); }
  explicit MaxScorePicker(Params params) : params_(params) {}

  std::span<const Candidate> pick(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                  std::span<const double> totals) const override;
  size_t max_targets() const override { return params_.limit(); }

 private:
  Params params_;
};

}  // namespace penstock::scheduling
