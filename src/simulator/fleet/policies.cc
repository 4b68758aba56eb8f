#include "simulator/fleet/policies.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "config/files.h"

namespace penstock::simulator {

namespace {

struct Entry {
  BuiltinPolicy shown;
  // {rate}: prefill tokens per second; {scorers}, {weights}: below.
  std::string_view config;
};

// Of the built-in configuration: its scorers, and a profile with all weights but the prefix's.
constexpr std::string_view kScorers = R"(- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
)";
constexpr std::string_view kWeights = R"(schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
)";

constexpr std::array<Entry, 11> kPolicies{{
    {{"round-robin", "endpoints in turn"},
     R"(plugins:
- type: round-robin-picker
)"},
    {{"random", "any endpoint"},
     R"(plugins:
- type: random-picker
)"},
    {{"least-requests", "the endpoint with the fewest requests of this gateway in flight"},
     R"(plugins:
- type: active-request-scorer
- type: max-score-picker
)"},
    {{"default", "the built-in configuration: queue, KV usage and approximate prefix, best total"}, ""},
    {{"near-tie", "the same scorers with near-tie-picker"},
     R"(plugins:
{scorers}- type: near-tie-picker
{weights}  - {pluginRef: prefix-cache-scorer, weight: 3}
  - pluginRef: near-tie-picker
)"},
    {{"strict", "the same scorers and weights in strict mode, which has near-tie-picker"},
     R"(plugins:
{scorers}{weights}  - {pluginRef: prefix-cache-scorer, weight: 3}
penstock: {mode: strict}
)"},
    {{"capped-prefix", "strict, where the prefix adds no more than the queue takes away"},
     R"(plugins:
{scorers}{weights}  - {pluginRef: prefix-cache-scorer, weight: 3, maxContribution: 2}
penstock: {mode: strict}
)"},
    {{"expected-ttft", "prefill time saved by the prefix against the wait, both in milliseconds"},
     R"(plugins:
- type: expected-ttft-scorer
  parameters: {prefillTokensPerSecond: {rate}}
- type: max-score-picker
)"},
    {{"predicted-latency", "latency-scorer on the built-in predictor, which learns while it runs"},
     R"(plugins:
- type: predicted-latency-producer
  parameters: {streamingMode: true}
- type: latency-scorer
- type: max-score-picker
)"},
    {{"lora-affinity", "the default's scorers with lora-affinity-scorer"},
     R"(plugins:
{scorers}- type: lora-affinity-scorer
{weights}  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: lora-affinity-scorer, weight: 2}
)"},
    {{"sticky-hash", "not a Penstock policy: a hash of the first two pieces of the prompt decides"},
     R"(plugins:
- type: random-picker
)"},
}};

void fill_in(std::string& config, std::string_view name, std::string_view value) {
  if (const size_t at = config.find(name); at != std::string::npos) config.replace(at, name.size(), value);
}

}  // namespace

std::vector<BuiltinPolicy> builtin_policies() {
  std::vector<BuiltinPolicy> out;
  for (const Entry& entry : kPolicies) out.push_back(entry.shown);
  return out;
}

Result<FleetPolicy> builtin_policy(std::string_view name, double prefill_tokens_per_second) {
  constexpr double kAtOnce = 1e9;
  const double rate = prefill_tokens_per_second > 0 ? std::max(prefill_tokens_per_second, 1.0) : kAtOnce;
  std::string known;
  for (const Entry& entry : kPolicies) {
    if (entry.shown.name != name) {
      known += (known.empty() ? "" : ", ") + std::string(entry.shown.name);
      continue;
    }
    FleetPolicy policy;
    policy.name = name;
    policy.source = "policy " + std::string(name);
    policy.config = entry.config;
    policy.sticky = name == "sticky-hash";
    fill_in(policy.config, "{scorers}", kScorers);
    fill_in(policy.config, "{weights}", kWeights);
    fill_in(policy.config, "{rate}", fmt::format("{:.0f}", rate));
    return policy;
  }
  return invalid_config(fmt::format("policy \"{}\" is not known; there are: {}", name, known));
}

Result<FleetPolicy> policy_from_file(const std::string& path) {
  Result<std::string> text = config::load_config_text(path);
  if (!text.ok()) return std::move(text).error();
  FleetPolicy policy;
  policy.name = std::filesystem::path(path).stem().string();
  policy.config = std::move(text).value();
  policy.source = path;
  return policy;
}

}  // namespace penstock::simulator
