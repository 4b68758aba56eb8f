#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "inference/endpoint.h"
#include "inference/signals.h"

namespace penstock::signals {

// One metric as a configuration names it: `name` or `name{label=value,…}`, equality only.
struct MetricSpec {
  std::string name;
  std::map<std::string, std::string, std::less<>> labels;

  std::string text() const;
  friend bool operator==(const MetricSpec&, const MetricSpec&) = default;
};

// The reference's grammar: bare values are put in quotes first (`(\w+)\s*=\s*([^",}\s]+)`), then
// `name {pairs}` is matched, then the pairs are split on commas; the last of a repeated label wins.
// The empty text is "disabled": nothing. Errors: `not a valid metric specification: "<s>"`,
// `invalid label pair "<p>" in specification: "<s>"`.
Result<std::optional<MetricSpec>> parse_metric_spec(std::string_view text);

// Whether an engine must export a signal. A missing required name is logged once and shown in metrics
// and `explain`; a missing optional one only reads as name_missing.
enum class Need : uint8_t { kRequired, kOptional };

// How one scalar signal is found: the first of `names` that the page has a sample of wins (newest name
// first); no names: the engine has no such metric, or it is disabled.
struct SignalRule {
  std::vector<MetricSpec> names;
  Need need = Need::kOptional;
};

// An info metric whose labels hold the size of the KV cache.
struct CacheInfoRule {
  std::optional<MetricSpec> spec;
  std::string block_size_label;
  std::string num_blocks_label;
};

// Which metrics of one engine mean what.
struct EngineMapping {
  std::string name;
  std::array<SignalRule, kSignalCount> rules;
  std::optional<MetricSpec> lora;           // always optional
  std::optional<MetricSpec> lora_resident;  // adapters loaded though idle, label adapter_name; strict mode
  CacheInfoRule cache_info;
  // Label that tells the data-parallel ranks of one port apart; "" when there is none.
  std::string rank_label;

  SignalRule& rule(Signal s) { return rules[static_cast<size_t>(s)]; }
  const SignalRule& rule(Signal s) const { return rules[static_cast<size_t>(s)]; }
  // True when the engine has any way to tell this signal.
  bool provides(Signal s) const;
};

// kCompatible: of several series the reference's choice (largest timestamp, first on ties).
// kStrict: ranks behind one port are summed (requests) or their maximum is taken (KV usage); waiting
// requests leave out those that wait for something else than capacity.
enum class SeriesMode : uint8_t { kCompatible, kStrict };

// The engines this build knows, in order: vllm, sglang, trtllm-serve, triton-tensorrt-llm, triton, and
// two the reference lacks: lmdeploy, llamacpp.
std::vector<EngineMapping> builtin_engines(SeriesMode mode);

inline constexpr std::string_view kEngineLabel = "llm-d.ai/engine-type";
inline constexpr std::string_view kLegacyEngineLabel = "inference.networking.k8s.io/engine-type";
inline constexpr std::string_view kDefaultEngine = "vllm";

// All mappings of one configuration. Immutable.
class EngineTable {
 public:
  // `custom` entries replace built-in engines of the same name entirely; other built-in ones are
  // appended. Errors: `engine config name cannot be empty`, `engine config name cannot be "default"
  // (reserved)`, `mapping for engine type "<n>" already exists`, `defaultEngine "<n>" not found in
  // engineConfigs`.
  static Result<EngineTable> build(std::vector<EngineMapping> custom, std::string_view default_engine,
                                   std::string_view label_key, SeriesMode mode);

  // The mapping for an endpoint: by `Endpoint::engine` when set, else by the label, the legacy label,
  // else the default; a name nobody knows is the default too.
  const EngineMapping& for_endpoint(const Endpoint& endpoint) const;
  // True when neither label nor configuration names the endpoint's engine: what its page exports decides.
  bool may_detect(const Endpoint& endpoint) const;

  const EngineMapping* find(std::string_view name) const;
  const EngineMapping& default_mapping() const { return mappings_[default_]; }
  std::span<const EngineMapping> mappings() const { return mappings_; }
  SeriesMode mode() const { return mode_; }

 private:
  std::string_view engine_name(const Endpoint& endpoint) const;

  std::vector<EngineMapping> mappings_;
  size_t default_ = 0;
  std::string label_key_;
  SeriesMode mode_ = SeriesMode::kCompatible;
};

}  // namespace penstock::signals
