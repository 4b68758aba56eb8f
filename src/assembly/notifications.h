#pragma once

#include <memory>
#include <vector>

#include "discovery/plugins.h"
#include "inference/notifications.h"

namespace penstock::assembly {

// Who is told of the objects of one kind: all extractors of it, whether a source names them or not.
struct ObjectSource {
  const discovery::ObjectSourcePlugin* source = nullptr;
  std::vector<const ObjectExtractor*> extractors;
};
// Of a policy's plugins, in their order.
std::vector<ObjectSource> object_sources(const std::vector<std::unique_ptr<Plugin>>& plugins);

}  // namespace penstock::assembly
