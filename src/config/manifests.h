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

// The objects a cluster has, from files. Fields, defaults and validation follow the Gateway API v1, the
// Gateway API Inference Extension (InferencePool v1, v1alpha2) and llm-d (InferenceObjective,
// InferenceModelRewrite v1alpha2). Decoding is strict: unknown fields, wrong types and values out of range
// are errors that name object, field, value and line. `status` and server-side metadata are ignored.
namespace penstock::config {

using LabelMap = std::map<std::string, std::string, std::less<>>;

struct ObjectMeta {
  std::string name;
  std::string ns = "default";
  LabelMap labels;
  LabelMap annotations;
  uint64_t creation_order = 0;  // rises with file name, then position in the file: the older object first
  std::string source;           // file name
  int line = 0;

  std::string full_name() const { return ns + "/" + name; }
};

struct EndpointPickerRef {
  std::string group;
  std::string kind = "Service";
  std::string name;
  std::optional<uint16_t> port;
  bool fail_open = false;  // failureMode FailOpen; default FailClose

  friend bool operator==(const EndpointPickerRef&, const EndpointPickerRef&) = default;
};

inline constexpr std::string_view kH2c = "kubernetes.io/h2c";

// inference.networking.k8s.io/v1 InferencePool; inference.networking.x-k8s.io/v1alpha2 is converted.
struct InferencePool {
  ObjectMeta meta;
  LabelMap selector;                   // matchLabels, all must match
  std::vector<uint16_t> target_ports;  // one endpoint each where an endpoint names no port
  std::string app_protocol;            // "http", "kubernetes.io/h2c"; empty: not said, which is http
  std::optional<EndpointPickerRef> endpoint_picker;

  bool selects(const LabelMap& labels) const;
};

struct PoolRef {
  std::string group = "inference.networking.k8s.io";
  std::string kind = "InferencePool";
  std::string name;
};

struct InferenceObjective {
  ObjectMeta meta;
  std::optional<int> priority;
  PoolRef pool;
};

struct InferenceModelRewrite {
  struct Target {
    std::optional<uint32_t> weight;  // 1..1000000
    std::string model;
  };
  struct Rule {
    // Exact model names, any of which matches. Empty with `generic`: every model.
    std::vector<std::string> models;
    bool generic = false;  // the rule has no `matches`
    std::vector<Target> targets;
  };
  ObjectMeta meta;
  PoolRef pool;
  std::vector<Rule> rules;
};

// gateway.networking.k8s.io/v1 Gateway: the listeners. A certificateRef names a Secret; stand-alone it is
// the folder `secrets/<name>/` beside the manifest, with the files `tls.crt` and `tls.key`, as a mounted
// Secret lays them out. The first reference counts. TLS passthrough and ListenerSets are refused.
struct Gateway {
  enum class Protocol : uint8_t { kHttp, kHttps };
  enum class RoutesFrom : uint8_t { kSame, kAll };
  struct Listener {
    std::string name;
    uint16_t port = 0;
    Protocol protocol = Protocol::kHttp;
    std::string hostname;  // "" any; may begin with "*."
    std::string cert_file;
    std::string key_file;
    RoutesFrom routes_from = RoutesFrom::kSame;
    int line = 0;
  };
  ObjectMeta meta;
  std::string class_name;
  std::vector<Listener> listeners;
};

// gateway.networking.k8s.io/v1 HTTPRoute. Filters, retry and sessionPersistence are refused by name.
struct HttpRoute {
  struct ParentRef {
    std::string group = "gateway.networking.k8s.io";
    std::string kind = "Gateway";
    std::string ns;  // defaulted to the route's
    std::string name;
    std::string section_name;  // "" any listener
    std::optional<uint16_t> port;
  };
  enum class PathKind : uint8_t { kPrefix, kExact, kRegex };
  struct ValueMatch {
    std::string name;  // headers: lower-case
    std::string value;
    bool regex = false;
  };
  struct Match {
    PathKind path_kind = PathKind::kPrefix;
    std::string path = "/";
    std::vector<ValueMatch> headers;  // of a name given twice only the first is kept
    std::vector<ValueMatch> query_params;
    std::string method;  // "" any
  };
  struct BackendRef {
    enum class Kind : uint8_t { kPool, kService };
    Kind kind = Kind::kService;
    std::string ns;  // defaulted to the route's
    std::string name;
    uint16_t port = 0;    // services only
    uint32_t weight = 1;  // 0..1000000
    int line = 0;
  };
  struct Rule {
    std::string name;
    std::vector<Match> matches;  // never empty
    std::vector<BackendRef> backends;
    std::optional<Duration> request_timeout;  // zero: none
    std::optional<Duration> backend_timeout;
  };
  ObjectMeta meta;
  std::vector<ParentRef> parents;
  std::vector<std::string> hostnames;  // lower-case
  std::vector<Rule> rules;             // never empty
};

// All objects of one load, each kind in creation order.
struct Manifests {
  std::vector<InferencePool> pools;
  std::vector<InferenceObjective> objectives;
  std::vector<InferenceModelRewrite> rewrites;
  std::vector<Gateway> gateways;
  std::vector<HttpRoute> routes;
  std::vector<std::string> warnings;  // kinds nobody reads, deprecated groups

  const InferencePool* find_pool(std::string_view ns, std::string_view name) const;
};

struct ManifestSource {
  std::string name;  // for messages
  std::string text;
  std::string folder;  // where `secrets/` is looked for
};

// Decodes sources in the given order; all errors are collected. An object given twice is an error.
Result<Manifests> decode_manifests(std::span<const ManifestSource> sources);
// A file, or a folder whose *.yaml, *.yml and *.json files are read by ascending name (not its
// subfolders). At most 1000 files of 4 MiB.
Result<Manifests> load_manifests(const std::string& path);

// One object of a cluster, by the same rules, but fields that we don't know are no errors: a newer CRD has
// them. `creation_order` stays 0. The pool's version decides how its spec is read; errors begin with kind and
// name of the object.
Result<InferencePool> decode_cluster_pool(const Node& object, bool v1alpha2);
Result<InferenceObjective> decode_cluster_objective(const Node& object);
Result<InferenceModelRewrite> decode_cluster_rewrite(const Node& object);

}  // namespace penstock::config
