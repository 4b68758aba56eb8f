#include "protocol/json_cursor.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include "protocol/byte_scan.h"
#include "protocol/json_text.h"

namespace penstock::protocol {
namespace {

constexpr const char* kBadCharacter = "invalid character";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Copies [from, to) to `out`; may write up to 32 bytes more than it has to.
char* copy_run(const char* from, const char* to, const char* end, char* out) {
  const auto size = static_cast<size_t>(to - from);
  if (size <= 32 && end - from >= 32) {
    std::memcpy(out, from, 32);
  } else {
    std::memcpy(out, from, size);
  }
  return out + size;
}

}  // namespace

JsonKind JsonCursor::kind() {
  blanks();
  if (at_ >= end_) return JsonKind::kNone;
  switch (*at_) {
    case '{':
      return JsonKind::kObject;
    case '[':
      return JsonKind::kArray;
    case '"':
      return JsonKind::kString;
    case 't':
    case 'f':
      return JsonKind::kBool;
    case 'n':
      return JsonKind::kNull;
    default:
      return *at_ == '-' || is_digit(*at_) ? JsonKind::kNumber : JsonKind::kNone;
  }
}

size_t JsonCursor::offset() {
  blanks();
  return static_cast<size_t>(at_ - begin_);
}

std::string JsonCursor::error_text() const {
  return std::string(error_) + " at offset " + std::to_string(error_at_);
}

bool JsonCursor::enter(char open, char close, bool& empty) {
  blanks();
  if (at_ >= end_ || *at_ != open) return fail(kBadCharacter);
  if (depth_ == kMaxJsonDepth) return fail("nesting deeper than 100 levels");
  ++at_;
  blanks();
  empty = at_ < end_ && *at_ == close;
  if (empty) {
    ++at_;
  } else {
    ++depth_;
  }
  return true;
}

bool JsonCursor::read_key() {
  blanks();
  if (at_ >= end_ || *at_ != '"') return fail(kBadCharacter);
  ++at_;
  if (!scan_string(key_, true)) return false;
  blanks();
  if (at_ >= end_ || *at_ != ':') return fail(kBadCharacter);
  ++at_;
  return true;
}

bool JsonCursor::enter_object() {
  bool empty = false;
  return enter('{', '}', empty) && !empty && read_key();
}

bool JsonCursor::next_member() {
  blanks();
  if (at_ >= end_) return fail(kBadCharacter);
  if (*at_ == ',') {
    ++at_;
    return read_key();
  }
  if (*at_ != '}') return fail(kBadCharacter);
  ++at_;
  --depth_;
  return false;
}

bool JsonCursor::enter_array() {
  bool empty = false;
  return enter('[', ']', empty) && !empty;
}

bool JsonCursor::next_element() {
  blanks();
  if (at_ >= end_) return fail(kBadCharacter);
  if (*at_ == ',') {
    ++at_;
    return true;
  }
  if (*at_ != ']') return fail(kBadCharacter);
  ++at_;
  --depth_;
  return false;
}

bool JsonCursor::string(JsonString& out) {
  blanks();
  if (at_ >= end_ || *at_ != '"') return false;
  const char* literal = at_++;
  if (!scan_string(out.value, true)) return false;
  out.literal_offset = static_cast<size_t>(literal - begin_);
  out.literal_size = static_cast<size_t>(at_ - literal);
  return true;
}

// Starts behind the opening quote and ends behind the closing one. A string without escapes is a view of
// the document.
bool JsonCursor::scan_string(std::string_view& value, bool keep) {
  const char* start = at_;
  // Most keys and many values end within the first bytes.
  if (const char* quote = find_quote_within_16(start, end_)) {
    value = {start, static_cast<size_t>(quote - start)};
    at_ = quote + 1;
    return true;
  }
  const char* block = start;
  uint64_t specials = string_specials(block, end_);
  while (specials == 0) {
    block += 64;
    specials = string_specials(block, end_);
  }
  const char* hit = block + __builtin_ctzll(specials);
  if (hit < end_ && *hit == '"') {
    value = {start, static_cast<size_t>(hit - start)};
    at_ = hit + 1;
    return true;
  }
  return unescape_rest(start, value, keep && arena_ != nullptr);
}

// The whole string again, with escapes: blocks of 64 bytes, their special bytes one after the other. Bytes of
// an escape that are special themselves are taken out of the mask with it.
bool JsonCursor::unescape_rest(const char* start, std::string_view& value, bool keep) {
  if (keep && scratch_ == nullptr) {
    scratch_ = static_cast<char*>(arena_->allocate_bytes(static_cast<size_t>(end_ - start) + 64, 1));
  }
  char* out = scratch_;
  const char* run = start;  // first byte that is not yet in `out`
  for (const char* block = start;; block += 64) {
    uint64_t specials = string_specials(block, end_);
    if (run > block) specials &= ~uint64_t{0} << (run - block);
    while (specials != 0) {
      const int bit = __builtin_ctzll(specials);
      const char* hit = block + bit;
      if (hit >= end_) {
        at_ = end_;
        return fail(kBadCharacter);
      }
      if (keep) out = copy_run(run, hit, end_, out);
      if (*hit == '\\') {
        const char simple = hit + 1 < end_ ? simple_json_escape(hit[1]) : '\0';
        if (simple != 0) {
          if (keep) *out++ = simple;
          run = hit + 2;
          specials &= ~(uint64_t{3} << bit);
          continue;
        }
        char utf8[4] = {};
        size_t size = 0;
        const size_t taken = read_json_escape(hit, end_, utf8, size);
        if (taken == 0) {
          at_ = hit;
          return fail("invalid escape in string");
        }
        if (keep) {
          std::memcpy(out, utf8, 4);
          out += size;
        }
        run = hit + taken;
        specials &= ~(((uint64_t{1} << taken) - 1) << bit);
        continue;
      }
      at_ = hit;
      if (*hit != '"') return fail("control character in string");
      value = {start, static_cast<size_t>(hit - start)};
      if (keep) {
        value = {scratch_, static_cast<size_t>(out - scratch_)};
        scratch_ = out;
      }
      at_ = hit + 1;
      return true;
    }
  }
}

bool JsonCursor::literal(std::string_view word) {
  if (static_cast<size_t>(end_ - at_) < word.size() || std::memcmp(at_, word.data(), word.size()) != 0)
    return fail("invalid literal");
  at_ += word.size();
  return true;
}

bool JsonCursor::boolean(bool& out) {
  if (kind() != JsonKind::kBool) return false;
  out = *at_ == 't';
  return literal(out ? "true" : "false");
}

bool JsonCursor::number(std::string_view& literal) {
  blanks();
  const char* p = at_;
  const auto digits = [&] {
    const char* first = p;
    while (p < end_ && is_digit(*p)) ++p;
    return p != first;
  };
  if (p < end_ && *p == '-') ++p;
  if (p < end_ && *p == '0') {
    ++p;
  } else if (!digits()) {
    if (p == at_) return false;
    at_ = p;
    return fail("invalid number");
  }
  if (p < end_ && *p == '.') {
    ++p;
    if (!digits()) {
      at_ = p;
      return fail("invalid number");
    }
  }
  if (p < end_ && (*p == 'e' || *p == 'E')) {
    ++p;
    if (p < end_ && (*p == '+' || *p == '-')) ++p;
    if (!digits()) {
      at_ = p;
      return fail("invalid number");
    }
  }
  literal = {at_, static_cast<size_t>(p - at_)};
  at_ = p;
  return true;
}

bool JsonCursor::u32(uint32_t& out) {
  blanks();
  const char* p = at_;
  uint64_t value = 0;
  while (p < end_ && is_digit(*p) && p - at_ < 11) value = value * 10 + static_cast<uint64_t>(*p++ - '0');
  if (p == at_ || value > UINT32_MAX || (*at_ == '0' && p - at_ > 1)) return false;
  if (p < end_ && (is_digit(*p) || *p == '.' || *p == 'e' || *p == 'E')) return false;
  at_ = p;
  out = static_cast<uint32_t>(value);
  return true;
}

bool JsonCursor::skip() {
  switch (kind()) {
    case JsonKind::kObject:
      for (bool more = enter_object(); more; more = next_member()) {
        if (!skip()) return false;
      }
      return !failed();
    case JsonKind::kArray:
      for (bool more = enter_array(); more; more = next_element()) {
        if (!skip()) return false;
      }
      return !failed();
    case JsonKind::kString: {
      ++at_;
      std::string_view ignored;
      return scan_string(ignored, false);
    }
    case JsonKind::kNumber: {
      std::string_view ignored;
      return number(ignored);
    }
    case JsonKind::kBool:
      return literal(*at_ == 't' ? "true" : "false");
    case JsonKind::kNull:
      return literal("null");
    case JsonKind::kNone:
      return fail(kBadCharacter);
  }
  return false;
}

bool JsonCursor::raw(std::string_view& out) {
  blanks();
  const char* start = at_;
  if (!skip()) return false;
  out = {start, static_cast<size_t>(at_ - start)};
  return true;
}

bool JsonCursor::finish() {
  if (failed()) return false;
  blanks();
  return at_ == end_ || fail("data after the top-level value");
}

std::optional<int64_t> integral_value(std::string_view literal) {
  int64_t plain = 0;
  const char* end = literal.data() + literal.size();
  const auto [ptr, error] = std::from_chars(literal.data(), end, plain);
  if (error == std::errc() && ptr == end) {
    if (plain < 0) return std::nullopt;
    return plain;
  }
  double value = 0;
  const auto [dptr, derror] = std::from_chars(literal.data(), end, value);
  if (derror != std::errc() || dptr != end) return std::nullopt;
  if (value < 0 || value > 9007199254740992.0 || value != std::floor(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

}  // namespace penstock::protocol
