// First byte: the API. Rest: the body.

#include "protocol/openai_parser.h"
#include "protocol/parser_fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock::protocol;
  if (size == 0) return 0;
  static const OpenAiParser parser;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto suffixes = parser.path_suffixes();
  check_parser(parser, suffixes[data[0] % suffixes.size()], text);
  compare_with_simdjson(text);
  return 0;
}
