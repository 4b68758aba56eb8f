#include <cstdint>
#include <cstdlib>
#include <string>

#include "io/detail/http1_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock::io;
  using namespace penstock::io::detail;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  HeadScanner scanner;
  if (scanner.scan(bytes.data(), bytes.size(), false) != HeadScanner::Result::kComplete) return 0;
  FieldVector fields;
  ResponseHead head;
  MessageFraming framing;
  if (parse_response_head(bytes.data(), scanner.begin(), scanner.end(), 64, size % 2 == 0, fields, head,
                          framing) != ParseError::kNone)
    return 0;
  if (head.status < 100 || head.status > 599) std::abort();
  for (const HeaderField& field : head.fields)
    if (!is_token(field.name) || !is_field_text(field.value)) std::abort();
  return 0;
}
