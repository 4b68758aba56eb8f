#include "scheduling/filters/by_label.h"

#include <algorithm>

namespace penstock::scheduling {

bool LabelRule::accepts(const Endpoint& endpoint) const {
  const auto it = endpoint.labels.find(label);
  const bool absent = it == endpoint.labels.end();
  if (absent && allows_no_label) return true;
  const std::string_view value = absent ? std::string_view() : std::string_view(it->second);
  return std::find(valid_values.begin(), valid_values.end(), value) != valid_values.end();
}

size_t LabelRule::apply(const SchedulingContext& ctx, std::span<Candidate> inout) const {
  const auto kept = std::remove_if(inout.begin(), inout.end(),
                                   [&](Candidate c) { return !accepts(*ctx.pool.endpoints[c]); });
  return static_cast<size_t>(kept - inout.begin());
}

void ByLabel::bind(config::Binder& b, Params& p) {
  b.field("label", p.label, "", "Name of the label.");
  b.field("validValues", p.valid_values, "", "Values that are accepted.");
  b.field("allowsNoLabel", p.allows_no_label, "", "Accept endpoints without the label.");
  if (b.describing()) return;
  if (p.label.empty()) b.fail("label", "'label' must be specified");
  if (p.valid_values.empty() && !p.allows_no_label) {
    b.fail("validValues", "either 'validValues' must be non-empty or 'allowsNoLabel' must be true");
  }
}

}  // namespace penstock::scheduling
