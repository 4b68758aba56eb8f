#include "scheduling/endpoint_attribute.h"

#include "scheduling/number_text.h"

namespace penstock::scheduling {

void EndpointAttributeKey::bind(config::Binder& b, std::string_view field, std::string_view doc) {
  b.field(field, attribute, "", doc);
  b.field("producer", producer, "",
          "Name of the plugin that makes the attribute; absent: core-metrics-extractor.");
  if (b.describing()) return;
  if (attribute.empty()) {
    b.fail(field, std::string(field) + " must be specified");
    return;
  }
  const size_t slash = attribute.rfind('/');
  if (slash == std::string::npos || producer.has_value()) return;
  b.fail(field, "'" + attribute + "' contains a slash but no producer is given: did you mean " +
                    std::string(field) + ": '" + attribute.substr(0, slash) + "', producer: '" +
                    attribute.substr(slash + 1) + "'?");
}

Range range_of(std::span<const EndpointScalar> column, std::span<const Candidate> candidates) {
  Range range;
  for (const Candidate c : candidates) {
    if (column[c].known) range.add(column[c].value);
  }
  return range;
}

std::string_view unit_of(const DataKey& key) {
  if (key == data_keys::kMulticlusterQueueSize) return "requests";
  if (key == data_keys::kGpuUtilization || key == data_keys::kMulticlusterKvUsage) return "ratio";
  return "";
}

void append_scalar(const SchedulingContext& ctx, std::string_view name, std::string_view unit,
                   AttributeSlot slot, Candidate candidate, std::string& out) {
  const std::span<const EndpointScalar> column = ctx.attributes.column<EndpointScalar>(slot);
  out += name;
  if (column.empty() || !column[candidate].known) {
    out += " unknown";
    return;
  }
  out += ' ';
  append_number(out, column[candidate].value);
  if (!unit.empty()) out += ' ';
  out += unit;
  if (column[candidate].observed_at == kNever) return;
  out += ", age ";
  const Duration age = ctx.now - column[candidate].observed_at;
  append_millis(out, age);
  if (ctx.freshness == nullptr || ctx.freshness->attributes.influence(age) >= 1) return;
  out += ", influence ";
  append_rounded(out, ctx.freshness->attributes.influence(age));
}

}  // namespace penstock::scheduling
