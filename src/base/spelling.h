#pragma once

#include <span>
#include <string_view>

namespace penstock {

// The one of `words` that `word` was probably meant to be: the fewest letters to add, drop or change, of
// equals the first. Empty when none is near: more than a quarter of the letters (at least two) differ.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> words);

}  // namespace penstock
