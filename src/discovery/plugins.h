#pragma once

#include <span>
#include <string>

#include "inference/plugin.h"

namespace penstock::discovery {

// Parameters of `file-discovery`.
struct FileDiscoveryParams {
  std::string path;
  bool watch_file = false;
};

// The discovery plugin `file-discovery`: the endpoints file of a pool. Holds decoded parameters;
// FileDiscovery does the work. Error: `file-discovery: 'path' parameter is required`.
class FileDiscoveryPlugin final : public Plugin {
 public:
  explicit FileDiscoveryPlugin(FileDiscoveryParams params) : params_(std::move(params)) {}
  const FileDiscoveryParams& params() const { return params_; }

 private:
  FileDiscoveryParams params_;
};

// The discovery plugins of this build, one line each.
std::span<const PluginDescriptor> discovery_plugins();

}  // namespace penstock::discovery
