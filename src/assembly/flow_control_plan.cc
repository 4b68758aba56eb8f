#include "assembly/flow_control_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "assembly/validation.h"
#include "base/units.h"
#include "config/decode.h"

namespace penstock::assembly {

namespace {

constexpr std::string_view kFairness = "global-strict-fairness-policy";
constexpr std::string_view kOrdering = "fcfs-ordering-policy";
constexpr std::string_view kUsageLimit = "static-usage-limit-policy";
constexpr Duration kDefaultTtl = std::chrono::seconds(60);

Status fail(std::string message, int line) {
  return invalid_config(config::with_line(std::move(message), line));
}

template <typename T>
Status resolve(const config::EndpointPickerConfig& document, const Instances& instances,
               std::string_view name, std::string_view interface, std::string_view path, const T*& out) {
  const Plugin* plugin = instances.find(name);
  const int line = line_of(document, fmt::format("flowControl.{}", path), name);
  if (plugin == nullptr) return fail(fmt::format("plugin \"{}\" not found", name), line);
  out = dynamic_cast<const T*>(plugin);
  if (out != nullptr) return {};
  return fail(
      fmt::format("plugin \"{}\" does not implement {} (actual type: {})", name, interface, plugin->type()),
      line);
}

Status not_negative(std::string_view label, std::string_view what, const std::optional<int64_t>& value,
                    int line) {
  if (value.value_or(0) >= 0) return {};
  return fail(fmt::format("{} {} must be non-negative, got {}", label, what, *value), line);
}

// What the document says below flowControl, and where.
class Planner {
 public:
  Planner(const config::EndpointPickerConfig& document, const Instances& instances)
      : document_(document), config_(*document.flow_control), instances_(instances) {}

  Status ttls(FlowControlPlan& plan) const;
  Status bands(FlowControlPlan& plan) const;
  Status usage_limit(FlowControlPlan& plan) const;

 private:
  int line_of(std::string_view path) const { return document_.line_of(fmt::format("flowControl.{}", path)); }
  Result<FlowControlPlan::Band> band(const config::PriorityBandConfig& config, const std::string& label,
                                     const std::string& path) const;

  const config::EndpointPickerConfig& document_;
  const config::FlowControlConfig& config_;
  const Instances& instances_;
};

Result<FlowControlPlan::Band> Planner::band(const config::PriorityBandConfig& config,
                                            const std::string& label, const std::string& path) const {
  FlowControlPlan::Band out;
  out.priority = config.priority;
  if (Status s = not_negative(label, "MaxBytes", config.max_bytes, line_of(path + ".maxBytes")); !s.ok())
    return std::move(s).error();
  if (Status s = not_negative(label, "MaxRequests", config.max_requests, line_of(path + ".maxRequests"));
      !s.ok()) {
    return std::move(s).error();
  }
  if (config.max_bytes.value_or(0) > 0) out.max_bytes = *config.max_bytes;
  if (config.max_requests.value_or(0) > 0) out.max_requests = *config.max_requests;
  const auto name_or = [](const std::string& name, std::string_view fallback) {
    return name.empty() ? fallback : std::string_view(name);
  };
  if (Status s = resolve(document_, instances_, name_or(config.fairness_policy_ref, kFairness),
                         "FairnessPolicy", path + ".fairnessPolicyRef", out.fairness);
      !s.ok()) {
    return std::move(s).error();
  }
  if (Status s = resolve(document_, instances_, name_or(config.ordering_policy_ref, kOrdering),
                         "OrderingPolicy", path + ".orderingPolicyRef", out.ordering);
      !s.ok()) {
    return std::move(s).error();
  }
  return out;
}

Status Planner::ttls(FlowControlPlan& plan) const {
  const auto check = [&](std::string_view name, std::string_view field,
                         const std::optional<Duration>& ttl) -> Status {
    if (ttl.value_or(Duration(0)) >= Duration(0)) return {};
    return fail(fmt::format("{} cannot be negative, but got {}", name, format_duration(*ttl)),
                line_of(field));
  };
  if (Status s = check("DefaultRequestTTL", "defaultRequestTTL", config_.default_request_ttl); !s.ok())
    return s;
  if (Status s = check("NoEndpointRequestTTL", "noEndpointRequestTTL", config_.no_endpoint_request_ttl);
      !s.ok()) {
    return s;
  }
  plan.request_ttl = config_.default_request_ttl.value_or(kDefaultTtl);
  plan.no_endpoint_request_ttl = config_.no_endpoint_request_ttl.value_or(plan.request_ttl);
  return {};
}

Status Planner::bands(FlowControlPlan& plan) const {
  if (Status s = not_negative("global", "MaxBytes", config_.max_bytes, line_of("maxBytes")); !s.ok())
    return s;
  if (Status s = not_negative("global", "MaxRequests", config_.max_requests, line_of("maxRequests"));
      !s.ok()) {
    return s;
  }
  plan.max_bytes = config_.max_bytes.value_or(0);
  plan.max_requests = config_.max_requests.value_or(0);

  auto fallback = band(config_.default_priority_band.value_or(config::PriorityBandConfig{}),
                       "default priority band", "defaultPriorityBand");
  if (!fallback) return std::move(fallback).error();
  plan.default_band = *fallback;
  plan.default_band.priority = 0;
  plan.default_negative_band = plan.default_band;
  if (config_.default_negative_priority_band) {
    auto negative = band(*config_.default_negative_priority_band, "default negative priority band",
                         "defaultNegativePriorityBand");
    if (!negative) return std::move(negative).error();
    plan.default_negative_band = *negative;
  }
  for (size_t i = 0; i < config_.priority_bands.size(); ++i) {
    const config::PriorityBandConfig& entry = config_.priority_bands[i];
    const std::string path = fmt::format("priorityBands[{}]", i);
    const bool twice =
        std::any_of(plan.bands.begin(), plan.bands.end(),
                    [&](const FlowControlPlan::Band& other) { return other.priority == entry.priority; });
    if (twice) return fail(fmt::format("duplicate priority level {}", entry.priority), line_of(path));
    auto planned = band(entry, fmt::format("priority band {}", entry.priority), path);
    if (!planned) return std::move(planned).error();
    plan.bands.push_back(*planned);
  }
  const bool has_zero = std::any_of(plan.bands.begin(), plan.bands.end(),
                                    [](const FlowControlPlan::Band& band) { return band.priority == 0; });
  if (!has_zero) plan.bands.push_back(plan.default_band);
  std::sort(
      plan.bands.begin(), plan.bands.end(),
      [](const FlowControlPlan::Band& a, const FlowControlPlan::Band& b) { return a.priority > b.priority; });
  return {};
}

Status Planner::usage_limit(FlowControlPlan& plan) const {
  const std::string& name = config_.usage_limit_policy_ref;
  return resolve(document_, instances_, name.empty() ? kUsageLimit : std::string_view(name),
                 "UsageLimitPolicy", "usageLimitPolicyPluginRef", plan.usage_limit);
}

}  // namespace

Result<FlowControlPlan> plan_flow_control(const config::EndpointPickerConfig& document,
                                          const Instances& instances) {
  constexpr std::string_view kContext = "failed to load flow control config";
  const Planner planner(document, instances);
  FlowControlPlan plan;
  plan.enable_eviction = document.flow_control->enable_eviction;
  if (Status s = planner.ttls(plan); !s.ok()) return s.error().wrap(kContext);
  if (Status s = planner.bands(plan); !s.ok()) {
    return s.error().wrap("failed to create registry config").wrap(kContext);
  }
  if (Status s = planner.usage_limit(plan); !s.ok()) {
    return s.error().wrap("failed to resolve usage limit policy").wrap(kContext);
  }
  return plan;
}

}  // namespace penstock::assembly
