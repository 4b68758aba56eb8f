#include <cstdint>
#include <cstdlib>
#include <string>

#include "io/detail/http1_codec.h"

// A request head in two pieces; the first byte says where the split is. Checked: every view lies inside the
// buffer, and the result is that of the unsplit bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock::io;
  using namespace penstock::io::detail;
  if (size == 0) return 0;
  const size_t split = data[0];
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  HeadScanner whole;
  HeadScanner pieces;
  const auto whole_result = whole.scan(bytes.data(), bytes.size(), true);
  auto result = pieces.scan(bytes.data(), std::min(split, bytes.size()), true);
  if (result == HeadScanner::Result::kIncomplete) result = pieces.scan(bytes.data(), bytes.size(), true);
  if (result != whole_result) std::abort();
  if (result != HeadScanner::Result::kComplete) return 0;
  if (pieces.end() != whole.end() || pieces.begin() != whole.begin()) std::abort();
  FieldVector fields;
  RequestHead head;
  MessageFraming framing;
  if (parse_request_head(bytes.data(), whole.begin(), whole.end(), 64, fields, head, framing) !=
      ParseError::kNone)
    return 0;
  const auto inside = [&](std::string_view view) {
    return view.empty() ||
           (view.data() >= bytes.data() && view.data() + view.size() <= bytes.data() + whole.end());
  };
  if (!inside(head.method) || !inside(head.target) || !inside(head.path) || !inside(head.query) ||
      !inside(head.authority) || head.method.empty() || head.target.empty())
    std::abort();
  for (const HeaderField& field : head.fields) {
    if (!inside(field.name) || !inside(field.value) || !is_token(field.name) || !is_field_text(field.value))
      std::abort();
  }
  return 0;
}
