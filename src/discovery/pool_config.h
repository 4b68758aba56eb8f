#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "config/manifests.h"
#include "kubernetes/json.h"

namespace penstock::discovery {

// On an InferencePool, for a picker of several pools: "<configmap>" or "<configmap>/<entry>", of the pool's
// namespace. The entry is an EndpointPickerConfig; without a name it is the ConfigMap's only one.
inline constexpr std::string_view kConfigAnnotation = "penstock.dev/config";

struct ConfigReference {
  std::string name;
  std::string entry;  // "" the only one

  friend bool operator==(const ConfigReference&, const ConfigReference&) = default;
};
// Nothing: the pool has no configuration of its own. Errors name the annotation and what it says.
Result<std::optional<ConfigReference>> config_reference(const config::InferencePool& pool);

// A ConfigMap's `data`.
struct ConfigMapRecord {
  std::string name;
  std::map<std::string, std::string, std::less<>> entries;

  friend bool operator==(const ConfigMapRecord&, const ConfigMapRecord&) = default;
};
Result<ConfigMapRecord> decode_config_map(kubernetes::Json object);
// kNotFound: it has no such entry, or, with none named, not just one; the error lists what there is.
Result<std::string> config_entry(const ConfigMapRecord& map, const std::string& entry);

// What a pool's own configuration is now, as far as the cluster has told.
struct PoolConfig {
  std::string source;               // "ConfigMap ns/name"
  std::optional<std::string> text;  // nothing: `error` says why there is none now
  std::string error;

  friend bool operator==(const PoolConfig&, const PoolConfig&) = default;
};

}  // namespace penstock::discovery
