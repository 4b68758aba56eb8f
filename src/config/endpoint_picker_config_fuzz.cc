#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/endpoint_picker_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto decoded = penstock::config::decode_endpoint_picker_config(text, "fuzz");
  if (decoded.ok()) {
    const std::string printed = penstock::config::to_string(decoded->config);
    if (printed.size() < 2) __builtin_trap();
  }
  return 0;
}
