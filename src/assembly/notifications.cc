#include "assembly/notifications.h"

namespace penstock::assembly {

std::vector<ObjectSource> object_sources(const std::vector<std::unique_ptr<Plugin>>& plugins) {
  std::vector<ObjectSource> out;
  for (const std::unique_ptr<Plugin>& plugin : plugins) {
    const auto* source = dynamic_cast<const discovery::ObjectSourcePlugin*>(plugin.get());
    if (source != nullptr) out.push_back({source, {}});
  }
  if (out.empty()) return out;
  for (const std::unique_ptr<Plugin>& plugin : plugins) {
    const auto* extractor = dynamic_cast<const ObjectExtractor*>(plugin.get());
    if (extractor == nullptr) continue;
    for (ObjectSource& source : out) {
      if (source.source->params().kind == extractor->object_kind()) source.extractors.push_back(extractor);
    }
  }
  return out;
}

}  // namespace penstock::assembly
