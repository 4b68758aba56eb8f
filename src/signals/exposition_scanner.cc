#include "signals/exposition_scanner.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "base/strings.h"

namespace penstock::signals {

namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

void skip_blanks(std::string_view& text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
}

// The bytes up to the next blank, taken off `text`.
std::string_view take_word(std::string_view& text) {
  size_t n = 0;
  while (n < text.size() && !is_blank(text[n])) ++n;
  const std::string_view word = text.substr(0, n);
  text.remove_prefix(n);
  return word;
}

std::optional<double> parse_value(std::string_view word) {
  if (!word.empty() && word.front() == '+') {
    word.remove_prefix(1);
    if (!word.empty() && word.front() == '-') return std::nullopt;
  }
  return parse_double(word);
}

// Milliseconds; OpenMetrics writes seconds with a fraction.
std::optional<int64_t> parse_timestamp(std::string_view word) {
  if (word.find_first_of(".eE") == std::string_view::npos) return parse_i64(word);
  const auto seconds = parse_double(word);
  if (!seconds || !(std::abs(*seconds) < 9e15)) return std::nullopt;
  return static_cast<int64_t>(*seconds * 1000);
}

bool is_label_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace

NameSet::NameSet(std::vector<std::string> names) : names_(std::move(names)) {
  std::sort(names_.begin(), names_.end());
  names_.erase(std::unique(names_.begin(), names_.end()), names_.end());
  if (names_.empty()) return;
  assert(!names_.front().empty());
  size_t shortest = names_.front().size();
  for (const std::string& name : names_) shortest = std::min(shortest, name.size());
  const std::string& first = names_.front();
  const std::string& last = names_.back();
  while (prefix_ + 1 < shortest && first[prefix_] == last[prefix_]) ++prefix_;
  for (uint32_t i = 0; i < names_.size(); ++i) {
    Range& range = by_byte_[static_cast<unsigned char>(names_[i][prefix_])];
    if (range.end == 0) range.begin = i;
    range.end = i + 1;
  }
}

std::optional<uint32_t> NameSet::find(std::string_view name) const {
  const auto it = std::lower_bound(names_.begin(), names_.end(), name);
  if (it == names_.end() || *it != name) return std::nullopt;
  return static_cast<uint32_t>(it - names_.begin());
}

ExpositionScanner::ExpositionScanner(const NameSet& names, SampleSink& sink, Options options)
    : names_(names), sink_(sink), options_(options) {}

bool ExpositionScanner::feed(std::string_view piece) {
  if (stats_.page_too_large) return false;
  if (piece.size() > options_.max_page_bytes - stats_.bytes) {
    piece = piece.substr(0, options_.max_page_bytes - stats_.bytes);
    stats_.page_too_large = true;
  }
  stats_.bytes += piece.size();

  const char* at = piece.data();
  const char* const end = at + piece.size();
  if (at == end) return !stats_.page_too_large;
  if (skipping_ || !carry_.empty()) {
    const auto* newline = static_cast<const char*>(std::memchr(at, '\n', static_cast<size_t>(end - at)));
    const char* stop = newline == nullptr ? end : newline;
    if (!skipping_) {
      if (carry_.size() + static_cast<size_t>(stop - at) > options_.max_line_bytes) {
        skipping_ = true;
        carry_.clear();
      } else {
        carry_.append(at, stop);
      }
    }
    if (newline == nullptr) return !stats_.page_too_large;
    if (skipping_) {
      ++stats_.lines;
      ++stats_.overlong;
      skipping_ = false;
    } else {
      line(carry_);
      carry_.clear();
    }
    at = newline + 1;
  }
  while (at < end) {
    const auto* newline = static_cast<const char*>(std::memchr(at, '\n', static_cast<size_t>(end - at)));
    if (newline == nullptr) {
      const auto left = static_cast<size_t>(end - at);
      if (left > options_.max_line_bytes) {
        skipping_ = true;
      } else {
        carry_.assign(at, left);
      }
      break;
    }
    const auto length = static_cast<size_t>(newline - at);
    if (length > options_.max_line_bytes) {
      ++stats_.lines;
      ++stats_.overlong;
    } else {
      line({at, length});
    }
    at = newline + 1;
  }
  return !stats_.page_too_large;
}

void ExpositionScanner::finish() {
  // The last line of a page that was cut off is not a line.
  if (!stats_.page_too_large) {
    if (skipping_) {
      ++stats_.lines;
      ++stats_.overlong;
    } else if (!carry_.empty()) {
      line(carry_);
    }
  }
  carry_.clear();
  skipping_ = false;
}

void ExpositionScanner::reset() {
  carry_.clear();
  skipping_ = false;
  stats_ = Stats{};
}

void ExpositionScanner::line(std::string_view text) {
  ++stats_.lines;
  if (!text.empty() && is_blank(text.front())) skip_blanks(text);
  const size_t prefix = names_.prefix_;
  if (text.size() <= prefix) return;
  const NameSet::Range range = names_.by_byte_[static_cast<unsigned char>(text[prefix])];
  if (range.begin == range.end) return;
  for (uint32_t i = range.begin; i < range.end; ++i) {
    const std::string& name = names_.names_[i];
    if (text.size() < name.size() || std::memcmp(text.data(), name.data(), name.size()) != 0) continue;
    const char next = text.size() > name.size() ? text[name.size()] : '\n';
    if (next == '{' || is_blank(next)) {
      if (!parse(i, text.substr(name.size()))) ++stats_.malformed;
      return;
    }
    if (next == '\n' || next == '\r') {
      ++stats_.malformed;
      return;
    }
  }
}

bool ExpositionScanner::parse(uint32_t name, std::string_view rest) {
  if (!rest.empty() && rest.back() == '\r') rest.remove_suffix(1);
  labels_.clear();
  skip_blanks(rest);
  if (!rest.empty() && rest.front() == '{') {
    rest.remove_prefix(1);
    if (!parse_labels(rest)) return false;
    skip_blanks(rest);
  }
  const auto value = parse_value(take_word(rest));
  if (!value) return false;
  skip_blanks(rest);
  int64_t timestamp = 0;
  if (!rest.empty() && rest.front() != '#') {
    const auto parsed = parse_timestamp(take_word(rest));
    if (!parsed) return false;
    timestamp = *parsed;
    skip_blanks(rest);
  }
  if (!rest.empty() && rest.front() != '#') return false;
  ++stats_.samples;
  sink_.sample({name, labels_, *value, timestamp});
  return true;
}

bool ExpositionScanner::parse_labels(std::string_view& rest) {
  unescaped_.clear();
  unescaped_.reserve(rest.size());  // views into it stay valid
  while (true) {
    skip_blanks(rest);
    if (!rest.empty() && rest.front() == '}') {
      rest.remove_prefix(1);
      return true;
    }
    size_t name_end = 0;
    while (name_end < rest.size() && is_label_byte(rest[name_end])) ++name_end;
    const std::string_view name = rest.substr(0, name_end);
    if (name.empty()) return false;
    rest.remove_prefix(name_end);
    skip_blanks(rest);
    if (rest.empty() || rest.front() != '=') return false;
    rest.remove_prefix(1);
    skip_blanks(rest);
    if (rest.empty() || rest.front() != '"') return false;
    rest.remove_prefix(1);

    size_t close = 0;
    bool escaped = false;
    while (close < rest.size() && rest[close] != '"') {
      if (rest[close] == '\\') {
        escaped = true;
        ++close;
      }
      ++close;
    }
    if (close >= rest.size()) return false;
    std::string_view value = rest.substr(0, close);
    rest.remove_prefix(close + 1);
    if (escaped) {
      const size_t begin = unescaped_.size();
      for (size_t i = 0; i < value.size(); ++i) {
        if (value[i] != '\\') {
          unescaped_ += value[i];
          continue;
        }
        ++i;
        if (value[i] != '\\' && value[i] != '"' && value[i] != 'n') return false;
        unescaped_ += value[i] == 'n' ? '\n' : value[i];
      }
      value = std::string_view(unescaped_).substr(begin);
    }
    if (labels_.size() == options_.max_labels) return false;
    labels_.push_back({name, value});
    skip_blanks(rest);
    if (!rest.empty() && rest.front() == ',') {
      rest.remove_prefix(1);
    } else if (rest.empty() || rest.front() != '}') {
      return false;
    }
  }
}

}  // namespace penstock::signals
