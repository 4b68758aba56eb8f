#include <cstddef>
#include <cstdint>
#include <string>

#include "gateway/models.h"

// What an engine answers to GET /v1/models is outside text: any of it must give a list or an error, and a
// list must render.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string padded(reinterpret_cast<const char*>(data), size);
  padded.append(penstock::io::kBodyPadding, '\0');
  const auto list = penstock::gateway::decode_models(std::string_view(padded).substr(0, size));
  if (list.ok()) {
    penstock::gateway::ModelList merged;
    merged.merge(*list);
    merged.merge(*list);
    (void)merged.to_json();
  }
  return 0;
}
