#include "assembly/assembly.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "assembly/data_graph.h"
#include "assembly/defaults.h"
#include "assembly/flow_control_plan.h"
#include "assembly/freshness_plan.h"
#include "assembly/instances.h"
#include "assembly/validation.h"
#include "base/strings.h"
#include "base/units.h"
#include "config/decode.h"
#include "discovery/plugins.h"
#include "protocol/parser.h"
#include "signals/plugins.h"
#include "signals/scalar_extractor.h"

namespace penstock::assembly {

namespace {

// Slot numbers for one plugin; remembers a key it asked for without having declared it.
class PluginSlots final : public SlotResolver {
 public:
  PluginSlots(const std::vector<DataKey>& keys, const DataDeclaration& declared)
      : keys_(keys), declared_(declared) {}

  AttributeSlot slot(const DataKey& key) const override {
    const auto names_key = [&](const DataUse& use) { return use.key == key; };
    const bool known = std::any_of(declared_.consumes.begin(), declared_.consumes.end(), names_key) ||
                       std::any_of(declared_.produces.begin(), declared_.produces.end(), names_key);
    if (!known) {
      undeclared_ = key.text();
      return kNoSlot;
    }
    const auto found = std::find(keys_.begin(), keys_.end(), key);
    return found == keys_.end() ? kNoSlot : static_cast<AttributeSlot>(found - keys_.begin());
  }
  const std::string& undeclared() const { return undeclared_; }

 private:
  const std::vector<DataKey>& keys_;
  const DataDeclaration& declared_;
  mutable std::string undeclared_;
};

// The outermost contexts are joined by a dash, as the reference's are.
Error after(const Error& error, std::string_view context) {
  return Error{error.code, std::string(context) + error.message, error.dropped_reason};
}

// An error about what the document has at `path`, with its line; `plugin`: the plugin that is named there.
Error at(const config::EndpointPickerConfig& document, std::string_view path, std::string message,
         std::string_view plugin = {}) {
  return invalid_config(config::with_line(std::move(message), line_of(document, path, plugin)));
}

// One assembly, step by step in the reference's order.
class Assembler {
 public:
  explicit Assembler(const AssemblyOptions& options) : options_(options), instances_(options) {}

  Result<Assembly> run(Result<config::DecodedConfig> decoded) {
    if (options_.warm != nullptr) options_.warm->begin_epoch();
    Result<Assembly> out = load(std::move(decoded));
    if (options_.warm != nullptr) options_.warm->end_epoch(out.ok());
    return out;
  }

 private:
  Result<Assembly> load(Result<config::DecodedConfig> decoded) {
    if (Status s = phase_one(std::move(decoded)); !s.ok())
      return after(s.error(), "failed to parse config - ");
    for (const Step& step : kLoadSteps) {
      if (Status s = (this->*step)(); !s.ok()) return after(s.error(), "failed to load the configuration - ");
    }
    if (Status s = create_missing_producers(); !s.ok()) {
      return after(s.error(), "failed to create missing data producers - ");
    }
    if (Status s = connect_data(); !s.ok()) return after(s.error(), "failed to load the configuration - ");
    if (Status s = check_stability(); !s.ok()) return std::move(s).error();
    fill_slots();
    finish();
    return std::move(out_);
  }

  using Step = Status (Assembler::*)();
  static const std::array<Step, 11> kLoadSteps;

  Status phase_one(Result<config::DecodedConfig> decoded) {
    if (!decoded) return std::move(decoded).error();
    out_.raw = decoded->config;
    out_.effective = std::move(decoded->config);
    policy_->warnings = std::move(decoded->notices);
    policy_->strict = out_.effective.strict();
    for (config::PluginSpec& plugin : out_.effective.plugins) {
      if (plugin.name.empty()) plugin.name = plugin.type;
    }
    Result<config::FeatureGates> gates =
        config::resolve_feature_gates(out_.effective, options_.further_feature_gates);
    if (!gates) return std::move(gates).error();
    policy_->flow_control = gates->flow_control;
    return {};
  }

  Status check_plugins() {
    if (Status s = validate_plugins(out_.effective, instances_); !s.ok()) {
      return s.error().wrap("configuration validation failed");
    }
    return {};
  }

  // A metrics source may have an interval of its own: plugins that judge ages must know the one in force.
  void use_interval_of_source() {
    if (!out_.effective.data_layer) return;
    for (const config::DataSource& source : out_.effective.data_layer->sources) {
      for (const config::PluginSpec& spec : out_.effective.plugins) {
        if (spec.name != source.plugin_ref || !spec.parameters) continue;
        for (const auto& member : spec.parameters->members) {
          if (!ascii_iequals(member.first, "interval")) continue;
          const Result<Duration> interval = parse_duration(member.second.text);
          if (interval.ok() && *interval > Duration(0)) instances_.set_scrape_interval(*interval);
          return;
        }
      }
    }
  }

  Status create_plugins() {
    constexpr std::string_view kContext = "plugin instantiation failed";
    use_interval_of_source();
    const Result<std::vector<size_t>> order = creation_order(out_.effective, instances_);
    if (!order) return order.error().wrap(kContext);
    for (const size_t index : *order) {
      const config::PluginSpec& spec = out_.effective.plugins[index];
      const Status made = instances_.create(spec, fmt::format("plugins[{}].parameters", index));
      if (!made.ok()) {
        // A decoder's message has the line of the field; others that of the plugin.
        Error error = made.error();
        if (error.message.find("(line ") == std::string::npos)
          error.message = config::with_line(std::move(error.message), spec.line);
        return error.wrap(fmt::format("failed to create plugin '{}' (type: {})", spec.name, spec.type))
            .wrap(kContext);
      }
      const std::string_view replacement = instances_.find_type(spec.type)->replaced_by;
      if (!replacement.empty()) {
        policy_->warnings.push_back(
            fmt::format("DEPRECATION warning: plugin is deprecated, plugin={} type={} replacement={}",
                        spec.name, spec.type, replacement));
      }
    }
    return {};
  }

  Status plan_freshness() {
    if (!policy_->strict) return {};
    Result<Freshness> freshness =
        assembly::plan_freshness(out_.effective.freshness, instances_.scrape_interval(), options_.staleness);
    if (!freshness) return freshness.error().wrap("configuration validation failed");
    policy_->freshness = *freshness;
    out_.notices.emplace_back(
        "penstock.mode strict: scores fade with the age of signals, requests sent since the last scrape "
        "count, "
        "sheddable requests are gated by endpoint, near ties are picked by load, metrics are read our way");
    return {};
  }

  Status apply_defaults() {
    if (Status s = apply_system_defaults(out_.effective, instances_); !s.ok()) {
      return s.error().wrap("system default application failed");
    }
    std::vector<std::string> names;
    for (const config::PluginSpec& spec : out_.effective.plugins) names.push_back(spec.name);
    instances_.set_order(names);
    policy_->effective_config = config::to_string(out_.effective);
    return {};
  }

  Status check_references() {
    if (Status s = validate_references(out_.effective, instances_); !s.ok()) {
      return s.error().wrap("configuration validation failed");
    }
    return {};
  }

  Status build_scheduler() {
    constexpr std::string_view kContext = "scheduler config build failed";
    const ProfileHandler* handler = nullptr;
    for (const Plugin* plugin : instances_.in_order()) {
      const auto* candidate = dynamic_cast<const ProfileHandler*>(plugin);
      if (candidate == nullptr) continue;
      if (handler != nullptr) {
        return of_plugin(candidate->name(),
                         fmt::format("multiple profile handlers found ('{}', '{}'); only one is allowed",
                                     handler->name(), candidate->name()))
            .wrap(kContext);
      }
      handler = candidate;
    }
    const auto of_profiles = [&](std::string message) {
      const auto& profiles = out_.effective.scheduling_profiles;
      const int line = profiles.size() > 1 ? profiles[1].line : profiles.empty() ? 0 : profiles[0].line;
      return invalid_config(config::with_line(std::move(message), line)).wrap(kContext);
    };
    if (handler == nullptr) return of_profiles("no profile handler configured");
    const size_t wanted = handler->required_profiles();
    const size_t profiles = out_.effective.scheduling_profiles.size();
    if (wanted != 0 && wanted != profiles) {
      return of_profiles(
          handler->type() == "single-profile-handler"
              ? "SingleProfileHandler cannot support multiple scheduling profiles"
              : fmt::format("profile handler '{}' runs {} scheduling profile, and there are {}: every "
                            "request would be refused",
                            handler->name(), wanted, profiles));
    }
    for (const config::SchedulingProfile& config : out_.effective.scheduling_profiles) {
      if (Status s = build_profile(config); !s.ok()) return s.error().wrap(kContext);
    }
    policy_->scheduler = std::make_unique<scheduling::Scheduler>(std::move(profiles_), handler,
                                                                 &options_.metrics, &options_.clock);
    return {};
  }

  // An error about a plugin, with the line that declares it.
  Error of_plugin(std::string_view name, std::string message) const {
    for (const config::PluginSpec& spec : out_.effective.plugins) {
      if (spec.name == name) return invalid_config(config::with_line(std::move(message), spec.line));
    }
    return invalid_config(std::move(message));
  }

  Status build_profile(const config::SchedulingProfile& wanted) {
    scheduling::Profile profile;
    profile.name = wanted.name;
    for (const config::ScheduledPlugin& entry : wanted.plugins) {
      const Plugin* plugin = instances_.find(entry.plugin_ref);
      if (const auto* scorer = dynamic_cast<const Scorer*>(plugin)) {
        profile.scorers.push_back({scorer, entry.weight.value_or(1.0),
                                   entry.max_contribution.value_or(std::numeric_limits<double>::infinity())});
      }
      if (const auto* filter = dynamic_cast<const Filter*>(plugin)) profile.filters.push_back(filter);
      const auto* picker = dynamic_cast<const Picker*>(plugin);
      if (picker == nullptr) continue;
      if (profile.picker != nullptr) {
        return invalid_config(config::with_line(
            fmt::format(
                "failed to add plugin '{}' to profile '{}': failed to set '{}' as picker, already have "
                "a registered picker plugin '{}'",
                entry.plugin_ref, wanted.name, picker->typed_name(), profile.picker->typed_name()),
            entry.line));
      }
      profile.picker = picker;
    }
    profiles_.push_back(std::move(profile));
    return {};
  }

  Status build_data_layer() {
    constexpr std::string_view kContext = "data layer config build failed";
    const config::DataLayerConfig& layer = *out_.effective.data_layer;
    for (size_t i = 0; i < layer.sources.size(); ++i) {
      const config::DataSource& config = layer.sources[i];
      const auto fail = [&](std::string message, const std::string& field, std::string_view plugin) {
        return at(out_.effective, fmt::format("dataLayer.sources[{}]{}", i, field), std::move(message),
                  plugin)
            .wrap(kContext);
      };
      if (config.plugin_ref.empty()) {
        return fail(fmt::format("dataLayer.sources[{}] is missing a 'pluginRef'", i), "", "");
      }
      if (instances_.find_as<discovery::ObjectSourcePlugin>(config.plugin_ref) != nullptr ||
          instances_.find_as<discovery::EndpointSourcePlugin>(config.plugin_ref) != nullptr) {
        if (Status s = check_notified(config, fail); !s.ok()) return s;
        continue;
      }
      director::Policy::MetricsSource source;
      source.source = instances_.find_as<signals::MetricsDataSource>(config.plugin_ref);
      if (source.source == nullptr) {
        return fail(fmt::format("the plugin {} is not a fwkdl.DataSource", config.plugin_ref), "",
                    config.plugin_ref);
      }
      const bool polled_already =
          std::any_of(policy_->sources.begin(), policy_->sources.end(),
                      [&](const auto& other) { return other.source == source.source; });
      if (polled_already) {
        return fail(fmt::format("duplicate polling source name \"{}\"", config.plugin_ref), "",
                    config.plugin_ref);
      }
      const bool fetches_models = source.source->type() == "models-data-source";
      for (size_t j = 0; j < config.extractors.size(); ++j) {
        const std::string& extractor = config.extractors[j];
        const std::string field = fmt::format(".extractors[{}]", j);
        const Plugin* plugin = instances_.find(extractor);
        if (plugin == nullptr)
          return fail(fmt::format("the plugin {} is not registered", extractor), field, extractor);
        if (dynamic_cast<const signals::CoreMetricsExtractor*>(plugin) == nullptr &&
            dynamic_cast<const signals::PageExtractor*>(plugin) == nullptr) {
          return fail(fmt::format("the plugin {} is not a fwkdl.Extractor", extractor), field, extractor);
        }
        const bool reads_models = dynamic_cast<const signals::ModelsExtractor*>(plugin) != nullptr;
        if (reads_models != fetches_models) {
          return fail(fmt::format("dispatcher {} rejected extractor {}: extractor type mismatch: the source "
                                  "fetches {}, the extractor reads {}",
                                  source.source->typed_name(), plugin->typed_name(),
                                  fetches_models ? "lists of models" : "metrics",
                                  reads_models ? "lists of models" : "metrics"),
                      field, extractor);
        }
        const bool twice = std::any_of(source.extractors.begin(), source.extractors.end(),
                                       [&](const Plugin* other) { return other->type() == plugin->type(); });
        if (twice) {
          return fail(fmt::format("duplicate extractor type configured for the same source: source={}, "
                                  "extractor type={}",
                                  source.source->typed_name(), plugin->type()),
                      field, extractor);
        }
        source.extractors.push_back(plugin);
      }
      policy_->sources.push_back(std::move(source));
    }
    if (Status s = check_object_sources(); !s.ok()) return s.error().wrap(kContext);
    if (!layer.cross_replica_syncer.empty()) {
      return at(out_.effective, "dataLayer.crossReplicaSyncerPluginRef",
                fmt::format("the plugin {} is not a fwkdl.CrossReplicaSyncer", layer.cross_replica_syncer))
          .wrap(kContext);
    }
    if (!layer.discovery) return {};
    if (options_.told_endpoints) {
      return at(out_.effective, "dataLayer.discovery",
                "dataLayer.discovery: the endpoints of several pools come from the cluster");
    }
    if (instances_.find(*layer.discovery) == nullptr) {
      return at(out_.effective, "dataLayer.discovery",
                fmt::format("discovery: no plugin found with name \"{}\"", *layer.discovery));
    }
    policy_->discovery = instances_.find_as<discovery::FileDiscoveryPlugin>(*layer.discovery);
    if (policy_->discovery == nullptr) {
      return at(
          out_.effective, "dataLayer.discovery",
          fmt::format("discovery: plugin \"{}\" does not implement EndpointDiscovery", *layer.discovery));
    }
    return {};
  }

  // The extractors that a notification source names are of its variant and kind.
  template <typename Fail>
  Status check_notified(const config::DataSource& config, const Fail& fail) const {
    const auto* of_objects = instances_.find_as<discovery::ObjectSourcePlugin>(config.plugin_ref);
    for (size_t j = 0; j < config.extractors.size(); ++j) {
      const std::string& name = config.extractors[j];
      const std::string field = fmt::format(".extractors[{}]", j);
      const Plugin* plugin = instances_.find(name);
      if (plugin == nullptr) return fail(fmt::format("the plugin {} is not registered", name), field, name);
      if (of_objects == nullptr) {
        if (dynamic_cast<const EndpointObserver*>(plugin) == nullptr &&
            dynamic_cast<const EndpointExtractor*>(plugin) == nullptr)
          return fail(fmt::format("the plugin {} is not a fwkdl.EndpointExtractor", name), field, name);
        continue;
      }
      const auto* extractor = dynamic_cast<const ObjectExtractor*>(plugin);
      if (extractor == nullptr)
        return fail(fmt::format("the plugin {} is not a fwkdl.NotificationExtractor", name), field, name);
      const ObjectKind kind = of_objects->params().kind;
      if (extractor->object_kind() != kind) {
        return fail(fmt::format("source {} notifies of {}, extractor {} takes {}", of_objects->typed_name(),
                                kind.text(), plugin->typed_name(), extractor->object_kind().text()),
                    field, name);
      }
    }
    return {};
  }

  // Of a source without a path.
  void say_where_from(const discovery::ObjectSourcePlugin& source) {
    const std::string kind = source.params().kind.text();
    if (options_.api_server == ApiServer::kNone || out_.effective.data_layer->discovery) {
      policy_->warnings.push_back(fmt::format(
          "plugin '{}' tells of no {}: it has no path, and no Kubernetes API is asked", source.name(), kind));
      return;
    }
    // What it is called where the pool is not known yet.
    const std::string pools = "the pool's namespace";
    const std::string ns = source.namespace_for(pools);
    const std::string place = ns.empty() ? "all namespaces" : ns == pools ? ns : "namespace " + ns;
    out_.notices.push_back(fmt::format(
        "plugin '{}' tells of {} in {}{}: the API server must allow list and watch there", source.name(),
        kind, place,
        options_.api_server == ApiServer::kUnknown ? ", where penstock epp follows a cluster" : ""));
  }

  // One source for each kind; it tells all extractors of the kind (notifications.h).
  Status check_object_sources() {
    std::vector<const discovery::ObjectSourcePlugin*> sources;
    for (const Plugin* plugin : instances_.in_order()) {
      const auto* source = dynamic_cast<const discovery::ObjectSourcePlugin*>(plugin);
      if (source == nullptr) continue;
      const ObjectKind& kind = source->params().kind;
      for (const discovery::ObjectSourcePlugin* other : sources) {
        if (other->params().kind != kind) continue;
        return of_plugin(source->name(),
                         fmt::format("duplicate notification source GVK {}: already used by source {}, "
                                     "cannot add {}",
                                     kind.text(), other->typed_name(), source->typed_name()));
      }
      if (source->params().path.empty()) say_where_from(*source);
      sources.push_back(source);
    }
    return {};
  }

  Status build_flow_control() {
    if (!policy_->flow_control) return {};
    Result<FlowControlPlan> plan = plan_flow_control(out_.effective, instances_);
    if (!plan) return std::move(plan).error();
    if (!options_.flow_control_available) {
      return at(
          out_.effective, "featureGates",
          "feature gate 'flowControl' is on, but this build has no flow-control queue: switch the gate off");
    }
    out_.flow_control = std::move(plan).value();
    return {};
  }

  Status build_parsers() {
    std::vector<const protocol::RequestParser*> parsers;
    for (size_t i = 0; i < out_.effective.parsers->size(); ++i) {
      const std::string& name = (*out_.effective.parsers)[i];
      const std::string path = fmt::format("requestHandler.parsers[{}]", i);
      if (instances_.find(name) == nullptr) {
        return at(out_.effective, path, fmt::format("the configured parser \"{}\" is not loaded", name));
      }
      const auto* parser = instances_.find_as<protocol::RequestParser>(name);
      if (parser == nullptr) {
        return at(out_.effective, path, fmt::format("the plugin \"{}\" is not a parser plugin", name), name);
      }
      parsers.push_back(parser);
    }
    policy_->parsers = std::make_unique<protocol::ParserTable>(parsers);
    return {};
  }

  Status find_detector() {
    const std::string& name = *out_.effective.flow_control->saturation_detector;
    if (instances_.find(name) == nullptr) {
      return at(out_.effective, "flowControl.saturationDetector",
                fmt::format("saturation detector plugin '{}' not found", name));
    }
    policy_->saturation = instances_.find_as<SaturationDetector>(name);
    if (policy_->saturation == nullptr) {
      return at(out_.effective, "flowControl.saturationDetector",
                fmt::format("plugin '{}' is not a fwkfc.SaturationDetector", name), name);
    }
    return {};
  }

  Status warn() {
    const std::vector<std::string> useless = find_useless(out_.effective, instances_, policy_->flow_control);
    policy_->warnings.insert(policy_->warnings.end(), useless.begin(), useless.end());
    return {};
  }

  // Until nothing is missing: every round creates at least one producer or ends.
  Status create_missing_producers() {
    bool created = true;
    while (created) {
      created = false;
      for (const DataGraph::MissingKey& missing : DataGraph(instances_.in_order()).missing()) {
        if (Status s = create_producer(missing, created); !s.ok()) return s;
      }
    }
    return {};
  }

  Status create_producer(const DataGraph::MissingKey& missing, bool& created) {
    const std::string key = missing.key.text();
    const std::string_view type = default_producer_of(key);
    if (type.empty()) {
      return of_plugin(missing.consumer->name(),
                       fmt::format("no default producer found for missing data key {}, consumed by {}", key,
                                   missing.consumer->name()));
    }
    if (instances_.find(type) != nullptr) return {};
    if (instances_.find_type(type) == nullptr) {
      return instances_.missing_type(type, "factory not found for default producer: {}")
          .wrap(fmt::format("data key {}, consumed by {}", key, missing.consumer->name()));
    }
    config::PluginSpec spec;
    spec.name = std::string(type);
    spec.type = std::string(type);
    if (Status made = instances_.create(spec, fmt::format("{}.parameters", type)); !made.ok()) {
      return invalid_config(
          fmt::format("failed to instantiate data producer \"{}\": {}, this is required by "
                      "datakey: {}, which is consumed by: {}",
                      type, made.error().message, key, missing.consumer->name()));
    }
    const auto* producer = instances_.find_as<DataProducer>(type);
    if (producer == nullptr) {
      return invalid_config(fmt::format("auto-created default entry \"{}\" is not a ProducerPlugin", type));
    }
    out_.auto_created.push_back({producer->typed_name(), key, missing.consumer->typed_name()});
    created = true;
    return {};
  }

  Status connect_data() {
    const DataGraph graph(instances_.in_order());
    if (const auto missing = graph.missing(); !missing.empty()) {
      return of_plugin(missing.front().consumer->name(),
                       fmt::format("data key {} is consumed by {}, but no plugin produces it",
                                   missing.front().key.text(), missing.front().consumer->name()));
    }
    for (const DataGraph::MissingKey& missing : graph.missing_optional()) {
      out_.notices.push_back(fmt::format(
          "Warning: optional data key has no producer, plugin will use fallback, plugin={} dataKey={}",
          missing.consumer->typed_name(), missing.key.text()));
    }
    Result<std::vector<const DataProducer*>> producers = graph.order();
    if (!producers) return std::move(producers).error();
    policy_->producers = std::move(producers).value();

    const std::vector<DataKey> keys = graph.attribute_keys();
    if (keys.size() >= kNoSlot) return invalid_config("too many data keys");
    policy_->attribute_slots = keys.size();
    for (const DataKey& key : keys) out_.data_keys.push_back(key.text());
    choose_prefix_slot(keys);
    for (const Plugin* plugin : instances_.in_order()) {
      const PluginSlots slots(keys, graph.declaration(*plugin));
      instances_.find(plugin->name())->bind_slots(slots);
      if (!slots.undeclared().empty()) {
        return invalid_config(fmt::format("plugin '{}' uses data key {} without declaring it", plugin->name(),
                                          slots.undeclared()));
      }
    }
    return {};
  }

  // The default key's column, else the first of its kind: what records and metrics show as prefix match.
  void choose_prefix_slot(const std::vector<DataKey>& keys) {
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i].data_type != data_keys::kPrefixMatch.data_type) continue;
      if (policy_->prefix_match_slot == kNoSlot || keys[i] == data_keys::kPrefixMatch) {
        policy_->prefix_match_slot = static_cast<AttributeSlot>(i);
      }
    }
  }

  Status check_stability() {
    if (options_.allow_experimental) return {};
    std::map<std::string_view, const Plugin*> by_name;
    for (const Plugin* plugin : instances_.in_order()) by_name.emplace(plugin->name(), plugin);
    for (const auto& [name, plugin] : by_name) {
      if (instances_.descriptor(*plugin).stability != Stability::kAlpha) continue;
      return of_plugin(name,
                       fmt::format("plugin '{}' (type: '{}') has Alpha stability level, but command line "
                                   "flag --allow-experimental-plugins is not set",
                                   name, plugin->type()));
    }
    return {};
  }

  void fill_slots() {
    for (const Plugin* plugin : instances_.in_order()) {
      if (const auto* p = dynamic_cast<const PreRequest*>(plugin)) policy_->pre_request.push_back(p);
      if (const auto* p = dynamic_cast<const RequestHook*>(plugin)) policy_->request_hooks.push_back(p);
      if (const auto* p = dynamic_cast<const Screener*>(plugin)) policy_->screeners.push_back(p);
      if (const auto* p = dynamic_cast<const Admitter*>(plugin)) policy_->admitters.push_back(p);
      if (const auto* p = dynamic_cast<const ResponseHook*>(plugin)) policy_->response_hooks.push_back(p);
      if (const auto* p = dynamic_cast<const SessionHolder*>(plugin)) policy_->session_holders.push_back(p);
      if (const auto* p = dynamic_cast<const AskingProducer*>(plugin); p != nullptr && p->asks())
        policy_->asking.push_back(p);
      if (const auto* p = dynamic_cast<const EndpointObserver*>(plugin))
        policy_->endpoint_observers.push_back(p);
      const auto* load = dynamic_cast<const LoadEstimator*>(plugin);
      if (load != nullptr && policy_->load_estimator == nullptr) policy_->load_estimator = load;
    }
  }

  void finish() {
    policy_->epoch = options_.epoch;
    policy_->plugins = instances_.release();
    out_.policy = std::move(policy_);
  }

  const AssemblyOptions& options_;
  Instances instances_;
  std::unique_ptr<director::Policy> policy_ = std::make_unique<director::Policy>();
  std::vector<scheduling::Profile> profiles_;
  Assembly out_;
};

const std::array<Assembler::Step, 11> Assembler::kLoadSteps{&Assembler::check_plugins,
                                                            &Assembler::create_plugins,
                                                            &Assembler::plan_freshness,
                                                            &Assembler::apply_defaults,
                                                            &Assembler::check_references,
                                                            &Assembler::build_scheduler,
                                                            &Assembler::build_data_layer,
                                                            &Assembler::build_flow_control,
                                                            &Assembler::build_parsers,
                                                            &Assembler::find_detector,
                                                            &Assembler::warn};

}  // namespace

Result<Assembly> assemble(std::string_view text, std::string_view source, const AssemblyOptions& options) {
  Result<Assembly> out = Assembler(options).run(config::decode_endpoint_picker_config(text, source));
  if (out.ok() && text.empty()) {
    out->notices.insert(out->notices.begin(),
                        "A configuration wasn't specified. A default one is being used.");
  }
  return out;
}

Result<Assembly> assemble(const config::Node& document, const AssemblyOptions& options) {
  return Assembler(options).run(config::decode_endpoint_picker_config(document));
}

}  // namespace penstock::assembly
