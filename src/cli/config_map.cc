#include "cli/config_map.h"

#include <fmt/format.h>

#include <map>

#include "io/loop.h"
#include "kubernetes/api_client.h"
#include "kubernetes/cluster_config.h"
#include "telemetry/metrics.h"

namespace penstock::cli {

Result<std::vector<ConfigMapFile>> read_config_map(std::string_view which, std::string_view kubeconfig) {
  auto cluster = kubernetes::find_cluster(kubeconfig, kubernetes::process_environment);
  if (!cluster.ok()) return std::move(cluster).error();
  std::string ns = cluster->ns.empty() ? "default" : cluster->ns;
  std::string_view rest = which;
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    ns = rest.substr(0, slash);
    rest.remove_prefix(slash + 1);
  }
  const size_t colon = rest.find(':');
  const std::string name(rest.substr(0, colon));
  const std::string file(colon == std::string_view::npos ? "" : rest.substr(colon + 1));
  if (ns.empty() || name.empty() || (colon != std::string_view::npos && file.empty()))
    return invalid_config(fmt::format("'{}' is not [NAMESPACE/]NAME[:FILE]", which));

  io::Loop loop;
  telemetry::MetricRegistry metrics;
  auto client = kubernetes::ApiClient::create(loop, *std::move(cluster), metrics);
  if (!client.ok()) return std::move(client).error();
  const kubernetes::Answer answer = io::block_on(loop, (*client)->get(kubernetes::kConfigMaps, ns, name));
  if (!answer.ok()) return invalid_config(answer.failure.message);
  kubernetes::JsonDocument document;
  const auto object = document.parse(answer.body);
  if (!object.ok()) return object.error();
  std::map<std::string, std::string> files;
  (*object)["data"].for_each_member(
      [&](std::string_view key, kubernetes::Json text) { files.emplace(key, text.text()); });

  std::vector<ConfigMapFile> out;
  std::string names;
  for (auto& [key, text] : files) {
    names += (names.empty() ? "" : ", ") + key;
    if (file.empty() ? text.find("EndpointPickerConfig") == std::string::npos : key != file) continue;
    out.push_back({fmt::format("configmap {}/{}, {}", ns, name, key), std::move(text)});
  }
  if (!out.empty()) return out;
  const std::string wanted =
      file.empty() ? std::string("EndpointPickerConfig") : fmt::format("file {}", file);
  return invalid_config(
      fmt::format("configmap {}/{} has no {}, but: {}", ns, name, wanted, names.empty() ? "nothing" : names));
}

}  // namespace penstock::cli
