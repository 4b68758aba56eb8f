#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "simulator/request_body.h"
#include "simulator/tokenizer.h"

// First byte: the route; the rest: the body. A body that is taken has prompts within the vocabulary.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock::simulator;
  static RequestReader reader;
  static EngineRequest request;
  if (size == 0) return 0;
  const auto api = static_cast<EngineApi>(data[0] % 11);
  std::string body(reinterpret_cast<const char*>(data + 1), size - 1);
  body.append(RequestReader::kPadding, '\0');
  const auto error = reader.read(api, std::string_view(body).substr(0, size - 1), request);
  if (error) return 0;
  for (const auto& prompt : request.valid_prompts()) {
    std::string text;
    for (const uint32_t token : prompt) {
      if (token >= kVocabularySize) std::abort();
      detokenize(token, text);
    }
  }
  return 0;
}
