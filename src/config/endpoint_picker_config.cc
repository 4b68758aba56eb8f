#include "config/endpoint_picker_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/strings.h"
#include "base/units.h"
#include "config/decode.h"

namespace penstock::config {

namespace {

using std::chrono::seconds;

constexpr std::string_view kKind = "EndpointPickerConfig";
constexpr std::string_view kApiVersion = "llm-d.ai/v1alpha1";
constexpr std::string_view kDeprecatedApiVersion = "inference.networking.x-k8s.io/v1alpha1";

constexpr std::string_view kDefaultConfig = R"(apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
- type: core-metrics-extractor
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
)";

// Children of an object that are decoded on their own after its own fields.
struct TopNodes {
  std::string api_version;
  std::string kind;
  const Node* plugins = nullptr;
  const Node* profiles = nullptr;
  const Node* data_layer = nullptr;
  const Node* flow_control = nullptr;
  const Node* request_handler = nullptr;
  const Node* saturation_detector = nullptr;
  const Node* parser = nullptr;
  const Node* penstock = nullptr;
};

void bind_top(Binder& b, EndpointPickerConfig& config, TopNodes& nodes) {
  b.field("apiVersion", nodes.api_version, "", "llm-d.ai/v1alpha1; may be absent.");
  b.field("kind", nodes.kind, "", "EndpointPickerConfig; may be absent.");
  b.field("featureGates", config.feature_gates, "", "Entries \"name\" or \"name=<bool>\".");
  b.node("plugins", nodes.plugins, "The plugin instances to create.");
  b.node("schedulingProfiles", nodes.profiles, "Default: one profile with every filter, scorer and picker.");
  b.node("dataLayer", nodes.data_layer, "Where endpoint data comes from.");
  b.node(
      "flowControl", nodes.flow_control,
      "Queueing, decoded and checked. This build has no queue: the feature gate flowControl is refused, and "
      "only saturationDetector counts.");
  b.node("requestHandler", nodes.request_handler, "How requests are read.");
  b.node("saturationDetector", nodes.saturation_detector, "Deprecated: use flowControl.saturationDetector.");
  b.node("parser", nodes.parser, "Deprecated: use requestHandler.parsers.");
  b.node("penstock", nodes.penstock, "What the reference does not have.");
}

// `otherwise` is what holds where the document says nothing, for its documentation.
void optional_duration(Binder& b, std::string_view name, std::optional<Duration>& out, Duration otherwise,
                       std::string_view doc) {
  Duration value = otherwise;
  b.field(name, value, "", doc);
  if (b.present(name)) out = value;
}

struct PenstockNodes {
  std::string mode = "compatible";
  const Node* freshness = nullptr;
};

void bind_penstock(Binder& b, PenstockNodes& nodes) {
  b.field("mode", nodes.mode, "",
          "compatible (default): the reference's behaviour; strict: ours. docs/compatibility.md says what "
          "changes.");
  b.node("freshness", nodes.freshness,
         "How the age of signals counts; only with mode strict, where it is on without being named.");
}

void bind_bounds(Binder& b, FreshnessConfig::Bounds& bounds) {
  optional_duration(b, "budget", bounds.budget, seconds(2),
                    "Age up to which a value counts in full; default: the pool's metrics.staleness (2s).");
  optional_duration(b, "unknownAfter", bounds.unknown_after, seconds(10),
                    "Age from which it counts as unknown; in between its influence falls in a straight line; "
                    "default: 5 x budget.");
}

void bind_freshness(Binder& b, FreshnessConfig& freshness, const Node*& signals) {
  bind_bounds(b, freshness.bounds);
  b.node("signals", signals,
         "{budget, unknownAfter} of single signals: waiting_requests, running_requests, kv_usage_ratio, "
         "lora_adapters, and attributes: all other scraped numbers.");
  b.field("inFlightCredit", freshness.in_flight_credit, "",
          "Requests sent since the last scrape count as waiting and as running; default true.");
  b.field("minFreshShare", freshness.min_fresh_share, "ratio",
          "Share of candidates with fresh values of all signals that a profile needs, below which `fallback` "
          "decides; default 0.5, 0: never.");
  b.field("fallback", freshness.fallback, "",
          "least-in-flight (default): fewest own requests in flight, equals in turn; round-robin; none: the "
          "profile decides by what it has.");
}

void bind_plugin(Binder& b, PluginSpec& plugin, const Node*& parameters) {
  b.field("name", plugin.name, "", "Name of the instance; default: the type.");
  b.field("type", plugin.type, "", "Plugin type, see the plugin reference.");
  b.node("parameters", parameters, "Parameters of the type.");
}

void bind_ref(Binder& b, std::string& plugin_ref) {
  b.field("pluginRef", plugin_ref, "", "Name of a plugin instance.");
}

void bind_profile(Binder& b, SchedulingProfile& profile, const Node*& plugins) {
  b.field("name", profile.name, "", "Unique name of the profile.");
  b.node("plugins", plugins, "Filters, scorers and the picker, in order.");
}

void bind_scheduled(Binder& b, ScheduledPlugin& plugin) {
  b.field("pluginRef", plugin.plugin_ref, "", "Name of a plugin instance.");
  b.field("weight", plugin.weight, "", "Weight of a scorer; default 1.");
  b.field("maxContribution", plugin.max_contribution, "",
          "Penstock's own: the most that score x weight of a scorer may add or take away; absent: no bound.");
}

struct DataLayerNodes {
  const Node* sources = nullptr;
  const Node* discovery = nullptr;
  const Node* peer_discovery = nullptr;
};

void bind_data_layer(Binder& b, DataLayerConfig& layer, DataLayerNodes& nodes) {
  b.field("injectDefaults", layer.inject_defaults, "",
          "Whether metrics-data-source with core-metrics-extractor is added; default true.");
  b.node("sources", nodes.sources, "Data sources and their extractors.");
  b.node("discovery", nodes.discovery, "Plugin that finds the endpoints without Kubernetes.");
  b.node("peerDiscovery", nodes.peer_discovery, "Taken and never used, as in the reference.");
  b.field("crossReplicaSyncerPluginRef", layer.cross_replica_syncer, "",
          "No plugin is of this kind, as in the reference: replicas share state by `sharedState` of the "
          "settings.");
  optional_duration(b, "crossReplicaSyncInterval", layer.cross_replica_sync_interval,
                    std::chrono::milliseconds(200), "Taken and never used.");
}

void bind_source(Binder& b, DataSource& source, const Node*& extractors) {
  b.field("pluginRef", source.plugin_ref, "", "Name of a data source instance.");
  b.node("extractors", extractors, "List of {pluginRef}.");
}

void optional_quantity(Binder& b, std::string_view name, std::optional<int64_t>& out, std::string_view unit,
                       std::string_view doc) {
  int64_t value = 0;
  b.quantity(name, value, unit, doc);
  if (b.present(name)) out = value;
}

void bind_band(Binder& b, PriorityBandConfig& band) {
  b.field("priority", band.priority, "", "Higher is more important.");
  optional_quantity(b, "maxBytes", band.max_bytes, "bytes", "Queued bytes of the band; 0: 1000000000.");
  optional_quantity(b, "maxRequests", band.max_requests, "requests", "Queued requests of the band; 0: 5000.");
  b.field("fairnessPolicyRef", band.fairness_policy_ref, "", "Default global-strict-fairness-policy.");
  b.field("orderingPolicyRef", band.ordering_policy_ref, "", "Default fcfs-ordering-policy.");
}

void bind_request_handler(Binder& b, const Node*& parsers) {
  b.node("parsers", parsers, "Parsers by precedence: list of {pluginRef}.");
}

struct FlowControlNodes {
  const Node* default_band = nullptr;
  const Node* negative_band = nullptr;
  const Node* bands = nullptr;
  const Node* detector = nullptr;
};

void bind_flow_control(Binder& b, FlowControlConfig& flow, FlowControlNodes& nodes) {
  optional_quantity(b, "maxBytes", flow.max_bytes, "bytes", "Queued bytes of all bands; 0: unlimited.");
  optional_quantity(b, "maxRequests", flow.max_requests, "requests",
                    "Queued requests of all bands; 0: unlimited.");
  optional_duration(b, "defaultRequestTTL", flow.default_request_ttl, seconds(60),
                    "Longest wait while the pool has endpoints; 0s: no limit.");
  optional_duration(b, "noEndpointRequestTTL", flow.no_endpoint_request_ttl, seconds(60),
                    "Longest wait while the pool is empty; default: defaultRequestTTL.");
  b.node("defaultPriorityBand", nodes.default_band, "Template of bands that are not listed.");
  b.node("defaultNegativePriorityBand", nodes.negative_band, "The same for priorities below 0.");
  b.node("priorityBands", nodes.bands, "Bands with settings of their own.");
  b.field("usageLimitPolicyPluginRef", flow.usage_limit_policy_ref, "", "Default static-usage-limit-policy.");
  b.node("saturationDetector", nodes.detector, "{pluginRef}; default utilization-detector.");
  b.field("enableEviction", flow.enable_eviction, "", "Evicts requests in flight for more important ones.");
}

// Remembers where `node` and what the schema has below it are: nothing known is deeper or longer.
void note_lines(const Node* node, const std::string& path, EndpointPickerConfig& config, int depth = 5) {
  constexpr size_t kMaxKey = 40;
  if (node == nullptr || depth == 0) return;
  config.lines[path] = node->line;
  for (size_t i = 0; i < node->items.size(); ++i)
    note_lines(&node->items[i], fmt::format("{}[{}]", path, i), config, depth - 1);
  for (const auto& [key, value] : node->members) {
    if (key.size() <= kMaxKey) note_lines(&value, join_path(path, key), config, depth - 1);
  }
}

// {pluginRef: x}; absent: nothing.
std::optional<std::string> decode_ref(const Node* node, const std::string& path, Errors& errors) {
  if (node == nullptr) return std::nullopt;
  std::string plugin_ref;
  decode_object(node, path, errors, [&](Binder& b) { bind_ref(b, plugin_ref); });
  return plugin_ref;
}

void decode_plugins(const Node* list, EndpointPickerConfig& config, Errors& errors) {
  for_each_item(list, "plugins", errors, [&](const Node& item, const std::string& path) {
    PluginSpec plugin;
    plugin.line = item.line;
    const Node* parameters = nullptr;
    decode_object(&item, path, errors, [&](Binder& b) { bind_plugin(b, plugin, parameters); });
    if (parameters != nullptr) plugin.parameters = *parameters;
    config.plugins.push_back(std::move(plugin));
  });
}

void decode_profiles(const Node* list, EndpointPickerConfig& config, Errors& errors) {
  for_each_item(list, "schedulingProfiles", errors, [&](const Node& item, const std::string& path) {
    SchedulingProfile profile;
    profile.line = item.line;
    const Node* plugins = nullptr;
    decode_object(&item, path, errors, [&](Binder& b) { bind_profile(b, profile, plugins); });
    for_each_item(plugins, path + ".plugins", errors, [&](const Node& entry, const std::string& entry_path) {
      ScheduledPlugin plugin;
      plugin.line = entry.line;
      decode_object(&entry, entry_path, errors, [&](Binder& b) { bind_scheduled(b, plugin); });
      if (plugin.max_contribution && !(*plugin.max_contribution >= 0)) {
        errors.add(entry_path + ".maxContribution",
                   fmt::format("must be at least 0, got {}", *plugin.max_contribution),
                   entry.find("maxContribution")->line);
      }
      profile.plugins.push_back(std::move(plugin));
    });
    config.scheduling_profiles.push_back(std::move(profile));
  });
}

void decode_data_layer(const Node* node, EndpointPickerConfig& config, Errors& errors) {
  if (node == nullptr) return;
  DataLayerConfig layer;
  DataLayerNodes nodes;
  decode_object(node, "dataLayer", errors, [&](Binder& b) { bind_data_layer(b, layer, nodes); });
  for_each_item(nodes.sources, "dataLayer.sources", errors, [&](const Node& item, const std::string& path) {
    DataSource source;
    source.line = item.line;
    const Node* extractors = nullptr;
    decode_object(&item, path, errors, [&](Binder& b) { bind_source(b, source, extractors); });
    for_each_item(extractors, path + ".extractors", errors,
                  [&](const Node& entry, const std::string& entry_path) {
                    source.extractors.push_back(decode_ref(&entry, entry_path, errors).value_or(""));
                  });
    layer.sources.push_back(std::move(source));
  });
  layer.discovery = decode_ref(nodes.discovery, "dataLayer.discovery", errors);
  layer.peer_discovery = decode_ref(nodes.peer_discovery, "dataLayer.peerDiscovery", errors);
  config.data_layer = std::move(layer);
}

std::optional<PriorityBandConfig> decode_band(const Node* node, const std::string& path, Errors& errors) {
  if (node == nullptr) return std::nullopt;
  PriorityBandConfig band;
  decode_object(node, path, errors, [&](Binder& b) { bind_band(b, band); });
  return band;
}

void decode_flow_control(const Node* node, EndpointPickerConfig& config, Errors& errors) {
  if (node == nullptr) return;
  FlowControlConfig flow;
  FlowControlNodes nodes;
  decode_object(node, "flowControl", errors, [&](Binder& b) { bind_flow_control(b, flow, nodes); });
  flow.default_priority_band = decode_band(nodes.default_band, "flowControl.defaultPriorityBand", errors);
  flow.default_negative_priority_band =
      decode_band(nodes.negative_band, "flowControl.defaultNegativePriorityBand", errors);
  for_each_item(nodes.bands, "flowControl.priorityBands", errors,
                [&](const Node& item, const std::string& path) {
                  flow.priority_bands.push_back(*decode_band(&item, path, errors));
                });
  flow.saturation_detector = decode_ref(nodes.detector, "flowControl.saturationDetector", errors);
  config.flow_control = std::move(flow);
}

void decode_request_handler(const Node* node, EndpointPickerConfig& config, Errors& errors) {
  if (node == nullptr) return;
  const Node* parsers = nullptr;
  decode_object(node, "requestHandler", errors, [&](Binder& b) { bind_request_handler(b, parsers); });
  config.parsers.emplace();
  for_each_item(parsers, "requestHandler.parsers", errors, [&](const Node& item, const std::string& path) {
    config.parsers->push_back(decode_ref(&item, path, errors).value_or(""));
  });
}

FreshnessConfig decode_freshness(const Node& node, Errors& errors) {
  FreshnessConfig out;
  out.line = node.line;
  const Node* signals = nullptr;
  const std::string path = "penstock.freshness";
  decode_object(&node, path, errors, [&](Binder& b) { bind_freshness(b, out, signals); });
  std::array<const Node*, std::size(kFreshnessSignals)> nodes{};
  decode_object(signals, path + ".signals", errors, [&](Binder& b) {
    for (size_t i = 0; i < nodes.size(); ++i) b.node(kFreshnessSignals[i], nodes[i], "");
  });
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i] == nullptr) continue;
    FreshnessConfig::SignalBounds& own = out.signals.emplace_back();
    own.signal = kFreshnessSignals[i];
    own.line = nodes[i]->line;
    decode_object(nodes[i], path + ".signals." + own.signal, errors,
                  [&](Binder& b) { bind_bounds(b, own.bounds); });
  }
  const std::optional<std::string>& fallback = out.fallback;
  if (fallback && *fallback != "least-in-flight" && *fallback != "round-robin" && *fallback != "none") {
    errors.add(path + ".fallback",
               fmt::format("\"{}\" is not least-in-flight, round-robin or none", *fallback),
               node.find("fallback")->line);
  }
  if (out.min_fresh_share && !(*out.min_fresh_share >= 0 && *out.min_fresh_share <= 1)) {
    errors.add(path + ".minFreshShare", fmt::format("must be in [0, 1], got {}", *out.min_fresh_share),
               node.find("minFreshShare")->line);
  }
  return out;
}

void decode_penstock(const Node* node, EndpointPickerConfig& config, Errors& errors) {
  if (node == nullptr) return;
  PenstockNodes nodes;
  decode_object(node, "penstock", errors, [&](Binder& b) { bind_penstock(b, nodes); });
  if (nodes.mode != "compatible" && nodes.mode != "strict") {
    errors.add("penstock.mode", fmt::format("\"{}\" is not compatible or strict", nodes.mode),
               node->find("mode")->line);
  }
  config.mode = std::move(nodes.mode);
  if (nodes.freshness == nullptr) return;
  config.freshness = decode_freshness(*nodes.freshness, errors);
  if (config.mode == "compatible") {
    errors.add("penstock.freshness", "needs penstock.mode: strict; compatible mode takes no notice of age",
               nodes.freshness->line);
  }
}

// Which documents are ours. An absent kind or apiVersion is ours.
void check_identity(const Node& document, const TopNodes& nodes, DecodedConfig& out, Errors& errors) {
  const auto refuse = [&](std::string_view field, std::string_view wanted, const std::string& got) {
    errors.add(std::string(field), fmt::format("expected \"{}\", got \"{}\"", wanted, got),
               document.find(field)->line);
  };
  if (!nodes.kind.empty() && nodes.kind != kKind) refuse("kind", kKind, nodes.kind);
  if (nodes.api_version.empty() || nodes.api_version == kApiVersion) return;
  if (nodes.api_version == kDeprecatedApiVersion) {
    out.notices.push_back(fmt::format("DEPRECATION: apiVersion {}/{} is deprecated, replacement={}/{}",
                                      kDeprecatedApiVersion, kKind, kApiVersion, kKind));
    return;
  }
  refuse("apiVersion", kApiVersion, nodes.api_version);
}

void copy_deprecated(DecodedConfig& out) {
  EndpointPickerConfig& config = out.config;
  if (config.saturation_detector) {
    out.notices.emplace_back(
        "DEPRECATION: top-level saturationDetector is deprecated, use flowControl.saturationDetector "
        "instead. "
        "If both are set, the new field is used.");
    if (!config.flow_control) config.flow_control.emplace();
    if (!config.flow_control->saturation_detector) {
      config.flow_control->saturation_detector = config.saturation_detector;
      config.lines["flowControl.saturationDetector"] = config.line_of("saturationDetector");
    }
  }
  if (config.parser) {
    out.notices.emplace_back(
        "DEPRECATION: top-level parser is deprecated, use requestHandler.parsers instead. If both are set, "
        "the new field is used.");
    if (!config.parsers) config.parsers.emplace();
    if (config.parsers->empty()) {
      config.parsers->push_back(*config.parser);
      config.lines["requestHandler.parsers[0]"] = config.line_of("parser");
    }
  }
}

// Go's strconv.ParseBool over a lower-cased text.
std::optional<bool> parse_go_bool(std::string_view text) {
  static constexpr std::array<std::string_view, 3> kTrue{"1", "t", "true"};
  static constexpr std::array<std::string_view, 3> kFalse{"0", "f", "false"};
  if (std::find(kTrue.begin(), kTrue.end(), text) != kTrue.end()) return true;
  if (std::find(kFalse.begin(), kFalse.end(), text) != kFalse.end()) return false;
  return std::nullopt;
}

std::string braced(const std::vector<std::string>& parts) {
  return fmt::format("{{{}}}", fmt::join(parts, ", "));
}

template <typename T, typename Print>
std::string listed(const std::vector<T>& items, std::string_view separator, Print&& print) {
  std::vector<std::string> texts;
  texts.reserve(items.size());
  for (const T& item : items) texts.push_back(print(item));
  return fmt::format("[{}]", fmt::join(texts, separator));
}

std::string ref_text(const std::string& plugin_ref) {
  return fmt::format("{{PluginRef: {}}}", plugin_ref);
}

std::string ref_or_nil(const std::optional<std::string>& plugin_ref) {
  return plugin_ref ? ref_text(*plugin_ref) : "<nil>";
}

std::string band_text(const PriorityBandConfig& band) {
  std::vector<std::string> parts{fmt::format("Priority: {}", band.priority)};
  if (band.max_bytes) parts.push_back(fmt::format("MaxBytes: {}", *band.max_bytes));
  if (band.max_requests) parts.push_back(fmt::format("MaxRequests: {}", *band.max_requests));
  if (!band.fairness_policy_ref.empty()) parts.push_back("FairnessPolicyRef: " + band.fairness_policy_ref);
  if (!band.ordering_policy_ref.empty()) parts.push_back("OrderingPolicyRef: " + band.ordering_policy_ref);
  return braced(parts);
}

std::string profile_text(const SchedulingProfile& profile) {
  std::vector<std::string> parts{"Name: " + profile.name};
  if (!profile.plugins.empty()) {
    parts.push_back("Plugins: " +
                    listed(profile.plugins, " ", [](const ScheduledPlugin& p) { return to_string(p); }));
  }
  return braced(parts);
}

std::string source_text(const DataSource& source) {
  std::vector<std::string> parts{"PluginRef: " + source.plugin_ref};
  if (!source.extractors.empty()) parts.push_back("Extractors: " + listed(source.extractors, " ", ref_text));
  return braced(parts);
}

std::string data_layer_text(const DataLayerConfig& layer) {
  return fmt::format(
      "{{Sources: {}, Discovery: {}, PeerDiscovery: {}, CrossReplicaSyncerPluginRef: {}, "
      "CrossReplicaSyncInterval: {}}}",
      listed(layer.sources, " ", source_text), ref_or_nil(layer.discovery), ref_or_nil(layer.peer_discovery),
      layer.cross_replica_syncer,
      layer.cross_replica_sync_interval ? format_duration(*layer.cross_replica_sync_interval) : "<nil>");
}

std::string bounds_text(const FreshnessConfig::Bounds& bounds) {
  std::vector<std::string> parts;
  if (bounds.budget) parts.push_back("Budget: " + format_duration(*bounds.budget));
  if (bounds.unknown_after) parts.push_back("UnknownAfter: " + format_duration(*bounds.unknown_after));
  return braced(parts);
}

std::string freshness_text(const FreshnessConfig& freshness) {
  std::vector<std::string> parts;
  parts.push_back("Bounds: " + bounds_text(freshness.bounds));
  for (const FreshnessConfig::SignalBounds& own : freshness.signals) {
    parts.push_back(fmt::format("{}: {}", own.signal, bounds_text(own.bounds)));
  }
  if (freshness.in_flight_credit) {
    parts.push_back(fmt::format("InFlightCredit: {}", *freshness.in_flight_credit));
  }
  if (freshness.min_fresh_share)
    parts.push_back(fmt::format("MinFreshShare: {}", *freshness.min_fresh_share));
  if (freshness.fallback) parts.push_back("Fallback: " + *freshness.fallback);
  return braced(parts);
}

}  // namespace

bool FlowControlConfig::sets_more_than_detector() const {
  return max_bytes || max_requests || default_request_ttl || no_endpoint_request_ttl ||
         default_priority_band || default_negative_priority_band || !priority_bands.empty() ||
         !usage_limit_policy_ref.empty() || enable_eviction;
}

std::string_view default_endpoint_picker_config() {
  return kDefaultConfig;
}

Result<DecodedConfig> decode_endpoint_picker_config(const Node& document) {
  DecodedConfig out;
  Errors errors;
  TopNodes nodes;
  decode_object(&document, "", errors, [&](Binder& b) { bind_top(b, out.config, nodes); });
  check_identity(document, nodes, out, errors);
  for (const char* part :
       {"featureGates", "dataLayer", "flowControl", "requestHandler", "saturationDetector", "parser"})
    note_lines(document.find(part), part, out.config);
  decode_plugins(nodes.plugins, out.config, errors);
  decode_profiles(nodes.profiles, out.config, errors);
  decode_data_layer(nodes.data_layer, out.config, errors);
  decode_flow_control(nodes.flow_control, out.config, errors);
  decode_request_handler(nodes.request_handler, out.config, errors);
  out.config.saturation_detector = decode_ref(nodes.saturation_detector, "saturationDetector", errors);
  out.config.parser = decode_ref(nodes.parser, "parser", errors);
  decode_penstock(nodes.penstock, out.config, errors);
  if (!errors.empty()) return errors.joined().wrap("failed to decode configuration JSON/YAML");
  copy_deprecated(out);
  return out;
}

Result<DecodedConfig> decode_endpoint_picker_config(std::string_view text, std::string_view source) {
  if (text.empty()) text = kDefaultConfig;
  Result<Node> document = parse_document(text, source);
  if (!document) return document.error().wrap("failed to decode configuration JSON/YAML");
  return decode_endpoint_picker_config(*document);
}

Result<FeatureGates> resolve_feature_gates(const EndpointPickerConfig& config,
                                           std::span<const std::string_view> registered) {
  constexpr std::string_view kContext = "feature gate validation failed";
  FeatureGates gates;
  bool dropped = false;
  for (size_t i = 0; i < config.feature_gates.size(); ++i) {
    const std::string& entry = config.feature_gates[i];
    const int line = config.line_of(fmt::format("featureGates[{}]", i));
    const std::vector<std::string_view> parts = split(entry, '=');
    const std::string_view name = parts[0];
    bool* gate = nullptr;
    if (name == "flowControl") gate = &gates.flow_control;
    if (name == "haPopulateNonLeaderDatastore") gate = &gates.ha_populate_non_leader_datastore;
    if (std::find(registered.begin(), registered.end(), name) != registered.end()) gate = &dropped;
    if (gate == nullptr) {
      return invalid_config(
                 with_line(fmt::format("feature gate '{}' is unknown or unregistered", name), line))
          .wrap(kContext);
    }
    *gate = true;
    if (parts.size() < 2) continue;
    const std::string value = ascii_lower(trim(parts[1]));
    const std::optional<bool> parsed = parse_go_bool(value);
    if (!parsed) {
      return invalid_config(with_line(fmt::format("{} is not a valid value for the feature gate {} (error: "
                                                  "strconv.ParseBool: parsing \"{}\": invalid syntax)",
                                                  value, name, value),
                                      line))
          .wrap(kContext);
    }
    *gate = *parsed;
  }
  return gates;
}

std::string to_string(const PluginSpec& plugin) {
  std::vector<std::string> parts;
  if (!plugin.name.empty()) parts.push_back("Name: " + plugin.name);
  parts.push_back("Type: " + plugin.type);
  if (plugin.parameters) parts.push_back("Parameters: " + plugin.parameters->to_json());
  return braced(parts);
}

std::string to_string(const ScheduledPlugin& plugin) {
  std::vector<std::string> parts{"PluginRef: " + plugin.plugin_ref};
  if (plugin.weight) parts.push_back(fmt::format("Weight: {:.2f}", *plugin.weight));
  if (plugin.max_contribution) {
    parts.push_back(fmt::format("MaxContribution: {:.2f}", *plugin.max_contribution));
  }
  return braced(parts);
}

std::string to_string(const FlowControlConfig& flow) {
  std::vector<std::string> parts;
  parts.push_back(flow.max_bytes ? fmt::format("MaxBytes: {}", *flow.max_bytes) : "MaxBytes: unlimited");
  parts.push_back(flow.max_requests ? fmt::format("MaxRequests: {}", *flow.max_requests)
                                    : "MaxRequests: unlimited");
  if (flow.default_request_ttl) {
    parts.push_back("DefaultRequestTTL: " + format_duration(*flow.default_request_ttl));
  }
  if (flow.no_endpoint_request_ttl) {
    parts.push_back("NoEndpointRequestTTL: " + format_duration(*flow.no_endpoint_request_ttl));
  }
  if (flow.default_priority_band) {
    parts.push_back("DefaultPriorityBand: " + band_text(*flow.default_priority_band));
  }
  if (flow.default_negative_priority_band) {
    parts.push_back("DefaultNegativePriorityBand: " + band_text(*flow.default_negative_priority_band));
  }
  if (!flow.priority_bands.empty()) {
    parts.push_back("PriorityBands: " + listed(flow.priority_bands, " ", band_text));
  }
  if (!flow.usage_limit_policy_ref.empty()) {
    parts.push_back("UsageLimitPolicyRef: " + flow.usage_limit_policy_ref);
  }
  if (flow.saturation_detector) parts.push_back("SaturationDetector: " + ref_text(*flow.saturation_detector));
  if (flow.enable_eviction) parts.emplace_back("EnableEviction: true");
  return braced(parts);
}

std::string to_string(const EndpointPickerConfig& config) {
  std::vector<std::string> parts;
  if (!config.feature_gates.empty()) {
    parts.push_back(fmt::format("FeatureGates: {{{}}}", fmt::join(config.feature_gates, ",")));
  }
  if (!config.plugins.empty()) {
    parts.push_back("Plugins: " +
                    listed(config.plugins, " ", [](const PluginSpec& p) { return to_string(p); }));
  }
  if (!config.scheduling_profiles.empty()) {
    parts.push_back("SchedulingProfiles: " + listed(config.scheduling_profiles, " ", profile_text));
  }
  if (config.data_layer) parts.push_back("DataLayer: " + data_layer_text(*config.data_layer));
  if (config.flow_control) parts.push_back("FlowControl: " + to_string(*config.flow_control));
  if (config.parsers) {
    std::vector<std::string> inner;
    if (!config.parsers->empty()) inner.push_back("Parsers: " + listed(*config.parsers, ", ", ref_text));
    parts.push_back("RequestHandler: " + braced(inner));
  }
  if (config.saturation_detector) {
    parts.push_back("SaturationDetector: " + ref_text(*config.saturation_detector));
  }
  if (config.parser) parts.push_back("Parser: " + ref_text(*config.parser));
  if (config.mode) {
    std::vector<std::string> inner{"Mode: " + *config.mode};
    if (config.freshness) inner.push_back("Freshness: " + freshness_text(*config.freshness));
    parts.push_back("Penstock: " + braced(inner));
  }
  return braced(parts);
}

std::vector<ConfigSection> describe_endpoint_picker_config() {
  EndpointPickerConfig config;
  TopNodes top;
  PluginSpec plugin;
  SchedulingProfile profile;
  ScheduledPlugin scheduled;
  DataLayerConfig layer;
  DataLayerNodes layer_nodes;
  DataSource source;
  FlowControlConfig flow;
  FlowControlNodes flow_nodes;
  PriorityBandConfig band;
  const Node* node = nullptr;
  PenstockNodes penstock;
  FreshnessConfig freshness;
  std::vector<ConfigSection> out;
  const auto add = [&](std::string path, auto&& bind) {
    out.push_back({std::move(path), describe_params(bind)});
  };
  add("", [&](Binder& b) { bind_top(b, config, top); });
  add("plugins[]", [&](Binder& b) { bind_plugin(b, plugin, node); });
  add("schedulingProfiles[]", [&](Binder& b) { bind_profile(b, profile, node); });
  add("schedulingProfiles[].plugins[]", [&](Binder& b) { bind_scheduled(b, scheduled); });
  add("dataLayer", [&](Binder& b) { bind_data_layer(b, layer, layer_nodes); });
  add("dataLayer.sources[]", [&](Binder& b) { bind_source(b, source, node); });
  add("flowControl", [&](Binder& b) { bind_flow_control(b, flow, flow_nodes); });
  add("flowControl.priorityBands[]", [&](Binder& b) { bind_band(b, band); });
  add("requestHandler", [&](Binder& b) { bind_request_handler(b, node); });
  add("penstock", [&](Binder& b) { bind_penstock(b, penstock); });
  add("penstock.freshness", [&](Binder& b) { bind_freshness(b, freshness, node); });
  return out;
}

}  // namespace penstock::config
