#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "config/node.h"
#include "config/params.h"

// The document `EndpointPickerConfig` (llm-d.ai/v1alpha1), as llm-d-router reads it: the fields, nothing
// of what they do. assembly/ turns it into a policy.
namespace penstock::config {

struct PluginSpec {
  std::string name;  // "" until defaults are applied: then the type
  std::string type;
  std::optional<Node> parameters;  // absent and null are both nothing
  int line = 0;                    // 0: injected
};

struct ScheduledPlugin {
  std::string plugin_ref;
  std::optional<double> weight;
  int line = 0;
  std::optional<double> max_contribution;  // ours; nothing: no bound
};

struct SchedulingProfile {
  std::string name;
  std::vector<ScheduledPlugin> plugins;
  int line = 0;
};

struct DataSource {
  std::string plugin_ref;
  std::vector<std::string> extractors;
  int line = 0;
};

struct DataLayerConfig {
  std::optional<bool> inject_defaults;  // nothing: true
  std::vector<DataSource> sources;
  std::optional<std::string> discovery;
  std::optional<std::string> peer_discovery;
  std::string cross_replica_syncer;
  std::optional<Duration> cross_replica_sync_interval;
};

struct PriorityBandConfig {
  int64_t priority = 0;
  std::optional<int64_t> max_bytes;     // nothing and 0: 1,000,000,000
  std::optional<int64_t> max_requests;  // nothing and 0: 5000
  std::string fairness_policy_ref;
  std::string ordering_policy_ref;
};

struct FlowControlConfig {
  std::optional<int64_t> max_bytes;  // nothing and 0: unlimited
  std::optional<int64_t> max_requests;
  std::optional<Duration> default_request_ttl;
  std::optional<Duration> no_endpoint_request_ttl;
  std::optional<PriorityBandConfig> default_priority_band;
  std::optional<PriorityBandConfig> default_negative_priority_band;
  std::vector<PriorityBandConfig> priority_bands;
  std::string usage_limit_policy_ref;
  std::optional<std::string> saturation_detector;
  bool enable_eviction = false;

  // True when something is set that the feature gate would ignore.
  bool sets_more_than_detector() const;
};

// penstock.freshness, ours: how the age of signals counts in strict mode. What is absent has the default that
// inference/freshness.h and the pool's settings give it.
struct FreshnessConfig {
  struct Bounds {
    std::optional<Duration> budget;
    std::optional<Duration> unknown_after;
  };
  struct SignalBounds {
    std::string signal;  // of kFreshnessSignals
    Bounds bounds;
    int line = 0;
  };
  Bounds bounds;                      // of every signal that has none of its own
  std::vector<SignalBounds> signals;  // in the order of kFreshnessSignals
  std::optional<bool> in_flight_credit;
  std::optional<double> min_fresh_share;
  std::optional<std::string> fallback;
  int line = 0;
};
// The signals whose age counts.
inline constexpr std::string_view kFreshnessSignals[] = {"waiting_requests", "running_requests",
                                                         "kv_usage_ratio", "lora_adapters", "attributes"};

struct EndpointPickerConfig {
  std::vector<std::string> feature_gates;  // entries as written: "name" or "name=<bool>"
  std::vector<PluginSpec> plugins;
  std::vector<SchedulingProfile> scheduling_profiles;
  std::optional<DataLayerConfig> data_layer;
  std::optional<FlowControlConfig> flow_control;
  std::optional<std::vector<std::string>> parsers;  // requestHandler.parsers; nothing: no requestHandler
  std::optional<std::string> saturation_detector;   // deprecated, kept as written
  std::optional<std::string> parser;                // deprecated, kept as written
  std::optional<std::string> mode;                  // penstock.mode, ours: "compatible" or "strict"
  std::optional<FreshnessConfig> freshness;         // penstock.freshness
  // Where the document has what has no line of its own, by path: "featureGates[0]",
  // "flowControl.priorityBands[1].maxBytes", "requestHandler.parsers[1]", "dataLayer.discovery".
  std::map<std::string, int, std::less<>> lines;

  // 0: not in the document.
  int line_of(std::string_view path) const {
    const auto found = lines.find(path);
    return found == lines.end() ? 0 : found->second;
  }
  bool strict() const { return mode == "strict"; }
};

struct DecodedConfig {
  EndpointPickerConfig config;
  std::vector<std::string> notices;  // deprecations, in the reference's words
};

// The built-in configuration: what an empty text means.
std::string_view default_endpoint_picker_config();

// Strict: unknown fields at any level, duplicate keys and wrong types are errors with path, value and
// line; names are case-sensitive; `parameters` is taken as it is. Copies deprecated fields to their
// successors where those are not set. Errors begin with "failed to decode configuration JSON/YAML: ".
Result<DecodedConfig> decode_endpoint_picker_config(std::string_view text, std::string_view source);
Result<DecodedConfig> decode_endpoint_picker_config(const Node& document);

struct FeatureGates {
  bool flow_control = false;
  bool ha_populate_non_leader_datastore = true;
};
// Defaults overlaid with the entries. Errors begin with "feature gate validation failed: ".
// `registered` are further gates that exist (tests); their values are dropped.
Result<FeatureGates> resolve_feature_gates(const EndpointPickerConfig& config,
                                           std::span<const std::string_view> registered = {});

// The configuration as one line, in the reference's grammar: what it logs as effective configuration.
std::string to_string(const EndpointPickerConfig& config);
std::string to_string(const PluginSpec& plugin);
std::string to_string(const ScheduledPlugin& plugin);
std::string to_string(const FlowControlConfig& flow_control);

// Documentation of the document's objects: path "", "plugins[]", "flowControl.priorityBands[]", ...
struct ConfigSection {
  std::string path;
  std::vector<ParamDoc> fields;
};
std::vector<ConfigSection> describe_endpoint_picker_config();

}  // namespace penstock::config
