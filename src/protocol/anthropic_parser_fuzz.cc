// First byte: messages or count_tokens. Rest: the body.

#include "protocol/anthropic_parser.h"
#include "protocol/parser_fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock::protocol;
  if (size == 0) return 0;
  static const AnthropicParser parser;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  check_parser(parser, parser.path_suffixes()[data[0] % 2], text);
  return 0;
}
