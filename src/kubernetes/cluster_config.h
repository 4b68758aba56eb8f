#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace penstock::kubernetes {

// A program that prints credentials: users[].user.exec of a kubeconfig.
struct ExecPlugin {
  std::string api_version;  // client.authentication.k8s.io/v1 or v1beta1
  std::string command;      // with a slash relative to the kubeconfig's folder, else found in PATH
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> environment;  // beside our own
  std::string install_hint;
  std::string cluster_info;  // the cluster as JSON, where provideClusterInfo asks for it; "" it doesn't
};

// Which API server, and as whom.
struct ClusterConfig {
  std::string source;  // for messages: "in-cluster", "kubeconfig /home/a/.kube/config, context dev"
  bool tls = true;
  std::string host;
  uint16_t port = 443;
  std::string path_prefix;  // of the server's URL, without a slash at its end; usually ""

  std::string server_name;  // for SNI and verification; "" the host
  bool skip_verify = false;
  std::string ca_file, ca_pem;
  std::string certificate_file, certificate_pem;
  std::string key_file, key_pem;

  std::string token_file;  // read again and again; before `token`
  std::string token;
  std::string username, password;
  std::optional<ExecPlugin> exec;

  std::string ns;  // of the service account or context; "" not said
};

// Variables of the environment, or a test's own.
using Environment = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> process_environment(const char* name);

inline constexpr std::string_view kServiceAccountFolder = "/var/run/secrets/kubernetes.io/serviceaccount";

// KUBERNETES_SERVICE_HOST and _PORT, with token, ca.crt and namespace of the folder. kNotFound when this is
// no pod.
Result<ClusterConfig> in_cluster_config(const Environment& environment,
                                        std::string_view folder = kServiceAccountFolder);
// Kubeconfig files, merged as kubectl does: of a name given twice, and of current-context, the first counts.
// Relative paths are relative to their file's folder. `context` "": the current one. Files that don't exist
// are left out when there are several. Legacy auth-provider entries are refused by name.
// https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
Result<ClusterConfig> load_kubeconfig(const std::vector<std::string>& paths, std::string_view context = {});
// Where the process finds its cluster: `kubeconfig` (a flag) when given, else KUBECONFIG, else in-cluster,
// else $HOME/.kube/config. kNotFound when there is none of them.
Result<ClusterConfig> find_cluster(std::string_view kubeconfig, const Environment& environment);

}  // namespace penstock::kubernetes
