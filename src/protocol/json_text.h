#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace penstock::protocol {

namespace json_text_internal {
constexpr std::array<char, 256> make_simple_escapes() {
  std::array<char, 256> table{};
  table['"'] = '"';
  table['\\'] = '\\';
  table['/'] = '/';
  table['b'] = '\b';
  table['f'] = '\f';
  table['n'] = '\n';
  table['r'] = '\r';
  table['t'] = '\t';
  return table;
}
inline constexpr std::array<char, 256> kSimpleEscapes = make_simple_escapes();
}  // namespace json_text_internal

// What a backslash and `c` stand for; 0 where that is no two-byte escape.
inline char simple_json_escape(char c) {
  return json_text_internal::kSimpleEscapes[static_cast<unsigned char>(c)];
}

// Reads the escape whose backslash stands at `p`. Writes its UTF-8 to `utf8` (at most 4 bytes) and their
// number to `size`; a surrogate without its partner gives U+FFFD. Returns the bytes taken (2, 6 or 12), 0
// for a broken or unfinished escape.
size_t read_json_escape(const char* p, const char* end, char utf8[4], size_t& size);

// The content of a JSON string literal (without quotes) with its escapes resolved; broken escapes stay as
// they are.
void append_unescaped(std::string& out, std::string_view content);

}  // namespace penstock::protocol
