#include "base/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace penstock {

namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kNoDigit = 64;

constexpr std::array<uint8_t, 256> make_digits() {
  std::array<uint8_t, 256> out{};
  out.fill(kNoDigit);
  for (uint8_t i = 0; i < kAlphabet.size(); ++i) out[static_cast<uint8_t>(kAlphabet[i])] = i;
  return out;
}
constexpr std::array<uint8_t, 256> kDigits = make_digits();

}  // namespace

std::string base64_encode(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t held = std::min<size_t>(3, bytes.size() - i);
    uint32_t word = 0;
    for (size_t b = 0; b < 3; ++b) word = word << 8 | (b < held ? static_cast<uint8_t>(bytes[i + b]) : 0U);
    for (size_t d = 0; d < 4; ++d) out += d <= held ? kAlphabet[word >> (18 - 6 * d) & 63U] : '=';
  }
  return out;
}

std::optional<std::string_view> base64_decode(std::string_view text, Arena& arena) {
  if (text.size() % 4 != 0) return std::nullopt;
  if (text.empty()) return std::string_view();
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  const size_t digits = text.size() - padding;
  const std::span<char> out = arena.make_span<char>(text.size() / 4 * 3);
  size_t written = 0;
  uint32_t word = 0;
  for (size_t i = 0; i < digits; ++i) {
    const uint8_t digit = kDigits[static_cast<uint8_t>(text[i])];
    if (digit == kNoDigit) return std::nullopt;
    word = word << 6 | digit;
    if (i % 4 != 3) continue;
    for (size_t b = 0; b < 3; ++b) out[written++] = static_cast<char>(word >> (16 - 8 * b) & 0xFFU);
    word = 0;
  }
  if (padding == 1) {
    out[written++] = static_cast<char>(word >> 10 & 0xFFU);
    out[written++] = static_cast<char>(word >> 2 & 0xFFU);
  } else if (padding == 2) {
    out[written++] = static_cast<char>(word >> 4 & 0xFFU);
  }
  return std::string_view(out.data(), written);
}

}  // namespace penstock
