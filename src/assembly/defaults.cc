#include "assembly/defaults.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "config/decode.h"
#include "protocol/parser.h"

namespace penstock::assembly {

namespace {

constexpr std::string_view kMetricsSource = "metrics-data-source";
constexpr std::string_view kMetricsExtractor = "core-metrics-extractor";
constexpr std::string_view kDefaultDetector = "utilization-detector";

class Defaults {
 public:
  Defaults(config::EndpointPickerConfig& config, Instances& instances)
      : config_(config), instances_(instances) {}

  Status scheduling() {
    if (config_.scheduling_profiles.empty()) config_.scheduling_profiles.push_back(default_profile());
    const bool has_handler = first<ProfileHandler>() != nullptr;
    if (config_.scheduling_profiles.size() == 1 && !has_handler) {
      if (Status s = inject("single-profile-handler"); !s.ok()) return s;
    }
    if (first<Picker>() == nullptr) {
      if (Status s = inject(config_.strict() ? "near-tie-picker" : "max-score-picker"); !s.ok()) return s;
    }
    const std::string picker = first<Picker>()->name();
    for (config::SchedulingProfile& profile : config_.scheduling_profiles) {
      bool has_picker = false;
      for (config::ScheduledPlugin& plugin : profile.plugins) {
        if (!plugin.weight && instances_.find_as<Scorer>(plugin.plugin_ref) != nullptr) plugin.weight = 1.0;
        has_picker = has_picker || instances_.find_as<Picker>(plugin.plugin_ref) != nullptr;
      }
      if (!has_picker) profile.plugins.push_back({picker, std::nullopt, 0});
    }
    return {};
  }

  Status flow_control() {
    for (const std::string_view type :
         {"fcfs-ordering-policy", "global-strict-fairness-policy", "static-usage-limit-policy"}) {
      if (instances_.find(type) != nullptr) continue;
      if (Status s = inject(type); !s.ok()) return s;
    }
    return {};
  }

  Status parsers() {
    if (!config_.parsers) config_.parsers.emplace();
    if (config_.parsers->empty()) {
      *config_.parsers = {"openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser"};
    }
    for (size_t i = 0; i < config_.parsers->size(); ++i) {
      const std::string& plugin_ref = (*config_.parsers)[i];
      if (instances_.find(plugin_ref) != nullptr) continue;
      const int line = config_.line_of(fmt::format("requestHandler.parsers[{}]", i));
      if (plugin_ref.empty()) {
        return invalid_config(
            config::with_line(fmt::format("requestHandler.parsers[{}] is missing a 'pluginRef'", i), line));
      }
      if (Status s = inject(plugin_ref); !s.ok())
        return invalid_config(config::with_line(s.error().message, line));
    }
    return {};
  }

  Status saturation_detector() {
    if (!config_.flow_control) config_.flow_control.emplace();
    std::optional<std::string>& detector = config_.flow_control->saturation_detector;
    if (!detector || detector->empty()) detector = kDefaultDetector;
    if (*detector != kDefaultDetector || instances_.find(kDefaultDetector) != nullptr) return {};
    return inject(kDefaultDetector);
  }

  Status data_layer() {
    if (!config_.data_layer) config_.data_layer.emplace();
    config::DataLayerConfig& layer = *config_.data_layer;
    if (!layer.inject_defaults.value_or(true)) return {};
    const bool has_source =
        std::any_of(layer.sources.begin(), layer.sources.end(), [&](const config::DataSource& source) {
          const Plugin* plugin = instances_.find(source.plugin_ref);
          return source.plugin_ref == kMetricsSource ||
                 (plugin != nullptr && plugin->type() == kMetricsSource);
        });
    if (has_source) return {};
    for (const std::string_view type : {kMetricsSource, kMetricsExtractor}) {
      if (instances_.find(type) != nullptr) continue;
      if (Status s = inject(type); !s.ok()) return s;
    }
    layer.sources.push_back({std::string(kMetricsSource), {std::string(kMetricsExtractor)}, 0});
    return {};
  }

 private:
  template <typename T>
  const T* first() const {
    for (const config::PluginSpec& spec : config_.plugins) {
      if (const T* plugin = instances_.find_as<T>(spec.name)) return plugin;
    }
    return nullptr;
  }

  config::SchedulingProfile default_profile() const {
    config::SchedulingProfile profile;
    profile.name = "default";
    for (const config::PluginSpec& spec : config_.plugins) {
      const bool fits = instances_.find_as<Filter>(spec.name) != nullptr ||
                        instances_.find_as<Scorer>(spec.name) != nullptr ||
                        instances_.find_as<Picker>(spec.name) != nullptr;
      if (fits) profile.plugins.push_back({spec.name, std::nullopt, 0});
    }
    return profile;
  }

  Status inject(std::string_view type) {
    if (const Plugin* taken = instances_.find(type)) {
      return invalid_config(fmt::format("the name of default plugin '{}' is taken by a plugin of type '{}'",
                                        type, taken->type()));
    }
    if (instances_.find_type(type) == nullptr) {
      return instances_.missing_type(type, "plugin type '{}' not found in registry");
    }
    config::PluginSpec spec;
    spec.name = std::string(type);
    spec.type = std::string(type);
    if (Status made = instances_.create(spec, fmt::format("{}.parameters", type)); !made.ok()) {
      return made.error().wrap(fmt::format("failed to instantiate default plugin '{}'", type));
    }
    config_.plugins.push_back(std::move(spec));
    return {};
  }

  config::EndpointPickerConfig& config_;
  Instances& instances_;
};

}  // namespace

Status apply_system_defaults(config::EndpointPickerConfig& config, Instances& instances) {
  struct Step {
    std::string_view area;
    Status (Defaults::*apply)();
  };
  constexpr std::array<Step, 5> kSteps{{{"scheduling", &Defaults::scheduling},
                                        {"flow control", &Defaults::flow_control},
                                        {"parser", &Defaults::parsers},
                                        {"saturation detector", &Defaults::saturation_detector},
                                        {"data layer", &Defaults::data_layer}}};
  Defaults defaults(config, instances);
  for (const Step& step : kSteps) {
    if (Status status = (defaults.*step.apply)(); !status.ok()) {
      return status.error().wrap(fmt::format("failed to apply {} defaults", step.area));
    }
  }
  return {};
}

}  // namespace penstock::assembly
