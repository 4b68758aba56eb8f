#pragma once

#include "inference/plugin.h"
#include "scheduling/pickers/picker_params.h"

namespace penstock::scheduling {

// `weighted-random-picker`: random without replacement, each draw in proportion to the totals (weighted
// reservoir sampling A-Res, Efraimidis and Spirakis 2006): key = u^(1/total) with u uniform in [0, 1), the
// largest keys first. A total <= 0 has key 0: such a candidate comes only after all positive ones. Without
// any positive total: as random-picker.
// Example: u = 0.5 and total 2 give 0.70710678; totals 1 and 3 are picked in a quarter and three quarters
// of the requests.
class WeightedRandomPicker final : public Picker {
 public:
  using Params = PickerParams;
  static void bind(config::Binder& b, Params& p) { PickerParams::bind(b, p); }
  explicit WeightedRandomPicker(Params params) : params_(params) {}

  std::span<const Candidate> pick(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                  std::span<const double> totals) const override;
  size_t max_targets() const override { return params_.limit(); }

  // The key of one draw. A `u` of 0 counts as 1e-10.
  static double key(double u, double total);

 private:
  Params params_;
};

}  // namespace penstock::scheduling
