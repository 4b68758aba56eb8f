#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/arena.h"

namespace penstock::protocol {

// Deepest nesting of arrays and objects that is read.
inline constexpr int kMaxJsonDepth = 100;

// A string of the document: its bytes, escapes resolved, in the document itself when it has none.
struct JsonString {
  std::string_view value;
  size_t literal_offset = 0;  // of the opening quote
  size_t literal_size = 0;    // quotes included
};

enum class JsonKind : uint8_t { kObject, kArray, kString, kNumber, kBool, kNull, kNone };

// Walks one JSON text forward, once, checking its grammar (RFC 8259) as it goes: what is skipped is checked
// like what is read. No tree, no allocation but the arena's for strings with escapes. After the first error
// every call fails and the cursor stays there. Reads nothing beyond the text. Not thread-safe.
//
// Why not simdjson: its two stages with the copy take 28 us for a 220 KB chat body where this takes a third,
// On-Demand leaves skipped values unchecked, and version 3.0 refuses lone surrogates. It is the oracle of
// the tests instead.
class JsonCursor {
 public:
  // `scratch` holds the strings that have escapes; nullptr: such strings keep their escapes.
  JsonCursor(std::string_view text, Arena* scratch)
      : begin_(text.data()), at_(text.data()), end_(text.data() + text.size()), arena_(scratch) {}

  // What the next value is; kNone at the end or where no value can begin (no error is set).
  JsonKind kind();

  // for (bool more = c.enter_object(); more; more = c.next_member()) { c.key(); <consume the value> }
  // The same with enter_array()/next_element(). False: the end was read, or an error. REQUIRES: kind().
  bool enter_object();
  bool next_member();
  // Key of the member whose value comes next.
  std::string_view key() const { return key_; }
  bool enter_array();
  bool next_element();

  // Consumes a value of the kind it names. False on an error or another kind; another kind is not consumed.
  bool string(JsonString& out);
  bool boolean(bool& out);
  bool number(std::string_view& literal);
  // A plain unsigned integer below 2^32 is consumed; anything else is not, and gives false without an error.
  bool u32(uint32_t& out);
  // Any value; true unless it is broken.
  bool skip();
  // Any value as its bytes.
  bool raw(std::string_view& out);
  // Only blanks remain.
  bool finish();

  bool failed() const { return error_ != nullptr; }
  // "invalid character at offset 17". REQUIRES: failed().
  std::string error_text() const;
  size_t offset();  // of the next value or bracket
  size_t consumed() const { return static_cast<size_t>(at_ - begin_); }

 private:
  void blanks() {
    while (at_ < end_ && static_cast<unsigned char>(*at_) <= ' ' &&
           (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t'))
      ++at_;
  }
  bool fail(const char* message) {
    if (error_ == nullptr) {
      error_ = at_ < end_ ? message : "unexpected end of JSON input";
      error_at_ = static_cast<size_t>(at_ - begin_);
    }
    at_ = end_;
    return false;
  }
  bool enter(char open, char close, bool& empty);
  bool read_key();
  bool scan_string(std::string_view& value, bool keep);
  bool unescape_rest(const char* start, std::string_view& value, bool keep);
  bool literal(std::string_view word);

  const char* begin_;
  const char* at_;
  const char* end_;
  Arena* arena_;
  char* scratch_ = nullptr;  // next free byte for unescaped strings; as long as the rest of the text
  std::string_view key_;
  int depth_ = 0;
  const char* error_ = nullptr;
  size_t error_at_ = 0;
};

// The value of a number literal that is a non-negative integer ("12", "12.0", "1e2"), below 2^53 unless
// written plainly.
std::optional<int64_t> integral_value(std::string_view literal);

}  // namespace penstock::protocol
