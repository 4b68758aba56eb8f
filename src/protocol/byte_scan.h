#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace penstock::protocol {

// Bit i is set when byte i of the 64 at `p` ends a plain stretch of a JSON string: a quote, a backslash or a
// control character.
inline uint64_t string_specials(const char* p) {
#if defined(__SSE2__)
  const __m128i quote = _mm_set1_epi8('"');
  const __m128i backslash = _mm_set1_epi8('\\');
  const __m128i control = _mm_set1_epi8(0x1F);
  uint64_t mask = 0;
  for (int i = 0; i < 4; ++i) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i);
    const __m128i hit = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(x, quote), _mm_cmpeq_epi8(x, backslash)),
                                     _mm_cmpeq_epi8(_mm_min_epu8(x, control), x));
    mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(hit))) << (16 * i);
  }
  return mask;
#else
  uint64_t mask = 0;
  for (int i = 0; i < 64; ++i) {
    const auto c = static_cast<unsigned char>(p[i]);
    mask |= static_cast<uint64_t>(c == '"' || c == '\\' || c < 0x20) << i;
  }
  return mask;
#endif
}

// The same for text that may end sooner: bytes from `end` on count as special.
inline uint64_t string_specials(const char* p, const char* end) {
  if (end - p >= 64) return string_specials(p);
  char tail[64] = {};
  if (p < end) std::memcpy(tail, p, static_cast<size_t>(end - p));
  return string_specials(tail);
}

// The quote that ends the plain string at `p`, if it is one of the next 16 bytes; else nullptr.
inline const char* find_quote_within_16(const char* p, const char* end) {
#if defined(__SSE2__)
  if (end - p < 16) return nullptr;
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i quotes = _mm_cmpeq_epi8(x, _mm_set1_epi8('"'));
  const __m128i control = _mm_set1_epi8(0x1F);
  const __m128i others =
      _mm_or_si128(_mm_cmpeq_epi8(x, _mm_set1_epi8('\\')), _mm_cmpeq_epi8(_mm_min_epu8(x, control), x));
  const auto quote = static_cast<uint32_t>(_mm_movemask_epi8(quotes));
  const auto other = static_cast<uint32_t>(_mm_movemask_epi8(others));
  // The lowest bit of both must be a quote's.
  if (quote == 0 || (((quote & (~quote + 1)) - 1) & other) != 0) return nullptr;
  return p + __builtin_ctz(quote);
#else
  (void)p;
  (void)end;
  return nullptr;
#endif
}

// Where a quote, a bracket or a brace stands first in [p, end); `end` when nowhere.
inline const char* find_structure(const char* p, const char* end) {
#if defined(__SSE2__)
  const __m128i quote = _mm_set1_epi8('"');
  const __m128i open = _mm_set1_epi8('{');
  const __m128i close = _mm_set1_epi8('}');
  const __m128i fold = _mm_set1_epi8(0x20);  // '[' | 0x20 == '{', ']' | 0x20 == '}'
  while (end - p >= 16) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i folded = _mm_or_si128(x, fold);
    const __m128i hit = _mm_or_si128(
        _mm_cmpeq_epi8(x, quote), _mm_or_si128(_mm_cmpeq_epi8(folded, open), _mm_cmpeq_epi8(folded, close)));
    const auto mask = static_cast<uint32_t>(_mm_movemask_epi8(hit));
    if (mask != 0) return p + __builtin_ctz(mask);
    p += 16;
  }
#endif
  for (; p < end; ++p) {
    const char folded = static_cast<char>(*p | 0x20);
    if (*p == '"' || folded == '{' || folded == '}') return p;
  }
  return end;
}

// Where a quote or a backslash stands first in [p, end); `end` when nowhere.
inline const char* find_quote_or_backslash(const char* p, const char* end) {
#if defined(__SSE2__)
  const __m128i quote = _mm_set1_epi8('"');
  const __m128i backslash = _mm_set1_epi8('\\');
  while (end - p >= 16) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const auto mask = static_cast<uint32_t>(
        _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(x, quote), _mm_cmpeq_epi8(x, backslash))));
    if (mask != 0) return p + __builtin_ctz(mask);
    p += 16;
  }
#endif
  while (p < end && *p != '"' && *p != '\\') ++p;
  return p;
}

// Position of `needle` in `text`, npos when absent; compares first and last byte of 16 places at once.
// REQUIRES: needle.size() >= 2.
inline size_t find_word(std::string_view text, std::string_view needle) {
  const size_t n = needle.size();
  if (text.size() < n) return std::string_view::npos;
  size_t i = 0;
  const size_t places = text.size() - n + 1;
#if defined(__SSE2__)
  const __m128i first = _mm_set1_epi8(needle.front());
  const __m128i last = _mm_set1_epi8(needle.back());
  for (; i + 16 <= places; i += 16) {
    const char* p = text.data() + i;
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + n - 1));
    auto mask = static_cast<uint32_t>(
        _mm_movemask_epi8(_mm_and_si128(_mm_cmpeq_epi8(a, first), _mm_cmpeq_epi8(b, last))));
    for (; mask != 0; mask &= mask - 1) {
      const size_t at = i + static_cast<size_t>(__builtin_ctz(mask));
      if (std::memcmp(text.data() + at, needle.data(), n) == 0) return at;
    }
  }
#endif
  for (; i < places; ++i) {
    if (std::memcmp(text.data() + i, needle.data(), n) == 0) return i;
  }
  return std::string_view::npos;
}

}  // namespace penstock::protocol
