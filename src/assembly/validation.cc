#include "assembly/validation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/strings.h"
#include "config/decode.h"
#include "discovery/plugins.h"
#include "flowcontrol/policies.h"
#include "protocol/parser.h"
#include "scheduling/handlers/primary_profile.h"

namespace penstock::assembly {

namespace {

using config::with_line;

Status fail(std::string message, int line) {
  return invalid_config(with_line(std::move(message), line));
}

// Depth-first visit of the references between plugins.
class CreationOrder {
 public:
  CreationOrder(const config::EndpointPickerConfig& config, const Instances& instances)
      : config_(config), instances_(instances), marks_(config.plugins.size(), Mark::kNew) {}

  Result<std::vector<size_t>> run() {
    for (size_t i = 0; i < config_.plugins.size(); ++i) {
      if (Status s = visit(i); !s.ok()) return std::move(s).error();
    }
    return std::move(order_);
  }

 private:
  enum class Mark : uint8_t { kNew, kOpen, kDone };

  // Recursion is bounded by the number of plugins, which the size of a document bounds.
  Status visit(size_t index) {
    if (marks_[index] == Mark::kDone) return {};
    if (marks_[index] == Mark::kOpen) {
      return fail(fmt::format("cycle detected: graph is not a DAG: '{}' names itself, or a plugin that leads "
                              "back to it",
                              config_.plugins[index].name),
                  config_.plugins[index].line);
    }
    marks_[index] = Mark::kOpen;
    const config::PluginSpec& spec = config_.plugins[index];
    const PluginDescriptor* descriptor = instances_.find_type(spec.type);
    if (descriptor->references != nullptr) {
      for (const std::string& name : descriptor->references(spec.parameters ? &*spec.parameters : nullptr)) {
        const auto found = std::find_if(config_.plugins.begin(), config_.plugins.end(),
                                        [&](const config::PluginSpec& other) { return other.name == name; });
        if (found == config_.plugins.end()) {
          return fail("a plugin has a dependency on the unregistered plugin " + name, spec.line);
        }
        if (Status s = visit(static_cast<size_t>(found - config_.plugins.begin())); !s.ok()) return s;
      }
    }
    marks_[index] = Mark::kDone;
    order_.push_back(index);
    return {};
  }

  const config::EndpointPickerConfig& config_;
  const Instances& instances_;
  std::vector<Mark> marks_;
  std::vector<size_t> order_;
};

Status validate_profiles(const config::EndpointPickerConfig& config, const Instances& instances) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < config.scheduling_profiles.size(); ++i) {
    const config::SchedulingProfile& profile = config.scheduling_profiles[i];
    if (profile.name.empty()) {
      return fail(fmt::format("schedulingProfiles[{}] is missing a name", i), profile.line);
    }
    if (!names.insert(profile.name).second) {
      return fail(fmt::format("schedulingProfiles[{}] has duplicate name '{}'", i, profile.name),
                  profile.line);
    }
    for (size_t j = 0; j < profile.plugins.size(); ++j) {
      const config::ScheduledPlugin& plugin = profile.plugins[j];
      if (plugin.plugin_ref.empty()) {
        return fail(
            fmt::format("schedulingProfiles[{}].plugins[{}] is missing a 'pluginRef'", profile.name, j),
            plugin.line);
      }
      if (instances.find(plugin.plugin_ref) == nullptr) {
        return fail(fmt::format("schedulingProfiles[{}] references undefined plugin '{}'", profile.name,
                                plugin.plugin_ref),
                    plugin.line);
      }
    }
  }
  return {};
}

// Names of plugins that some part of the configuration uses.
std::set<std::string> used_names(const config::EndpointPickerConfig& config, const Instances& instances) {
  std::set<std::string> used;
  for (const config::PluginSpec& spec : config.plugins) {
    const PluginDescriptor* descriptor = instances.find_type(spec.type);
    if (descriptor->references == nullptr) continue;
    const std::vector<std::string> named =
        descriptor->references(spec.parameters ? &*spec.parameters : nullptr);
    used.insert(named.begin(), named.end());
  }
  for (const config::SchedulingProfile& profile : config.scheduling_profiles) {
    for (const config::ScheduledPlugin& plugin : profile.plugins) used.insert(plugin.plugin_ref);
  }
  for (const config::DataSource& source : config.data_layer->sources) {
    used.insert(source.plugin_ref);
    used.insert(source.extractors.begin(), source.extractors.end());
  }
  used.insert(config.data_layer->discovery.value_or(""));
  used.insert(config.parsers->begin(), config.parsers->end());
  const config::FlowControlConfig& flow = *config.flow_control;
  used.insert(flow.saturation_detector.value_or(""));
  used.insert(flow.usage_limit_policy_ref);
  // The queue's defaults, for whatever names none.
  used.insert({"static-usage-limit-policy", "global-strict-fairness-policy", "fcfs-ordering-policy"});
  const auto band = [&](const config::PriorityBandConfig& b) {
    used.insert(b.fairness_policy_ref);
    used.insert(b.ordering_policy_ref);
  };
  for (const config::PriorityBandConfig& b : flow.priority_bands) band(b);
  if (flow.default_priority_band) band(*flow.default_priority_band);
  if (flow.default_negative_priority_band) band(*flow.default_negative_priority_band);
  return used;
}

// Plugins that work by being there, whoever names them.
bool works_unnamed(const Plugin& plugin) {
  return dynamic_cast<const ProfileHandler*>(&plugin) != nullptr ||
         dynamic_cast<const DataProducer*>(&plugin) != nullptr ||
         dynamic_cast<const RequestHook*>(&plugin) != nullptr ||
         dynamic_cast<const Screener*>(&plugin) != nullptr ||
         dynamic_cast<const Admitter*>(&plugin) != nullptr ||
         dynamic_cast<const PreRequest*>(&plugin) != nullptr ||
         dynamic_cast<const ResponseHook*>(&plugin) != nullptr ||
         dynamic_cast<const EndpointObserver*>(&plugin) != nullptr ||
         dynamic_cast<const ObjectExtractor*>(&plugin) != nullptr ||
         dynamic_cast<const discovery::ObjectSourcePlugin*>(&plugin) != nullptr ||
         dynamic_cast<const discovery::EndpointSourcePlugin*>(&plugin) != nullptr;
}

// Plugins of the flow-control queue, which rest with it.
bool is_of_the_queue(const Plugin& plugin) {
  return dynamic_cast<const flowcontrol::OrderingPolicy*>(&plugin) != nullptr ||
         dynamic_cast<const flowcontrol::FairnessPolicy*>(&plugin) != nullptr ||
         dynamic_cast<const flowcontrol::UsageLimitPolicy*>(&plugin) != nullptr;
}

void check_profile(const config::SchedulingProfile& profile, const Instances& instances,
                   std::vector<std::string>& out) {
  for (const config::ScheduledPlugin& entry : profile.plugins) {
    const bool scorer = instances.find_as<Scorer>(entry.plugin_ref) != nullptr;
    const bool fits = scorer || instances.find_as<Filter>(entry.plugin_ref) != nullptr ||
                      instances.find_as<Picker>(entry.plugin_ref) != nullptr;
    const std::string where =
        fmt::format("schedulingProfiles[{}]: plugin '{}'", profile.name, entry.plugin_ref);
    if (!fits) {
      out.push_back(
          with_line(where + " is neither filter, scorer nor picker and has no effect here", entry.line));
    } else if (!scorer && entry.weight) {
      out.push_back(with_line(where + " is no scorer: its weight has no effect", entry.line));
    } else if (scorer && *entry.weight <= 0) {
      out.push_back(with_line(fmt::format("{} has weight {}", where, *entry.weight), entry.line));
    }
  }
}

// Weights among a plugin's parameters. The reference takes any number.
void check_weights(const config::PluginSpec& spec, std::vector<std::string>& out) {
  if (!spec.parameters) return;
  for (const auto& [key, value] : spec.parameters->members) {
    const bool number = value.kind == config::Node::Kind::kInt || value.kind == config::Node::Kind::kDouble;
    if (!number || value.number >= 0 || !ascii_lower(key).ends_with("weight")) continue;
    out.push_back(with_line(
        fmt::format("plugin '{}': {} is {}, below 0: what should count for an endpoint counts against it",
                    spec.name, key, value.number),
        value.line));
  }
}

// What the reference takes in silence as its default.
void check_counts(const config::PluginSpec& spec, std::vector<std::string>& out) {
  if (!spec.parameters) return;
  for (const auto& [key, value] : spec.parameters->members) {
    if (value.kind != config::Node::Kind::kInt || value.integer > 0) continue;
    if (!ascii_iequals(key, "maxNumOfEndpoints")) continue;
    out.push_back(with_line(
        fmt::format("plugin '{}': {} is {}, which counts as 1", spec.name, key, value.integer), value.line));
  }
}

// A profile handler that asks for a profile that isn't there serves nobody. The reference loads that too.
void check_primary_profile(const config::EndpointPickerConfig& config, const Instances& instances,
                           std::vector<std::string>& out) {
  std::vector<std::string_view> defined;
  for (const config::SchedulingProfile& profile : config.scheduling_profiles) defined.push_back(profile.name);
  for (const config::PluginSpec& spec : config.plugins) {
    const auto* handler = instances.find_as<scheduling::PrimaryProfile>(spec.name);
    if (handler == nullptr) continue;
    const std::string_view wanted = handler->primary_profile();
    if (std::find(defined.begin(), defined.end(), wanted) != defined.end()) continue;
    out.push_back(
        with_line(fmt::format("plugin '{}' refuses every request: there is no scheduling profile '{}'; "
                              "defined: {}",
                              spec.name, wanted, fmt::join(defined, ", ")),
                  spec.line));
  }
}

}  // namespace

Status validate_plugins(const config::EndpointPickerConfig& config, const Instances& instances) {
  std::set<std::string_view> names;
  for (const config::PluginSpec& plugin : config.plugins) {
    if (plugin.type.empty())
      return fail(fmt::format("plugin '{}' is missing a type", plugin.name), plugin.line);
    if (!names.insert(plugin.name).second) {
      return fail(fmt::format("duplicate plugin name '{}'", plugin.name), plugin.line);
    }
    if (instances.find_type(plugin.type) == nullptr) {
      return fail(instances.missing_type(plugin.type, "plugin type '{}' is not registered").message,
                  plugin.line);
    }
  }
  return {};
}

Result<std::vector<size_t>> creation_order(const config::EndpointPickerConfig& config,
                                           const Instances& instances) {
  Result<std::vector<size_t>> order = CreationOrder(config, instances).run();
  if (!order) return order.error().wrap("failed to build plugin dependency graph");
  return order;
}

int line_of(const config::EndpointPickerConfig& config, std::string_view path, std::string_view plugin) {
  if (const int line = config.line_of(path); line != 0) return line;
  const auto found = std::find_if(config.plugins.begin(), config.plugins.end(),
                                  [&](const config::PluginSpec& spec) { return spec.name == plugin; });
  return found == config.plugins.end() ? 0 : found->line;
}

Status validate_references(const config::EndpointPickerConfig& config, const Instances& instances) {
  if (Status s = validate_profiles(config, instances); !s.ok()) {
    return s.error().wrap("scheduling profile validation failed");
  }
  const std::string& detector = *config.flow_control->saturation_detector;
  if (instances.find(detector) == nullptr) {
    return invalid_config(
               with_line(fmt::format("saturation detector references undefined plugin '{}'", detector),
                         config.line_of("flowControl.saturationDetector")))
        .wrap("saturation detector validation failed");
  }
  for (size_t i = 0; i < config.parsers->size(); ++i) {
    const std::string& parser = (*config.parsers)[i];
    if (instances.find(parser) == nullptr) {
      return invalid_config(with_line(fmt::format("parser references undefined plugin '{}'", parser),
                                      config.line_of(fmt::format("requestHandler.parsers[{}]", i))))
          .wrap("parser validation failed");
    }
  }
  return {};
}

std::vector<std::string> find_useless(const config::EndpointPickerConfig& config, const Instances& instances,
                                      bool flow_control_on) {
  std::vector<std::string> out;
  for (const config::SchedulingProfile& profile : config.scheduling_profiles) {
    check_profile(profile, instances, out);
  }
  check_primary_profile(config, instances, out);
  const std::set<std::string> used = used_names(config, instances);
  for (const config::PluginSpec& spec : config.plugins) {
    check_weights(spec, out);
    check_counts(spec, out);
    const Plugin& plugin = *instances.find(spec.name);
    if (spec.line == 0) continue;
    if (!flow_control_on && is_of_the_queue(plugin)) {
      out.push_back(with_line(
          fmt::format("plugin '{}' rests: the feature gate flowControl is off", spec.name), spec.line));
      continue;
    }
    if (used.contains(spec.name) || works_unnamed(plugin)) continue;
    out.push_back(
        with_line(fmt::format("plugin '{}' is declared but nothing uses it", spec.name), spec.line));
  }
  if (config.data_layer->peer_discovery) {
    out.emplace_back("dataLayer.peerDiscovery has no effect: no plugin type discovers peers");
  }
  if (config.data_layer->sources.empty()) {
    out.emplace_back("No data sources configured; metrics collection is disabled");
  }
  if (!flow_control_on && config.flow_control->sets_more_than_detector()) {
    out.emplace_back(
        "WARNING: the flowControl config section is set but the flowControl feature gate is disabled; its "
        "settings (other than saturationDetector) are ignored");
  }
  return out;
}

}  // namespace penstock::assembly
