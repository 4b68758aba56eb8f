#pragma once

#include "inference/plugin.h"
#include "scheduling/pickers/picker_params.h"

namespace penstock::scheduling {

// `near-tie-picker`, Penstock's own: totals that hardly differ are no reason to send everybody to the same
// endpoint. Of the candidates within epsilon of the best total (best - epsilon, or best * (1 - epsilon) with
// relative), two are drawn and the one with fewer tokens in flight is taken (then fewer requests, then the
// first drawn; both as the gateway itself counts them in EndpointLive, with those of other replicas where
// they are shared, so no producer is needed); with choice: random the first drawn. Further targets follow by
// total, best first. The draws come from the request's seed, so a replay repeats them. Example: totals
// {4.8, 4.79, 1}, epsilon 0.05, tokens in flight {900, 100, 0}: the second.
class NearTiePicker final : public Picker {
 public:
  static constexpr std::string_view kType = "near-tie-picker";
  struct Params {
    PickerParams common;
    double epsilon = 0.05;
    bool relative = false;
    bool random = false;
  };
  static void bind(config::Binder& b, Params& p);
  explicit NearTiePicker(const Params& params) : params_(params) {}

  std::span<const Candidate> pick(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                  std::span<const double> totals) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;
  size_t max_targets() const override { return params_.common.limit(); }

 private:
  Params params_;
};

}  // namespace penstock::scheduling
