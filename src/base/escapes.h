#pragma once

#include <string>
#include <string_view>

namespace penstock {

// Of a hexadecimal digit in either case; -1 for what is none.
constexpr int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}
// "%XX" as the byte it means; a '%' without two digits stays as it is.
std::string percent_decode(std::string_view text);

}  // namespace penstock
