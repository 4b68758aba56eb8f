#pragma once

#include "inference/plugin.h"
#include "scheduling/endpoint_attribute.h"

namespace penstock::scheduling {

// `endpoint-attribute-filter`: keeps endpoints whose scraped number compares as wanted with a threshold.
// An endpoint without the number passes, or not with onMissing: Fail. Nobody left and fallbackOnEmpty: all
// stay. A value that is no number fails every comparison but NotEqual.
// Example, LessThan 0.8 over {0.5, 0.8, missing}: the first and the last; with onMissing: Fail the first.
class EndpointAttributeFilter final : public Filter {
 public:
  static constexpr std::string_view kType = "endpoint-attribute-filter";
  enum class Operator : uint8_t {
    kLessThan,
    kLessThanOrEqual,
    kGreaterThan,
    kGreaterThanOrEqual,
    kEqual,
    kNotEqual
  };
  struct Params {
    EndpointAttributeKey attribute;
    bool keep_missing = true;
    bool fallback_on_empty = false;
    Operator op = Operator::kLessThan;
    double threshold = 0;
  };
  static void bind(config::Binder& b, Params& p);
  explicit EndpointAttributeFilter(Params params) : params_(std::move(params)) {}

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const override;

 private:
  bool holds(double value) const;

  Params params_;
  AttributeSlot slot_ = kNoSlot;
};

}  // namespace penstock::scheduling
