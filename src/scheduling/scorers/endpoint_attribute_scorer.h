#pragma once

#include "inference/plugin.h"
#include "scheduling/endpoint_attribute.h"

namespace penstock::scheduling {

// `endpoint-attribute-scorer`: scores a scraped number v linearly. Over a fixed range:
// clamp((v - min) / (max - min), 0, 1); over the range of the candidates that have it (adaptive, the
// default): the same, 1 for all where they are equal; turned round where lower is better. Without the number:
// 0. Examples: fixed 0 to 1, lower is better: 0.3 -> 0.7, -1 -> 1, 2 -> 0; adaptive over {10, 20, 40}: lower
// {1, 0.6667, 0}, higher {0, 0.3333, 1}; {5, 5, missing}: {1, 1, 0}.
class EndpointAttributeScorer final : public Scorer {
 public:
  static constexpr std::string_view kType = "endpoint-attribute-scorer";
  struct Params {
    EndpointAttributeKey attribute;
    bool lower_is_better = true;
    bool fixed = false;
    double min = 0;
    double max = 0;
  };
  static void bind(config::Binder& b, Params& p);
  explicit EndpointAttributeScorer(Params params) : params_(std::move(params)) {}

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;
  AttributeSlot aging_attribute() const override { return slot_; }

 private:
  Params params_;
  AttributeSlot slot_ = kNoSlot;
};

}  // namespace penstock::scheduling
