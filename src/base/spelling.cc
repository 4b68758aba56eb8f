#include "base/spelling.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace penstock {

namespace {

// Levenshtein's distance.
size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> words) {
  constexpr size_t kLongest = 128;  // what is longer is no misspelling
  if (word.size() > kLongest) return {};
  std::string_view nearest;
  size_t least = std::max<size_t>(2, word.size() / 4) + 1;
  for (const std::string_view candidate : words) {
    const size_t edits = edits_between(word, candidate);
    if (edits >= least) continue;
    least = edits;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace penstock
