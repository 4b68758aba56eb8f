#pragma once

#include "inference/plugin.h"
#include "scheduling/pickers/picker_params.h"

namespace penstock::scheduling {

// `random-picker`: a uniformly random choice of maxNumOfEndpoints candidates in random order; totals are
// ignored. Example: of 4 candidates each is the destination of a quarter of the requests.
class RandomPicker final : public Picker {
 public:
  using Params = PickerParams;
  static void bind(config::Binder& b, Params& p) { PickerParams::bind(b, p); }
  explicit RandomPicker(Params params) : params_(params) {}

  std::span<const Candidate> pick(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                  std::span<const double> totals) const override;
  size_t max_targets() const override { return params_.limit(); }

 private:
  Params params_;
};

// The choice itself, for other pickers' fallback.
std::span<const Candidate> pick_uniformly(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                          size_t count);

}  // namespace penstock::scheduling
