#include "scheduling/filters/endpoint_attribute_filter.h"

#include <algorithm>
#include <array>

#include "scheduling/nested_params.h"

namespace penstock::scheduling {

namespace {

using Operator = EndpointAttributeFilter::Operator;

struct OperatorName {
  std::string_view name;
  Operator op;
};
constexpr std::array<OperatorName, 6> kOperators{{{"LessThan", Operator::kLessThan},
                                                  {"LessThanOrEqual", Operator::kLessThanOrEqual},
                                                  {"GreaterThan", Operator::kGreaterThan},
                                                  {"GreaterThanOrEqual", Operator::kGreaterThanOrEqual},
                                                  {"Equal", Operator::kEqual},
                                                  {"NotEqual", Operator::kNotEqual}}};

}  // namespace

void EndpointAttributeFilter::bind(config::Binder& b, Params& p) {
  p.attribute.bind(b, "attribute", "Name of the scraped number.");
  std::string on_missing = "Pass";
  b.field("onMissing", on_missing, "", "What an endpoint without the number does: Pass or Fail.");
  b.field("fallbackOnEmpty", p.fallback_on_empty, "", "Keep all endpoints where none would be left.");
  std::string type;
  std::string op;
  bool has_threshold = false;
  nested(b, "algorithm",
         "{type: threshold, threshold: {operator, value}}; operators LessThan, LessThanOrEqual, GreaterThan, "
         "GreaterThanOrEqual, Equal, NotEqual; value is 0 where absent.",
         [&](config::Binder& a) {
           a.field("type", type, "", "");
           has_threshold = nested(a, "threshold", "", [&](config::Binder& t) {
             t.field("operator", op, "", "");
             t.field("value", p.threshold, "", "");
           });
         });
  if (b.describing()) return;
  if (on_missing != "Pass" && on_missing != "Fail")
    b.fail("onMissing", "must be \"Pass\" or \"Fail\", got \"" + on_missing + "\"");
  p.keep_missing = on_missing != "Fail";
  if (type != "threshold") {
    b.fail("algorithm", "algorithm.type must be \"threshold\", got \"" + type + "\"");
    return;
  }
  const auto* found = std::find_if(kOperators.begin(), kOperators.end(),
                                   [&](const OperatorName& entry) { return entry.name == op; });
  if (!has_threshold || found == kOperators.end()) {
    b.fail("algorithm",
           "algorithm.threshold.operator must be one of LessThan, LessThanOrEqual, GreaterThan, "
           "GreaterThanOrEqual, Equal, NotEqual, got \"" +
               op + "\"");
    return;
  }
  p.op = found->op;
}

void EndpointAttributeFilter::declare_data(DataDeclaration& declaration) const {
  declaration.optional<EndpointScalar>(params_.attribute.key());
}

void EndpointAttributeFilter::bind_slots(const SlotResolver& slots) {
  slot_ = slots.slot(params_.attribute.key());
}

bool EndpointAttributeFilter::holds(double value) const {
  switch (params_.op) {
    case Operator::kLessThan:
      return value < params_.threshold;
    case Operator::kLessThanOrEqual:
      return value <= params_.threshold;
    case Operator::kGreaterThan:
      return value > params_.threshold;
    case Operator::kGreaterThanOrEqual:
      return value >= params_.threshold;
    case Operator::kEqual:
      return value == params_.threshold;
    case Operator::kNotEqual:
      return value != params_.threshold;
  }
  return false;
}

size_t EndpointAttributeFilter::filter(SchedulingContext& ctx, std::span<Candidate> inout) const {
  const std::span<const EndpointScalar> column = ctx.attributes.column<EndpointScalar>(slot_);
  const auto keeps = [&](Candidate c) {
    if (column.empty() || !column[c].known) return params_.keep_missing;
    return holds(column[c].value);
  };
  if (params_.fallback_on_empty && std::none_of(inout.begin(), inout.end(), keeps)) return inout.size();
  const auto end = std::remove_if(inout.begin(), inout.end(), [&](Candidate c) { return !keeps(c); });
  return static_cast<size_t>(end - inout.begin());
}

}  // namespace penstock::scheduling
