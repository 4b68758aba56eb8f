#include "protocol/json_text.h"

#include <cstdint>
#include <cstring>

#include "base/escapes.h"

namespace penstock::protocol {
namespace {

// The code unit of "\uXXXX" at p, or -1.
int code_unit(const char* p, const char* end) {
  if (end - p < 6 || p[0] != '\\' || p[1] != 'u') return -1;
  int value = 0;
  for (int i = 2; i < 6; ++i) {
    const int digit = hex_digit(p[i]);
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

size_t write_utf8(uint32_t code, char utf8[4]) {
  if (code < 0x80) {
    utf8[0] = static_cast<char>(code);
    return 1;
  }
  if (code < 0x800) {
    utf8[0] = static_cast<char>(0xC0U | (code >> 6U));
    utf8[1] = static_cast<char>(0x80U | (code & 0x3FU));
    return 2;
  }
  if (code < 0x10000) {
    utf8[0] = static_cast<char>(0xE0U | (code >> 12U));
    utf8[1] = static_cast<char>(0x80U | ((code >> 6U) & 0x3FU));
    utf8[2] = static_cast<char>(0x80U | (code & 0x3FU));
    return 3;
  }
  utf8[0] = static_cast<char>(0xF0U | (code >> 18U));
  utf8[1] = static_cast<char>(0x80U | ((code >> 12U) & 0x3FU));
  utf8[2] = static_cast<char>(0x80U | ((code >> 6U) & 0x3FU));
  utf8[3] = static_cast<char>(0x80U | (code & 0x3FU));
  return 4;
}

}  // namespace

size_t read_json_escape(const char* p, const char* end, char utf8[4], size_t& size) {
  if (end - p < 2) return 0;
  const char simple = simple_json_escape(p[1]);
  if (simple != 0) {
    utf8[0] = simple;
    size = 1;
    return 2;
  }
  const int unit = code_unit(p, end);
  if (unit < 0) return 0;
  const auto code = static_cast<uint32_t>(unit);
  if (code >= 0xD800 && code < 0xDC00) {
    const int low = code_unit(p + 6, end);
    if (low >= 0xDC00 && low < 0xE000) {
      size = write_utf8(0x10000U + ((code - 0xD800U) << 10U) + (static_cast<uint32_t>(low) - 0xDC00U), utf8);
      return 12;
    }
  }
  size = write_utf8(code >= 0xD800 && code < 0xE000 ? 0xFFFDU : code, utf8);
  return 6;
}

void append_unescaped(std::string& out, std::string_view content) {
  const char* p = content.data();
  const char* end = p + content.size();
  while (p < end) {
    const void* next = std::memchr(p, '\\', static_cast<size_t>(end - p));
    const char* stop = next == nullptr ? end : static_cast<const char*>(next);
    out.append(p, stop);
    if (stop == end) return;
    char utf8[4] = {};
    size_t size = 0;
    const size_t taken = read_json_escape(stop, end, utf8, size);
    if (taken == 0) {
      out.push_back('\\');
      p = stop + 1;
    } else {
      out.append(utf8, size);
      p = stop + taken;
    }
  }
}

}  // namespace penstock::protocol
