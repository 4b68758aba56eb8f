#include "discovery/pool_config.h"

#include <fmt/format.h>

#include "base/strings.h"

namespace penstock::discovery {

namespace {

constexpr size_t kMaxNames = 10;  // that an error lists

}  // namespace

Result<std::optional<ConfigReference>> config_reference(const config::InferencePool& pool) {
  const auto found = pool.meta.annotations.find(kConfigAnnotation);
  if (found == pool.meta.annotations.end()) return std::optional<ConfigReference>();
  const std::string_view text = trim(found->second);
  const size_t slash = text.find('/');
  ConfigReference out;
  out.name = text.substr(0, slash);
  if (slash != std::string_view::npos) out.entry = text.substr(slash + 1);
  const bool no_entry = slash != std::string_view::npos && out.entry.empty();
  if (out.name.empty() || no_entry || out.entry.find('/') != std::string::npos ||
      text.find_first_of(" ,=") != std::string_view::npos) {
    return invalid_config(fmt::format("annotation {} '{}' is neither <configmap> nor <configmap>/<entry>",
                                      kConfigAnnotation, found->second));
  }
  return std::optional<ConfigReference>(std::move(out));
}

Result<ConfigMapRecord> decode_config_map(kubernetes::Json object) {
  ConfigMapRecord out;
  out.name = object["metadata"]["name"].text();
  object["data"].for_each_member([&](std::string_view name, kubernetes::Json value) {
    out.entries.emplace(std::string(name), std::string(value.text()));
  });
  return out;
}

Result<std::string> config_entry(const ConfigMapRecord& map, const std::string& entry) {
  if (entry.empty() && map.entries.size() == 1) return map.entries.begin()->second;
  const auto found = map.entries.find(entry);
  if (!entry.empty() && found != map.entries.end()) return found->second;
  std::string names;
  size_t listed = 0;
  for (const auto& [name, text] : map.entries) {
    if (++listed > kMaxNames) break;
    names += (names.empty() ? "" : ", ") + name;
  }
  if (map.entries.empty()) names = "none";
  return Error{ErrorCode::kNotFound, entry.empty()
                                         ? fmt::format("which entry? There are: {}", names)
                                         : fmt::format("no entry '{}'; there are: {}", entry, names)};
}

}  // namespace penstock::discovery
