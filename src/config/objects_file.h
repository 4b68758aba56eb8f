#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/node.h"

namespace penstock::config {

// An object of the Kubernetes API as a file has it, whatever its kind.
struct ApiObject {
  std::string group;  // "" is the core group
  std::string version;
  std::string kind;
  std::string ns = "default";
  std::string name;
  Node node;  // the whole of it, a map
};

inline constexpr size_t kMaxObjectsFileBytes = 16 << 20;

// YAML or JSON, several documents with "---" between them; lists (kind List or <kind>List, as kubectl and the
// API write them) stand for their items, which may leave apiVersion and kind to a <kind>List. Only
// apiVersion, kind, metadata.namespace and metadata.name are looked at. All or nothing: errors name object
// and line; an object that comes twice is one.
Result<std::vector<ApiObject>> decode_objects(std::string_view text, std::string_view source);
Result<std::vector<ApiObject>> load_objects(const std::string& path);

}  // namespace penstock::config
