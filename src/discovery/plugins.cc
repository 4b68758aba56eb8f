#include "discovery/plugins.h"

#include <array>

#include "config/params.h"

namespace penstock::discovery {

namespace {

void bind(config::Binder& b, FileDiscoveryParams& p) {
  b.field("path", p.path, "", "The endpoints file. Required.");
  b.field("watchFile", p.watch_file, "", "Whether the file is read again when it changes.");
}

Result<std::unique_ptr<Plugin>> create_file_discovery(const PluginFactoryContext& ctx) {
  FileDiscoveryParams params;
  Status status =
      config::decode_params(ctx.parameters, ctx.path, [&](config::Binder& b) { bind(b, params); });
  if (!status.ok()) return std::move(status).error();
  if (params.path.empty()) return invalid_config("file-discovery: 'path' parameter is required");
  return std::unique_ptr<Plugin>(std::make_unique<FileDiscoveryPlugin>(std::move(params)));
}

std::vector<config::ParamDoc> describe_file_discovery() {
  FileDiscoveryParams params;
  return config::describe_params([&](config::Binder& b) { bind(b, params); });
}

constexpr std::array kPlugins{
    PluginDescriptor{.type = "file-discovery",
                     .stability = Stability::kBeta,
                     .summary = "Endpoints from a file instead of a cluster.",
                     .create = create_file_discovery,
                     .describe = describe_file_discovery},
};

}  // namespace

std::span<const PluginDescriptor> discovery_plugins() {
  return kPlugins;
}

}  // namespace penstock::discovery
