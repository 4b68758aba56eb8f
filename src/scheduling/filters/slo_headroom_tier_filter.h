#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `slo-headroom-tier-filter`: keeps the endpoints that are expected to meet both latency objectives
// (headrooms of at least 0), and with probability epsilonExploreNeg the others instead; endpoints without a
// prediction count among the others. One endpoint, no predictions at all, or one kind only: all stay.
// Example: A meets them, B has no prediction: epsilon 0 keeps A, epsilon 1 keeps B.
class SloHeadroomTierFilter final : public Filter {
 public:
  static constexpr std::string_view kType = "slo-headroom-tier-filter";
  struct Params {
    double epsilon = 0.01;  // probability
    std::string producer;
  };
  static void bind(config::Binder& b, Params& p);
  explicit SloHeadroomTierFilter(Params params);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const override;

 private:
  double epsilon_;
  DataKey key_;
  AttributeSlot slot_ = kNoSlot;
};

}  // namespace penstock::scheduling
