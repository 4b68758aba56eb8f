#include "assembly/check.h"

#include <fmt/format.h>

#include "base/units.h"

namespace penstock::assembly {

namespace {

void section(std::string& out, std::string_view title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  out.append(title).append(":\n");
  for (const std::string& line : lines) out.append("  ").append(line).append("\n");
}

std::string limit_text(int64_t limit) {
  return limit == 0 ? "unlimited" : fmt::format("{}", limit);
}
std::string ttl_text(Duration ttl) {
  return ttl == Duration(0) ? "none" : format_duration(ttl);
}

std::vector<std::string> profile_lines(const director::Policy& policy) {
  std::vector<std::string> lines;
  for (const scheduling::Profile& profile : policy.scheduler->profiles()) {
    std::vector<std::string> filters;
    for (const Filter* filter : profile.filters) filters.push_back(filter->typed_name());
    std::vector<std::string> scorers;
    for (const auto& scorer : profile.scorers) {
      scorers.push_back(fmt::format("{} x {:g}", scorer.scorer->typed_name(), scorer.weight));
    }
    lines.push_back(fmt::format("{}: filters [{}] scorers [{}] picker {}", profile.name,
                                fmt::join(filters, ", "), fmt::join(scorers, ", "),
                                profile.picker->typed_name()));
  }
  return lines;
}

std::vector<std::string> source_lines(const director::Policy& policy) {
  std::vector<std::string> lines;
  for (const director::Policy::MetricsSource& source : policy.sources) {
    std::vector<std::string> extractors;
    for (const Plugin* extractor : source.extractors) extractors.push_back(extractor->typed_name());
    lines.push_back(fmt::format("{} -> [{}]", source.source->typed_name(), fmt::join(extractors, ", ")));
  }
  return lines;
}

std::vector<std::string> flow_control_lines(const FlowControlPlan& plan) {
  std::vector<std::string> lines;
  lines.push_back(
      fmt::format("max bytes {}, max requests {}, request TTL {}, without endpoints {}, eviction {}",
                  limit_text(plan.max_bytes), limit_text(plan.max_requests), ttl_text(plan.request_ttl),
                  ttl_text(plan.no_endpoint_request_ttl), plan.enable_eviction ? "on" : "off"));
  for (const FlowControlPlan::Band& band : plan.bands) {
    lines.push_back(fmt::format("band {}: {} bytes, {} requests, {}, {}", band.priority, band.max_bytes,
                                band.max_requests, band.fairness->typed_name(), band.ordering->typed_name()));
  }
  return lines;
}

}  // namespace

std::string render_check(const Assembly& assembly) {
  const director::Policy& policy = *assembly.policy;
  std::string out;
  section(out, "effective configuration", {policy.effective_config});
  section(out, "profiles", profile_lines(policy));
  std::vector<std::string> producers;
  for (const DataProducer* producer : policy.producers) producers.push_back(producer->typed_name());
  section(out, "data producers, in order", producers);
  std::vector<std::string> created;
  for (const AutoCreatedProducer& producer : assembly.auto_created) {
    created.push_back(
        fmt::format("{} makes {} for {}", producer.producer, producer.data_key, producer.consumer));
  }
  section(out, "auto-created producers", created);
  section(out, "data sources", source_lines(policy));
  if (policy.saturation != nullptr) section(out, "saturation detector", {policy.saturation->typed_name()});
  if (assembly.flow_control) section(out, "flow control", flow_control_lines(*assembly.flow_control));
  section(out, "warnings", policy.warnings);
  section(out, "notices", assembly.notices);
  return out;
}

}  // namespace penstock::assembly
