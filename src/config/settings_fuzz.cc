#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/api_keys.h"
#include "config/settings.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)penstock::config::decode_settings(text, "fuzz", "/nonexistent");
  (void)penstock::config::ApiKeys::decode(text, "fuzz");
  return 0;
}
