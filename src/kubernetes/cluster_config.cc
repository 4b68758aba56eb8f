#include "kubernetes/cluster_config.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "base/arena.h"
#include "base/base64.h"
#include "base/strings.h"
#include "config/files.h"
#include "config/node.h"
#include "io/http_client.h"
#include "io/net.h"

namespace penstock::kubernetes {

namespace {

using config::Node;

constexpr size_t kMaxKubeconfigBytes = 4 << 20;
constexpr size_t kMaxNamespaceBytes = 256;

bool exists(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0;
}

std::string text_at(const Node* node, std::string_view key) {
  const Node* found = node != nullptr ? node->find(key) : nullptr;
  if (found == nullptr || found->is_null() || found->is_map() || found->is_list()) return {};
  return found->text;
}

bool flag_at(const Node* node, std::string_view key) {
  const Node* found = node != nullptr ? node->find(key) : nullptr;
  return found != nullptr && found->kind == Node::Kind::kBool && found->boolean;
}

struct File {
  std::string folder;
  std::string path;
  Node root;
};

// An entry of clusters, contexts or users, with the file that it is from.
struct Entry {
  const Node* value = nullptr;
  const File* file = nullptr;
};

Entry find_entry(const std::vector<File>& files, std::string_view list, std::string_view member,
                 std::string_view name) {
  for (const File& file : files) {
    const Node* items = file.root.find(list);
    if (items == nullptr || !items->is_list()) continue;
    for (const Node& item : items->items) {
      if (text_at(&item, "name") == name) return {item.find(member), &file};
    }
  }
  return {};
}

// The file a key names, below the kubeconfig's own folder.
std::string path_at(const Entry& entry, std::string_view key) {
  return config::resolve_path(entry.file->folder, text_at(entry.value, key));
}

Result<std::string> base64_at(const Entry& entry, std::string_view key) {
  std::string text = text_at(entry.value, key);
  std::erase_if(text, [](char c) { return c == '\n' || c == '\r' || c == ' '; });
  Arena arena;
  const auto bytes = base64_decode(text, arena);
  if (!bytes) return invalid_config(fmt::format("{}: {} is no base64", entry.file->path, key));
  return std::string(*bytes);
}

Status take_server(std::string_view url, ClusterConfig& out) {
  const auto parsed = io::parse_url(url);
  if (!parsed.ok()) return parsed.error().wrap(fmt::format("server \"{}\"", url));
  out.tls = parsed->https;
  out.host = parsed->host;
  out.port = parsed->port;
  out.path_prefix = parsed->target.substr(0, parsed->target.find_first_of("?#"));
  while (out.path_prefix.ends_with('/')) out.path_prefix.pop_back();
  return {};
}

Status take_cluster(const Entry& cluster, ClusterConfig& out) {
  const std::string server = text_at(cluster.value, "server");
  if (server.empty()) return invalid_config(fmt::format("{}: the cluster has no server", cluster.file->path));
  if (Status status = take_server(server, out); !status.ok()) return status.error().wrap(cluster.file->path);
  out.server_name = text_at(cluster.value, "tls-server-name");
  out.skip_verify = flag_at(cluster.value, "insecure-skip-tls-verify");
  auto ca = base64_at(cluster, "certificate-authority-data");
  if (!ca.ok()) return std::move(ca).error();
  out.ca_pem = std::move(*ca);
  if (out.ca_pem.empty()) out.ca_file = path_at(cluster, "certificate-authority");
  if (!text_at(cluster.value, "proxy-url").empty()) {
    return invalid_config(fmt::format("{}: proxy-url is not supported", cluster.file->path));
  }
  return {};
}

Status take_exec(const Node& node, const File& file, ClusterConfig& out) {
  ExecPlugin exec;
  exec.api_version = text_at(&node, "apiVersion");
  exec.command = text_at(&node, "command");
  exec.install_hint = text_at(&node, "installHint");
  if (exec.command.empty()) return invalid_config(fmt::format("{}: exec has no command", file.path));
  if (exec.command.find('/') != std::string::npos)
    exec.command = config::resolve_path(file.folder, exec.command);
  if (exec.api_version != "client.authentication.k8s.io/v1" &&
      exec.api_version != "client.authentication.k8s.io/v1beta1") {
    return invalid_config(
        fmt::format("{}: exec: apiVersion \"{}\" is not client.authentication.k8s.io/v1 or v1beta1",
                    file.path, exec.api_version));
  }
  if (text_at(&node, "interactiveMode") == "Always") {
    return invalid_config(fmt::format("{}: exec: interactiveMode Always: there is no terminal", file.path));
  }
  if (const Node* arguments = node.find("args"); arguments != nullptr) {
    for (const Node& item : arguments->items) exec.arguments.push_back(item.text);
  }
  if (const Node* environment = node.find("env"); environment != nullptr) {
    for (const Node& item : environment->items)
      exec.environment.emplace_back(text_at(&item, "name"), text_at(&item, "value"));
  }
  out.exec = std::move(exec);
  return {};
}

// What a plugin is told of the cluster: the Cluster object of client.authentication.k8s.io.
Result<std::string> cluster_info(const ClusterConfig& config) {
  std::string ca = config.ca_pem;
  if (!config.ca_file.empty()) {
    auto text = config::read_file(config.ca_file, kMaxKubeconfigBytes);
    if (!text.ok()) return std::move(text).error();
    ca = *std::move(text);
  }
  std::string out =
      fmt::format(R"({{"server":{})",
                  json_quote(fmt::format("{}://{}{}", config.tls ? "https" : "http",
                                         io::join_host_port(config.host, config.port), config.path_prefix)));
  if (!config.server_name.empty()) out += ",\"tls-server-name\":" + json_quote(config.server_name);
  if (config.skip_verify) out += R"(,"insecure-skip-tls-verify":true)";
  if (!ca.empty()) out += fmt::format(R"(,"certificate-authority-data":"{}")", base64_encode(ca));
  return out + R"(,"config":null})";
}

Status take_user(const Entry& user, ClusterConfig& out) {
  out.certificate_file = path_at(user, "client-certificate");
  out.key_file = path_at(user, "client-key");
  auto certificate = base64_at(user, "client-certificate-data");
  if (!certificate.ok()) return std::move(certificate).error();
  auto key = base64_at(user, "client-key-data");
  if (!key.ok()) return std::move(key).error();
  // Data goes before files, as in kubectl.
  if (!certificate->empty()) out.certificate_file.clear();
  if (!key->empty()) out.key_file.clear();
  out.certificate_pem = std::move(*certificate);
  out.key_pem = std::move(*key);
  out.token = text_at(user.value, "token");
  out.token_file = path_at(user, "tokenFile");
  out.username = text_at(user.value, "username");
  out.password = text_at(user.value, "password");
  for (const std::string_view refused : {"auth-provider", "as", "as-uid", "as-groups", "as-user-extra"}) {
    if (const Node* found = user.value->find(refused); found != nullptr && !found->is_null())
      return invalid_config(fmt::format("{}: {} of a user is not supported", user.file->path, refused));
  }
  const Node* exec = user.value->find("exec");
  if (exec == nullptr || exec->is_null()) return {};
  if (Status status = take_exec(*exec, *user.file, out); !status.ok()) return status;
  if (!flag_at(exec, "provideClusterInfo")) return {};
  auto info = cluster_info(out);
  if (!info.ok()) return std::move(info).error();
  out.exec->cluster_info = *std::move(info);
  return {};
}

Status check_certificates(const ClusterConfig& config) {
  const bool certificate = !config.certificate_file.empty() || !config.certificate_pem.empty();
  const bool key = !config.key_file.empty() || !config.key_pem.empty();
  if (certificate != key)
    return invalid_config(config.source + ": a client certificate and its key belong together");
  // One may be given as data and the other as a file: both become data then.
  return {};
}

// TLS takes a certificate and its key the same way.
Status read_mixed(ClusterConfig& config) {
  const auto take = [](std::string& file, std::string& pem) -> Status {
    if (file.empty()) return {};
    auto text = config::read_file(file, kMaxKubeconfigBytes);
    if (!text.ok()) return std::move(text).error();
    pem = std::move(*text);
    file.clear();
    return {};
  };
  if (config.certificate_file.empty() == config.key_file.empty()) return {};
  if (Status status = take(config.certificate_file, config.certificate_pem); !status.ok()) return status;
  return take(config.key_file, config.key_pem);
}

}  // namespace

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return value;
}

Result<ClusterConfig> in_cluster_config(const Environment& environment, std::string_view folder) {
  const auto host = environment("KUBERNETES_SERVICE_HOST");
  const auto port = environment("KUBERNETES_SERVICE_PORT");
  if (!host || host->empty() || !port || port->empty()) {
    return Error{ErrorCode::kNotFound,
                 "not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"};
  }
  const auto number = parse_u64(*port);
  if (!number || *number < 1 || *number > 65535)
    return invalid_config(fmt::format("KUBERNETES_SERVICE_PORT \"{}\" is no port", *port));
  ClusterConfig out;
  out.source = "in-cluster";
  out.host = *host;
  out.port = static_cast<uint16_t>(*number);
  out.token_file = fmt::format("{}/token", folder);
  out.ca_file = fmt::format("{}/ca.crt", folder);
  if (!exists(out.token_file)) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("this pod has no service account token: {} does not exist", out.token_file)};
  }
  if (const auto ns = config::read_file(fmt::format("{}/namespace", folder), kMaxNamespaceBytes); ns.ok())
    out.ns = trim(*ns);
  return out;
}

Result<ClusterConfig> load_kubeconfig(const std::vector<std::string>& paths, std::string_view context) {
  std::vector<File> files;
  for (const std::string& path : paths) {
    if (paths.size() > 1 && !exists(path)) continue;
    auto text = config::read_file(path, kMaxKubeconfigBytes);
    if (!text.ok()) return text.error().wrap("kubeconfig");
    auto root = config::parse_document(*text, path);
    if (!root.ok()) return root.error().wrap("kubeconfig");
    files.push_back({config::folder_of(path), path, std::move(*root)});
  }
  if (files.empty()) return Error{ErrorCode::kNotFound, "kubeconfig: none of its files exists"};
  std::string name(context);
  for (const File& file : files) {
    if (name.empty()) name = text_at(&file.root, "current-context");
  }
  const auto missing = [&](std::string_view what, std::string_view which) {
    return invalid_config(fmt::format("kubeconfig {}: there is no {} \"{}\"", paths.front(), what, which));
  };
  if (name.empty())
    return invalid_config(fmt::format("kubeconfig {}: current-context is not set", paths.front()));
  const Entry chosen = find_entry(files, "contexts", "context", name);
  if (chosen.value == nullptr) return missing("context", name);
  ClusterConfig out;
  out.source = fmt::format("kubeconfig {}, context {}", chosen.file->path, name);
  out.ns = text_at(chosen.value, "namespace");
  const std::string cluster_name = text_at(chosen.value, "cluster");
  const Entry cluster = find_entry(files, "clusters", "cluster", cluster_name);
  if (cluster.value == nullptr) return missing("cluster", cluster_name);
  if (Status status = take_cluster(cluster, out); !status.ok()) return status.error();
  if (const std::string user_name = text_at(chosen.value, "user"); !user_name.empty()) {
    const Entry user = find_entry(files, "users", "user", user_name);
    if (user.file == nullptr) return missing("user", user_name);
    if (user.value != nullptr && user.value->is_map()) {
      if (Status status = take_user(user, out); !status.ok()) return status.error();
    }
  }
  if (Status status = check_certificates(out); !status.ok()) return status.error();
  if (Status status = read_mixed(out); !status.ok()) return status.error();
  return out;
}

Result<ClusterConfig> find_cluster(std::string_view kubeconfig, const Environment& environment) {
  if (!kubeconfig.empty()) return load_kubeconfig({std::string(kubeconfig)});
  if (const auto paths = environment("KUBECONFIG"); paths && !paths->empty()) {
    std::vector<std::string> files;
    for (const std::string_view path : split(*paths, ':')) {
      if (!path.empty()) files.emplace_back(path);
    }
    if (!files.empty()) return load_kubeconfig(files);
  }
  auto inside = in_cluster_config(environment);
  if (inside.ok() || inside.error().code != ErrorCode::kNotFound) return inside;
  if (const auto home = environment("HOME"); home && !home->empty()) {
    const std::string path = *home + "/.kube/config";
    if (exists(path)) return load_kubeconfig({path});
  }
  return Error{ErrorCode::kNotFound,
               fmt::format("no Kubernetes cluster is known: {}, and neither --kubeconfig, "
                           "KUBECONFIG nor ~/.kube/config names one",
                           inside.error().message)};
}

}  // namespace penstock::kubernetes
