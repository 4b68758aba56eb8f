#include "assembly/flow_control_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"

namespace penstock::assembly {

namespace {

constexpr std::string_view kFairness = "global-strict-fairness-policy";
constexpr std::string_view kOrdering = "fcfs-ordering-policy";
constexpr std::string_view kUsageLimit = "static-usage-limit-policy";
constexpr Duration kDefaultTtl = std::chrono::seconds(60);

template <typename T>
Status resolve(const Instances& instances, std::string_view name, std::string_view interface, const T*& out) {
  const Plugin* plugin = instances.find(name);
  if (plugin == nullptr) return invalid_config(fmt::format("plugin \"{}\" not found", name));
  out = dynamic_cast<const T*>(plugin);
  if (out != nullptr) return {};
  return invalid_config(
      fmt::format("plugin \"{}\" does not implement {} (actual type: {})", name, interface, plugin->type()));
}

Status not_negative(std::string_view label, std::string_view what, const std::optional<int64_t>& value) {
  if (value.value_or(0) >= 0) return {};
  return invalid_config(fmt::format("{} {} must be non-negative, got {}", label, what, *value));
}

Result<FlowControlPlan::Band> plan_band(const config::PriorityBandConfig& config, const std::string& label,
                                        const Instances& instances) {
  FlowControlPlan::Band band;
  band.priority = config.priority;
  if (Status s = not_negative(label, "MaxBytes", config.max_bytes); !s.ok()) return std::move(s).error();
  if (Status s = not_negative(label, "MaxRequests", config.max_requests); !s.ok())
    return std::move(s).error();
  if (config.max_bytes.value_or(0) > 0) band.max_bytes = *config.max_bytes;
  if (config.max_requests.value_or(0) > 0) band.max_requests = *config.max_requests;
  const auto name_or = [](const std::string& name, std::string_view fallback) {
    return name.empty() ? fallback : std::string_view(name);
  };
  if (Status s =
          resolve(instances, name_or(config.fairness_policy_ref, kFairness), "FairnessPolicy", band.fairness);
      !s.ok()) {
    return std::move(s).error();
  }
  if (Status s =
          resolve(instances, name_or(config.ordering_policy_ref, kOrdering), "OrderingPolicy", band.ordering);
      !s.ok()) {
    return std::move(s).error();
  }
  return band;
}

Status plan_ttls(const config::FlowControlConfig& config, FlowControlPlan& plan) {
  const auto check = [](std::string_view name, const std::optional<Duration>& ttl) -> Status {
    if (ttl.value_or(Duration(0)) >= Duration(0)) return {};
    return invalid_config(fmt::format("{} cannot be negative, but got {}", name, format_duration(*ttl)));
  };
  if (Status s = check("DefaultRequestTTL", config.default_request_ttl); !s.ok()) return s;
  if (Status s = check("NoEndpointRequestTTL", config.no_endpoint_request_ttl); !s.ok()) return s;
  plan.request_ttl = config.default_request_ttl.value_or(kDefaultTtl);
  plan.no_endpoint_request_ttl = config.no_endpoint_request_ttl.value_or(plan.request_ttl);
  return {};
}

Status plan_bands(const config::FlowControlConfig& config, const Instances& instances,
                  FlowControlPlan& plan) {
  if (Status s = not_negative("global", "MaxBytes", config.max_bytes); !s.ok()) return s;
  if (Status s = not_negative("global", "MaxRequests", config.max_requests); !s.ok()) return s;
  plan.max_bytes = config.max_bytes.value_or(0);
  plan.max_requests = config.max_requests.value_or(0);

  auto fallback = plan_band(config.default_priority_band.value_or(config::PriorityBandConfig{}),
                            "default priority band", instances);
  if (!fallback) return std::move(fallback).error();
  plan.default_band = *fallback;
  plan.default_band.priority = 0;
  plan.default_negative_band = plan.default_band;
  if (config.default_negative_priority_band) {
    auto negative =
        plan_band(*config.default_negative_priority_band, "default negative priority band", instances);
    if (!negative) return std::move(negative).error();
    plan.default_negative_band = *negative;
  }
  for (const config::PriorityBandConfig& entry : config.priority_bands) {
    const bool twice =
        std::any_of(plan.bands.begin(), plan.bands.end(),
                    [&](const FlowControlPlan::Band& band) { return band.priority == entry.priority; });
    if (twice) return invalid_config(fmt::format("duplicate priority level {}", entry.priority));
    auto band = plan_band(entry, fmt::format("priority band {}", entry.priority), instances);
    if (!band) return std::move(band).error();
    plan.bands.push_back(*band);
  }
  const bool has_zero = std::any_of(plan.bands.begin(), plan.bands.end(),
                                    [](const FlowControlPlan::Band& band) { return band.priority == 0; });
  if (!has_zero) plan.bands.push_back(plan.default_band);
  std::sort(
      plan.bands.begin(), plan.bands.end(),
      [](const FlowControlPlan::Band& a, const FlowControlPlan::Band& b) { return a.priority > b.priority; });
  return {};
}

}  // namespace

Result<FlowControlPlan> plan_flow_control(const config::FlowControlConfig& config,
                                          const Instances& instances) {
  constexpr std::string_view kContext = "failed to load flow control config";
  FlowControlPlan plan;
  plan.enable_eviction = config.enable_eviction;
  if (Status s = plan_ttls(config, plan); !s.ok()) return s.error().wrap(kContext);
  if (Status s = plan_bands(config, instances, plan); !s.ok()) {
    return s.error().wrap("failed to create registry config").wrap(kContext);
  }
  const std::string_view limit =
      config.usage_limit_policy_ref.empty() ? kUsageLimit : std::string_view(config.usage_limit_policy_ref);
  if (Status s = resolve(instances, limit, "UsageLimitPolicy", plan.usage_limit); !s.ok()) {
    return s.error().wrap("failed to resolve usage limit policy").wrap(kContext);
  }
  return plan;
}

}  // namespace penstock::assembly
