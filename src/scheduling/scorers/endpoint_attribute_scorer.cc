#include "scheduling/scorers/endpoint_attribute_scorer.h"

#include <algorithm>

#include "scheduling/nested_params.h"

namespace penstock::scheduling {

void EndpointAttributeScorer::bind(config::Binder& b, Params& p) {
  p.attribute.bind(b, "attributeKey", "Name of the scraped number.");
  std::string type;
  bool adaptive = false;
  nested(
      b, "algorithm",
      "{type, normalization}: linear_lower_is_better or linear_higher_is_better, over fixedRange {min, max} "
      "or adaptiveRange {} (the candidates' own, where absent).",
      [&](config::Binder& a) {
        a.field("type", type, "", "");
        nested(a, "normalization", "", [&](config::Binder& n) {
          p.fixed = nested(n, "fixedRange", "", [&](config::Binder& r) {
            r.field("min", p.min, "", "");
            r.field("max", p.max, "", "");
            if (!(p.min < p.max)) r.fail("min", "must be less than max");
          });
          adaptive = nested(n, "adaptiveRange", "", [](config::Binder&) {});
          if (p.fixed && adaptive)
            n.fail("fixedRange", "only one of fixedRange and adaptiveRange may be given");
        });
      });
  if (b.describing()) return;
  p.lower_is_better = type == "linear_lower_is_better";
  if (!p.lower_is_better && type != "linear_higher_is_better") {
    b.fail("algorithm",
           "algorithm.type must be \"linear_lower_is_better\" or \"linear_higher_is_better\", got \"" + type +
               "\"");
  }
}

void EndpointAttributeScorer::declare_data(DataDeclaration& declaration) const {
  declaration.optional<EndpointScalar>(params_.attribute.key());
}

void EndpointAttributeScorer::bind_slots(const SlotResolver& slots) {
  slot_ = slots.slot(params_.attribute.key());
}

void EndpointAttributeScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                    std::span<double> scores) const {
  std::fill(scores.begin(), scores.end(), 0.0);
  const std::span<const EndpointScalar> column = ctx.attributes.column<EndpointScalar>(slot_);
  if (column.empty()) return;
  const Range range = params_.fixed ? Range{params_.min, params_.max} : range_of(column, candidates);
  for (size_t i = 0; i < scores.size(); ++i) {
    const EndpointScalar& scalar = column[candidates[i]];
    if (!scalar.known) continue;
    const double place = params_.lower_is_better ? range.fall(scalar.value) : range.rise(scalar.value);
    scores[i] = std::clamp(place, 0.0, 1.0);
  }
}

void EndpointAttributeScorer::explain(const SchedulingContext& ctx, Candidate candidate,
                                      std::string& out) const {
  append_scalar(ctx, params_.attribute.attribute, unit_of(params_.attribute.key()), slot_, candidate, out);
}

}  // namespace penstock::scheduling
