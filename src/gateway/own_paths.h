#pragma once

#include <string_view>

// Paths that routes lead to a pool and for which no endpoint is picked.
namespace penstock::gateway {

// Answered from the lists of all endpoints.
inline bool lists_models(std::string_view method, std::string_view path) {
  return (method == "GET" || method == "HEAD") && (path == "/v1/models" || path.starts_with("/v1/models/"));
}

// Refused.
inline bool loads_adapters(std::string_view path) {
  return path.ends_with("/load_lora_adapter") || path.ends_with("/unload_lora_adapter") ||
         path == "/adapters" || path.starts_with("/adapters/");
}
inline constexpr std::string_view kLoadsAdapters =
    "adapters are loaded and unloaded per replica; ask the engines directly";

}  // namespace penstock::gateway
