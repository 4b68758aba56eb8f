#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

inline char ascii_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}
// Case-insensitive for ASCII letters only, as HTTP field names are.
bool ascii_iequals(std::string_view a, std::string_view b);
std::string ascii_lower(std::string_view text);
// Without leading and trailing blanks, tabs and line ends.
std::string_view trim(std::string_view text);
// Parts between separators; empty parts are kept, an empty text is one empty part.
std::vector<std::string_view> split(std::string_view text, char separator);
// The whole text as a decimal number, or nothing (no sign for the unsigned form, no blanks).
std::optional<uint64_t> parse_u64(std::string_view text);
std::optional<int64_t> parse_i64(std::string_view text);
// The whole text as a finite or infinite decimal floating-point number.
std::optional<double> parse_double(std::string_view text);
bool is_utf8(std::string_view text);
// The text as a JSON string literal, quotes included. Invalid UTF-8 becomes U+FFFD.
std::string json_quote(std::string_view text);
void append_json_quoted(std::string& out, std::string_view text);

}  // namespace penstock
