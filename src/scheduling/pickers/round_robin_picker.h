#pragma once

#include <atomic>

#include "inference/plugin.h"
#include "scheduling/pickers/picker_params.h"

namespace penstock::scheduling {

// `round-robin-picker`, ours: candidates in turn, totals ignored; the baseline that demo and benchmarks
// compare with. The n-th pick (from 0) over c candidates takes candidate n mod c, then the following ones
// as fallbacks. All loops share one counter, so the turn is fair over loops and no loop starts over at
// candidate 0. Explaining takes no turn. Example: picks over A, B, C go A, B, C, A.
class RoundRobinPicker final : public Picker {
 public:
  using Params = PickerParams;
  static void bind(config::Binder& b, Params& p) { PickerParams::bind(b, p); }
  explicit RoundRobinPicker(Params params) : params_(params) {}

  std::span<const Candidate> pick(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                  std::span<const double> totals) const override;
  size_t max_targets() const override { return params_.limit(); }

 private:
  Params params_;
  alignas(64) mutable std::atomic<uint64_t> turn_{0};
};

}  // namespace penstock::scheduling
