#include "discovery/plugins.h"

#include <algorithm>
#include <array>

#include "config/params.h"
#include "kubernetes/resource.h"

namespace penstock::discovery {

namespace {

void bind(config::Binder& b, FileDiscoveryParams& p) {
  b.field("path", p.path, "", "The endpoints file. Required.");
  b.field("watchFile", p.watch_file, "", "Whether the file is read again when it changes.");
}

template <bool kMulticluster>
Result<std::unique_ptr<Plugin>> create_file_discovery(const PluginFactoryContext& ctx) {
  FileDiscoveryParams params;
  params.metrics_labels = kMulticluster;
  Status status =
      config::decode_params(ctx.parameters, ctx.path, [&](config::Binder& b) { bind(b, params); });
  if (!status.ok()) return std::move(status).error();
  if (params.path.empty()) {
    return invalid_config(std::string(kMulticluster ? "multicluster-file-discovery" : "file-discovery") +
                          ": 'path' parameter is required");
  }
  return std::unique_ptr<Plugin>(std::make_unique<FileDiscoveryPlugin>(std::move(params)));
}

std::vector<config::ParamDoc> describe_file_discovery() {
  FileDiscoveryParams params;
  return config::describe_params([&](config::Binder& b) { bind(b, params); });
}

void bind(config::Binder& b, ObjectSourceParams& p) {
  b.field("group", p.kind.group, "", "API group of the kind; empty: the core group.");
  b.field("version", p.kind.version, "", "Its version, such as v1. Required.");
  b.field("kind", p.kind.kind, "", "The kind, such as Pod. Required.");
  b.field("path", p.path, "",
          "File with the objects, as `kubectl get -o yaml` or `-o json` writes them; read again when it "
          "changes, objects of other kinds in it are left out. Empty: those of the API server, where the "
          "picker has one.");
  b.field("namespace", p.ns, "",
          "Namespace of the API server's objects. Empty: the pool's for Pods, InferencePools, "
          "InferenceObjectives and InferenceModelRewrites, all for other kinds.");
  b.field("maxObjects", p.max_objects, "objects",
          "Most of the API server's objects that are kept; further ones are left out.");
  b.quantity("maxMemory", p.max_bytes, "bytes", "Most memory that they take; further ones are left out.");
  if (p.max_objects < 1) b.fail("maxObjects", "must be at least 1");
  if (p.max_bytes < 1) b.fail("maxMemory", "must be at least 1");
}

// Of which a pool is made.
bool of_pools(const ObjectKind& kind) {
  constexpr std::array<std::string_view, 3> kKinds{"InferencePool", "InferenceObjective",
                                                   "InferenceModelRewrite"};
  constexpr std::array kGroups{kubernetes::kPoolGroup, kubernetes::kLegacyGroup, kubernetes::kLlmdGroup};
  if (kind.group.empty()) return kind.kind == kubernetes::kPods.kind;
  return std::find(kKinds.begin(), kKinds.end(), kind.kind) != kKinds.end() &&
         std::find(kGroups.begin(), kGroups.end(), kind.group) != kGroups.end();
}

Result<std::unique_ptr<Plugin>> create_object_source(const PluginFactoryContext& ctx) {
  if (ctx.parameters == nullptr || ctx.parameters->is_null())
    return invalid_config("k8s-notification-source requires parameters (group, version, kind)");
  ObjectSourceParams params;
  Status status =
      config::decode_params(ctx.parameters, ctx.path, [&](config::Binder& b) { bind(b, params); });
  if (!status.ok()) return std::move(status).error();
  if (params.kind.version.empty() || params.kind.kind.empty())
    return invalid_config("version and kind are required for k8s-notification-source");
  if (!params.path.empty() && !params.ns.empty())
    return invalid_config(
        "k8s-notification-source: 'namespace' is of the API server's objects, 'path' of a file's");
  return std::unique_ptr<Plugin>(std::make_unique<ObjectSourcePlugin>(std::move(params)));
}

std::vector<config::ParamDoc> describe_object_source() {
  ObjectSourceParams params;
  return config::describe_params([&](config::Binder& b) { bind(b, params); });
}

Result<std::unique_ptr<Plugin>> create_endpoint_source(const PluginFactoryContext&) {
  return std::unique_ptr<Plugin>(std::make_unique<EndpointSourcePlugin>());
}

constexpr std::array kPlugins{
    PluginDescriptor{.type = "file-discovery",
                     .stability = Stability::kBeta,
                     .summary = "Endpoints from a file instead of a cluster.",
                     .create = create_file_discovery<false>,
                     .describe = describe_file_discovery},
    PluginDescriptor{
        .type = "multicluster-file-discovery",
        .stability = Stability::kAlpha,
        .summary = "The gateways of other clusters from a file, each with where its metrics are.",
        .create = create_file_discovery<true>,
        .describe = describe_file_discovery},
    PluginDescriptor{.type = "k8s-notification-source",
                     .stability = Stability::kBeta,
                     .summary = "Tells extractors of the objects of one kind, from the API server or a file.",
                     .create = create_object_source,
                     .describe = describe_object_source},
    PluginDescriptor{.type = "endpoint-notification-source",
                     .stability = Stability::kBeta,
                     .summary = "Names extractors that follow the members of the pool.",
                     .create = create_endpoint_source},
};

}  // namespace

std::string ObjectSourcePlugin::namespace_for(std::string_view pool_namespace) const {
  if (!params_.ns.empty()) return params_.ns;
  return of_pools(params_.kind) ? std::string(pool_namespace) : "";
}

std::span<const PluginDescriptor> discovery_plugins() {
  return kPlugins;
}

}  // namespace penstock::discovery
