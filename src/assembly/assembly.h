#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "config/endpoint_picker_config.h"
#include "director/policy.h"
#include "flowcontrol/policies.h"
#include "inference/plugin.h"

// From an EndpointPickerConfig document to a running policy, in the reference's order: defaults, plugin
// instances, dependencies, data graph, and the effective configuration in its words. Runs off the loops;
// nothing is shared until the policy is handed over.
namespace penstock::assembly {

using PluginTables = std::span<const std::span<const PluginDescriptor>>;

// Every plugin of this build: scheduling, parsers, signals, flow control.
PluginTables builtin_tables();

// Whether the caller follows a Kubernetes API for sources of objects, as long as the configuration names no
// discovery.
enum class ApiServer : uint8_t {
  kNone,
  kAsked,
  kUnknown,  // it depends on who will run the configuration
};

struct AssemblyOptions {
  PluginTables tables;
  telemetry::MetricRegistry& metrics;  // outlives the policy
  const Clock& clock;                  // outlives the policy
  size_t loops = 1;
  // Whether types of stability Alpha may be used (--allow-experimental-plugins).
  bool allow_experimental = false;
  Duration scrape_interval = std::chrono::milliseconds(200);
  // Age up to which a signal is fresh where the configuration says nothing itself.
  Duration staleness = std::chrono::seconds(2);
  uint64_t epoch = 1;
  // State of the pool that outlives its policies; nullptr: every policy starts cold.
  WarmState* warm = nullptr;
  // The plugins' way to services outside; nullptr: there is none, and they do without.
  Outside* outside = nullptr;
  // Whether the caller runs the flow-control queue. If not, a configuration that turns the feature gate on
  // is refused: it would be ignored.
  bool flow_control_available = false;
  // Somebody else tells the pool's endpoints: a configuration that names a discovery is refused.
  bool told_endpoints = false;
  ApiServer api_server = ApiServer::kNone;
  std::span<const std::string_view> further_feature_gates = {};
};

// flowControl with its defaults applied and its references resolved; made when the feature gate is on.
struct FlowControlPlan {
  struct Band {
    int64_t priority = 0;
    int64_t max_bytes = 1000000000;
    int64_t max_requests = 5000;
    const flowcontrol::FairnessPolicy* fairness = nullptr;
    const flowcontrol::OrderingPolicy* ordering = nullptr;
  };
  int64_t max_bytes = 0;                                        // 0: unlimited
  int64_t max_requests = 0;                                     // 0: unlimited
  Duration request_ttl = std::chrono::seconds(60);              // zero: none
  Duration no_endpoint_request_ttl = std::chrono::seconds(60);  // zero: none
  Band default_band;
  Band default_negative_band;
  std::vector<Band> bands;  // descending priority; 0 is always among them
  const flowcontrol::UsageLimitPolicy* usage_limit = nullptr;
  bool enable_eviction = false;
};

// A producer that no configuration named and that some plugin's data needed.
struct AutoCreatedProducer {
  std::string producer;  // "name/type"
  std::string data_key;
  std::string consumer;  // "name/type"
};

struct Assembly {
  std::unique_ptr<director::Policy> policy;  // its warnings include deprecations
  config::EndpointPickerConfig raw;          // as decoded, before defaults
  config::EndpointPickerConfig effective;    // policy->effective_config as data
  std::vector<std::string> notices;          // worth a log line, no warning
  std::vector<AutoCreatedProducer> auto_created;
  std::vector<std::string> data_keys;  // "dataType/producer" by attribute slot
  std::optional<FlowControlPlan> flow_control;
};

// `text` empty: the built-in configuration. Errors have the reference's texts and wrapping, with the line
// where there is one; a type the reference knows and this build lacks is "plugin type '<t>' is known to
// llm-d-router but not part of this build".
Result<Assembly> assemble(std::string_view text, std::string_view source, const AssemblyOptions& options);
Result<Assembly> assemble(const config::Node& document, const AssemblyOptions& options);

}  // namespace penstock::assembly
