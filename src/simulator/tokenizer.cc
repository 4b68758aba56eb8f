#include "simulator/tokenizer.h"

#include <array>

namespace penstock::simulator {
namespace {

constexpr uint32_t kCharacters = 1U << 28U;
constexpr uint32_t kStrayBytes = kCharacters + 0x200000;
constexpr uint32_t kSpecials = kCharacters + 0x300000;
constexpr uint32_t kMaxCodePoint = 0x10ffff;
constexpr std::string_view kReplacement = "\xef\xbf\xbd";

constexpr std::array<std::string_view, 64> kWords = {
    "the", "sun", "and", "sea", "low", "old", "men", "of",  "oak", "ran", "far", "to",  "see",
    "who", "had", "let", "all", "dew", "in",  "ice", "air", "sky", "fog", "ash", "elm", "fir",
    "new", "one", "two", "six", "ten", "we",  "you", "she", "he",  "it",  "was", "is",  "are",
    "did", "say", "way", "day", "his", "her", "our", "red", "tin", "key", "map", "log", "row",
    "run", "set", "put", "get", "cut", "dry", "wet", "hot", "fly", "box", "art", "end"};
static_assert((kWords.size() & (kWords.size() - 1)) == 0);

constexpr uint32_t pack(std::string_view ascii) {
  uint32_t id = 0;
  for (size_t i = 0; i < ascii.size(); ++i) id |= static_cast<uint32_t>(ascii[i]) << (7 * i);
  return id;
}

// Length of the valid UTF-8 sequence at the front, its code point in `code`; 0 when there is none.
size_t decode(std::string_view text, uint32_t& code) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto follows = [&](size_t i) { return i < text.size() && (byte(i) & 0xC0U) == 0x80; };
  const uint8_t first = byte(0);
  if (first < 0x80) {
    code = first;
    return 1;
  }
  if (first >= 0xC2 && first <= 0xDF && follows(1)) {
    code = ((first & 0x1FU) << 6U) | (byte(1) & 0x3FU);
    return 2;
  }
  if (first >= 0xE0 && first <= 0xEF && follows(1) && follows(2)) {
    code = ((first & 0x0FU) << 12U) | ((byte(1) & 0x3FU) << 6U) | (byte(2) & 0x3FU);
    return code >= 0x800 && (code < 0xD800 || code > 0xDFFF) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4 && follows(1) && follows(2) && follows(3)) {
    code =
        ((first & 0x07U) << 18U) | ((byte(1) & 0x3FU) << 12U) | ((byte(2) & 0x3FU) << 6U) | (byte(3) & 0x3FU);
    return code >= 0x10000 && code <= kMaxCodePoint ? 4 : 0;
  }
  return 0;
}

void append_utf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0U | (code >> 6U));
    out += static_cast<char>(0x80U | (code & 0x3FU));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0U | (code >> 12U));
    out += static_cast<char>(0x80U | ((code >> 6U) & 0x3FU));
    out += static_cast<char>(0x80U | (code & 0x3FU));
  } else {
    out += static_cast<char>(0xF0U | (code >> 18U));
    out += static_cast<char>(0x80U | ((code >> 12U) & 0x3FU));
    out += static_cast<char>(0x80U | ((code >> 6U) & 0x3FU));
    out += static_cast<char>(0x80U | (code & 0x3FU));
  }
}

bool packable(char c) {
  return c > 0;  // ASCII without NUL
}

}  // namespace

uint32_t special_token(SpecialToken token) {
  return kSpecials + static_cast<uint32_t>(token);
}

void tokenize(std::string_view text, std::vector<uint32_t>& out) {
  size_t at = 0;
  while (at < text.size()) {
    if (packable(text[at])) {
      uint32_t id = static_cast<uint32_t>(text[at]);
      size_t length = 1;
      while (length < 4 && at + length < text.size() && packable(text[at + length]) &&
             text[at + length] != ' ') {
        id |= static_cast<uint32_t>(text[at + length]) << (7 * length);
        ++length;
      }
      out.push_back(id);
      at += length;
      continue;
    }
    uint32_t code = 0;
    const size_t length = decode(text.substr(at), code);
    if (length == 0) {
      out.push_back(kStrayBytes + static_cast<uint8_t>(text[at]));
      ++at;
    } else {
      out.push_back(kCharacters + code);
      at += length;
    }
  }
}

void detokenize(uint32_t token, std::string& out) {
  if (token == special_token(SpecialToken::kMessageStart)) {
    out += "<|im_start|>";
  } else if (token == special_token(SpecialToken::kMessageEnd)) {
    out += "<|im_end|>";
  } else if (token == special_token(SpecialToken::kMedia)) {
    out += "<|media|>";
  } else if (token >= kCharacters) {
    const uint32_t code = token - kCharacters;
    if (code == 0 || code > kMaxCodePoint || (code >= 0xD800 && code <= 0xDFFF))
      out += kReplacement;
    else
      append_utf8(code, out);
  } else if (token == 0) {
    out += kReplacement;
  } else {
    for (uint32_t rest = token; rest != 0; rest >>= 7U) {
      if ((rest & 0x7FU) == 0)
        out += kReplacement;
      else
        out += static_cast<char>(rest & 0x7FU);
    }
  }
}

void begin_message(std::string_view role, std::vector<uint32_t>& out) {
  out.push_back(special_token(SpecialToken::kMessageStart));
  tokenize(role, out);
  out.push_back(pack("\n"));
}

void end_message(std::vector<uint32_t>& out) {
  out.push_back(special_token(SpecialToken::kMessageEnd));
  out.push_back(pack("\n"));
}

uint32_t answer_token(uint64_t content_seed, uint32_t n) {
  // splitmix64 of the pair
  uint64_t z = content_seed + (static_cast<uint64_t>(n) + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  z ^= z >> 31U;
  const uint32_t word = pack(kWords[z & (kWords.size() - 1)]);
  return n == 0 ? word : (word << 7U) | static_cast<uint32_t>(' ');
}

}  // namespace penstock::simulator
