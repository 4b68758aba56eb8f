#include "flowcontrol/plugins.h"

#include <memory>

#include "flowcontrol/fairness/global_strict_fairness_policy.h"
#include "flowcontrol/limits/static_usage_limit_policy.h"
#include "flowcontrol/ordering/fcfs_ordering_policy.h"
#include "flowcontrol/saturation/utilization_detector.h"

namespace penstock::flowcontrol {

namespace {

// A type without parameters: given ones are an error, so that a typo or a wrong type is not overlooked.
template <typename P>
Result<std::unique_ptr<Plugin>> create_plain(const PluginFactoryContext& context) {
  const Status status = config::decode_params(context.parameters, context.path, [](config::Binder&) {});
  if (!status.ok()) return status.error();
  return std::unique_ptr<Plugin>(std::make_unique<P>());
}

Result<std::unique_ptr<Plugin>> create_static_limit(const PluginFactoryContext& context) {
  StaticUsageLimitPolicy::Params params;
  const Status status = config::decode_params(
      context.parameters, context.path, [&](config::Binder& b) { StaticUsageLimitPolicy::bind(b, params); });
  if (!status.ok()) return status.error();
  return std::unique_ptr<Plugin>(std::make_unique<StaticUsageLimitPolicy>(params));
}

template <typename P>
std::vector<config::ParamDoc> describe() {
  return config::describe_params([](config::Binder& b) {
    typename P::Params params;
    P::bind(b, params);
  });
}

}  // namespace

std::span<const PluginDescriptor> flowcontrol_plugins() {
  static const PluginDescriptor kPlugins[] = {
      {.type = "fcfs-ordering-policy",
       .summary = "Within a flow, first come, first served.",
       .create = &create_plain<FcfsOrderingPolicy>},
      {.type = "global-strict-fairness-policy",
       .summary = "Among flows, the best head under the ordering policy goes first.",
       .create = &create_plain<GlobalStrictFairnessPolicy>},
      {.type = "static-usage-limit-policy",
       .summary = "One saturation ceiling for every priority band.",
       .create = &create_static_limit,
       .describe = &describe<StaticUsageLimitPolicy>},
      {.type = "utilization-detector",
       .summary = "Saturation of the pool by waiting requests and KV cache usage; also a filter.",
       .create = &UtilizationDetector::create,
       .describe = &describe<UtilizationDetector>},
  };
  return kPlugins;
}

}  // namespace penstock::flowcontrol
