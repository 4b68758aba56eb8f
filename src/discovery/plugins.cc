#include "discovery/plugins.h"

#include <array>

#include "config/params.h"

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
          "changes, objects of other kinds in it are left out. Empty: nothing is told.");
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
                     .summary = "Tells extractors of the objects of one kind, from a file.",
                     .create = create_object_source,
                     .describe = describe_object_source},
    PluginDescriptor{.type = "endpoint-notification-source",
                     .stability = Stability::kBeta,
                     .summary = "Names extractors that follow the members of the pool.",
                     .create = create_endpoint_source},
};

}  // namespace

std::span<const PluginDescriptor> discovery_plugins() {
  return kPlugins;
}

}  // namespace penstock::discovery
