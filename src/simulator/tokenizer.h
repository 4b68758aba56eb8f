#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::simulator {

// The simulated engine's tokens: reversible, stateless, about four bytes each. A token is up to four
// ASCII characters (a blank begins a new one), or one other character, or one byte of invalid UTF-8:
//
//   id < 2^28            1 to 4 ASCII characters, 7 bits each, the first one lowest
//   2^28 + c             the character with code point c (c = 0 too)
//   2^28 + 0x200000 + b  the stray byte b
//   2^28 + 0x300000 + k  special token k
//
// Text cut at a token border tokenises to the same ids, so an answer that comes back as part of the next
// prompt finds the cache blocks that its decoding filled.
inline constexpr uint32_t kVocabularySize = 1U << 29U;

enum class SpecialToken : uint32_t { kMessageStart = 0, kMessageEnd = 1, kMedia = 2 };
uint32_t special_token(SpecialToken token);

// Appends the tokens of `text`.
void tokenize(std::string_view text, std::vector<uint32_t>& out);
// Appends the text of one token. Ids that no text gives become U+FFFD; NUL and stray bytes too, so the
// result is always valid UTF-8.
void detokenize(uint32_t token, std::string& out);

// Appends one chat message as the simulated chat template writes it, or the opening of the answer.
void begin_message(std::string_view role, std::vector<uint32_t>& out);
void end_message(std::vector<uint32_t>& out);

// The n-th token of an answer: a short word that depends on nothing but these two numbers. All but the
// first begin with a blank.
uint32_t answer_token(uint64_t content_seed, uint32_t n);

}  // namespace penstock::simulator
