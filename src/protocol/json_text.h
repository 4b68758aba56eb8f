#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace penstock::protocol {

// Reads the escape whose backslash stands at `p`. Writes its UTF-8 to `utf8` (at most 4 bytes) and their
// number to `size`; a surrogate without its partner gives U+FFFD. Returns the bytes taken (2, 6 or 12), 0
// for a broken or unfinished escape.
size_t read_json_escape(const char* p, const char* end, char utf8[4], size_t& size);

// The content of a JSON string literal (without quotes) with its escapes resolved; broken escapes stay as
// they are.
void append_unescaped(std::string& out, std::string_view content);

}  // namespace penstock::protocol
