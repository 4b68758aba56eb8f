#include "cli/config_map.h"

#include <fmt/format.h>

#include "discovery/pool_config.h"
#include "io/loop.h"
#include "kubernetes/api_client.h"
#include "kubernetes/cluster_config.h"
#include "telemetry/metrics.h"

namespace penstock::cli {

Result<std::vector<ConfigMapFile>> read_config_map(std::string_view which, std::string_view kubeconfig) {
  const size_t slash = which.find('/');
  std::string ns(slash == std::string_view::npos ? "" : which.substr(0, slash));
  const std::string_view rest = which.substr(slash == std::string_view::npos ? 0 : slash + 1);
  const size_t colon = rest.find(':');
  const std::string name(rest.substr(0, colon));
  const std::string file(colon == std::string_view::npos ? "" : rest.substr(colon + 1));
  if (slash == 0 || name.empty() || rest.find('/') != std::string_view::npos ||
      (colon != std::string_view::npos && file.empty())) {
    return invalid_config(fmt::format("'{}' is not [NAMESPACE/]NAME[:FILE]", which));
  }
  auto cluster = kubernetes::find_cluster(kubeconfig, kubernetes::process_environment);
  if (!cluster.ok()) return std::move(cluster).error();
  if (ns.empty()) ns = cluster->ns.empty() ? "default" : cluster->ns;

  io::Loop loop;
  telemetry::MetricRegistry metrics;
  auto client = kubernetes::ApiClient::create(loop, *std::move(cluster), metrics);
  if (!client.ok()) return std::move(client).error();
  const kubernetes::Answer answer = io::block_on(loop, (*client)->get(kubernetes::kConfigMaps, ns, name));
  if (!answer.ok()) return invalid_config(answer.failure.message);
  kubernetes::JsonDocument document;
  const auto object = document.parse(answer.body);
  if (!object.ok()) return object.error();
  auto map = discovery::decode_config_map(*object);
  if (!map.ok()) return std::move(map).error();

  std::vector<ConfigMapFile> out;
  std::string names;
  for (auto& [key, text] : map->entries) {
    names += (names.empty() ? "" : ", ") + key;
    // The only entry is taken without its kind too, as for a pool.
    const bool is_config = map->entries.size() == 1 || text.find("EndpointPickerConfig") != std::string::npos;
    if (file.empty() ? !is_config : key != file) continue;
    out.push_back({fmt::format("configmap {}/{}, {}", ns, name, key), std::move(text)});
  }
  if (!out.empty()) return out;
  const std::string wanted =
      file.empty() ? std::string("EndpointPickerConfig") : fmt::format("file {}", file);
  return invalid_config(
      fmt::format("configmap {}/{} has no {}, but: {}", ns, name, wanted, names.empty() ? "nothing" : names));
}

}  // namespace penstock::cli
