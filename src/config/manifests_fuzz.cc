#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/endpoints_file.h"
#include "config/manifests.h"
#include "config/objects_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::vector<penstock::config::ManifestSource> sources{{"fuzz", std::string(text), ""}};
  (void)penstock::config::decode_manifests(sources);
  (void)penstock::config::decode_endpoints(text, "fuzz");
  (void)penstock::config::decode_objects(text, "fuzz");
  (void)penstock::config::parse_endpoint_url(text);
  return 0;
}
