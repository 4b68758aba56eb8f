#pragma once

#include <span>
#include <string>

#include "inference/notifications.h"
#include "inference/plugin.h"

namespace penstock::discovery {

// Parameters of `file-discovery` and `multicluster-file-discovery`.
struct FileDiscoveryParams {
  std::string path;
  bool watch_file = false;
  bool metrics_labels = false;  // the type's, no parameter
};

// The discovery plugins `file-discovery`, the endpoints file of a pool, and `multicluster-file-discovery`,
// whose endpoints are the gateways of other clusters: labels metricsAddress and metricsPort say where each
// one's metrics are. Holds decoded parameters; FileDiscovery does the work. Error: `<type>: 'path' parameter
// is required`.
class FileDiscoveryPlugin final : public Plugin {
 public:
  explicit FileDiscoveryPlugin(FileDiscoveryParams params) : params_(std::move(params)) {}
  const FileDiscoveryParams& params() const { return params_; }

 private:
  FileDiscoveryParams params_;
};

// Parameters of `k8s-notification-source`.
struct ObjectSourceParams {
  ObjectKind kind;
  std::string path;
  std::string ns;
  int64_t max_objects = 20'000;
  int64_t max_bytes = int64_t{128} << 20;

  friend bool operator==(const ObjectSourceParams&, const ObjectSourceParams&) = default;
};

// `k8s-notification-source`: tells ObjectExtractors of the objects of one kind. They come from the file
// `path` (object_file.h), which is watched; without one from the API server (kubernetes_objects.h), where the
// picker has one. Error: `version and kind are required for k8s-notification-source`.
class ObjectSourcePlugin final : public Plugin {
 public:
  explicit ObjectSourcePlugin(ObjectSourceParams params) : params_(std::move(params)) {}
  const ObjectSourceParams& params() const { return params_; }
  // Where an API server's objects lie, "": in all namespaces. As in llm-d-router the kinds of which a pool is
  // made (Pods, InferencePools, objectives, rewrites) are those of its own namespace, others all.
  std::string namespace_for(std::string_view pool_namespace) const;

 private:
  ObjectSourceParams params_;
};

// `endpoint-notification-source`: tells EndpointExtractors of the pool's members. Those that there are follow
// the pool by themselves: naming them is allowed and changes nothing. Takes no parameters.
class EndpointSourcePlugin final : public Plugin {};

// The discovery plugins of this build, one line each.
std::span<const PluginDescriptor> discovery_plugins();

}  // namespace penstock::discovery
