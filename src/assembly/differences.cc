#include "assembly/differences.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace penstock::assembly {

namespace {

struct Difference {
  std::string_view type;  // of a plugin
  std::string_view text;
};

constexpr std::array kOfPlugins = {
    Difference{"token-load-scorer", "its producer is created where the configuration names none"},
    Difference{"static-usage-limit-policy", "threshold 0 is refused"},
    Difference{"approx-prefix-cache-producer",
               "a match is contiguous from the first block; tails are evicted first; capacity counts the "
               "engine's tokens; the block size is what most endpoints report; media and cache salt are part "
               "of the hash"},
    Difference{"queue-scorer", "a value that was never read counts as the largest one known, not as 0"},
    Difference{"kv-cache-utilization-scorer",
               "a value that was never read counts as the largest one known, not as 0"},
    Difference{"running-requests-size-scorer",
               "a value that was never read counts as the largest one known, not as 0"},
    Difference{"core-metrics-extractor",
               "a name that an engine does not export is a state, a log line and a metric, not 0; where "
               "neither label nor configuration names the engine, its page does"},
    Difference{"metrics-data-source", "found by its type under any name; pages end at 8 MiB"},
    Difference{"utilization-detector",
               "a pool without endpoints is no saturated one: a request of negative priority gets 503"},
    Difference{"decode-filter", "calls itself by its type in metrics and logs, not by-label"},
    Difference{"prefill-filter", "calls itself by its type in metrics and logs, not by-label"},
    Difference{"encode-filter", "calls itself by its type in metrics and logs, not by-label"},
    Difference{"prefill-header-handler", "calls itself by its type, not disagg-headers-handler"},
    Difference{"session-affinity-scorer", "at most 65,536 sessions, the least recently seen goes first"},
    Difference{"session-affinity-filter", "at most 65,536 sessions, the least recently seen goes first"},
    Difference{"predicted-latency-producer",
               "learns within the picker where no server is named, and where one fails"},
    Difference{"mm-embeddings-cache-producer", "at most 256 items of a request and 16,384 of an endpoint"},
    Difference{"data-parallel-profile-handler",
               "keeps scores and data of the target; primaryPort 0 leaves the destination alone"},
    Difference{"disaggregatedset-rollout-screener", "works before it was told of Pods, by endpoints' names"},
    Difference{"burst-prefix-cache-producer",
               "places a batch on the candidates of the first request that is decided"},
    Difference{"request-attribute-reporter", "part of CEL only, evaluated once at the end"},
    Difference{"file-discovery", "all or nothing: one bad entry leaves the last good set"},
};

}  // namespace

std::vector<std::string_view> difference_types() {
  std::vector<std::string_view> out;
  for (const Difference& one : kOfPlugins) out.push_back(one.type);
  return out;
}

std::vector<std::string> differences(const Assembly& assembly) {
  const config::EndpointPickerConfig& config = assembly.effective;
  std::vector<std::string> types;
  for (const config::PluginSpec& plugin : config.plugins) types.push_back(plugin.type);
  for (const AutoCreatedProducer& made : assembly.auto_created)
    types.push_back(made.producer.substr(made.producer.find('/') + 1));
  std::vector<std::string> out;
  for (const Difference& one : kOfPlugins) {
    if (std::find(types.begin(), types.end(), one.type) != types.end())
      out.push_back(fmt::format("{}: {}", one.type, one.text));
  }
  for (const config::SchedulingProfile& profile : config.scheduling_profiles) {
    if (profile.plugins.size() > 1) {
      out.emplace_back("schedulingProfiles: filters run in the document's order; there they may run in any");
      break;
    }
  }
  if (config.data_layer && config.data_layer->peer_discovery)
    out.emplace_back("dataLayer.peerDiscovery: without effect, as there, but for a warning");
  if (config.mode)
    out.push_back(fmt::format("penstock.mode {}: llm-d-router refuses the member penstock", *config.mode));
  return out;
}

}  // namespace penstock::assembly
