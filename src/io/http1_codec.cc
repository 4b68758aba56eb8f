#include "io/detail/http1_codec.h"

#include <time.h>

#include <array>
#include <charconv>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/escapes.h"
#include "base/strings.h"

namespace penstock::io {

bool list_has_token(std::string_view list, std::string_view lower_token) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    if (ascii_iequals(trim(list.substr(0, comma)), lower_token)) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

namespace detail {
namespace {

// For each byte: its lower-case form when it may stand in a token (RFC 9110 §5.6.2), else 0.
constexpr std::array<char, 256> make_token_table() {
  std::array<char, 256> table{};
  for (int c = '0'; c <= '9'; ++c) table[static_cast<size_t>(c)] = static_cast<char>(c);
  for (int c = 'a'; c <= 'z'; ++c) table[static_cast<size_t>(c)] = static_cast<char>(c);
  for (int c = 'A'; c <= 'Z'; ++c) table[static_cast<size_t>(c)] = static_cast<char>(c - 'A' + 'a');
  for (const char c : std::string_view("!#$%&'*+-.^_`|~")) table[static_cast<unsigned char>(c)] = c;
  return table;
}
constexpr std::array<char, 256> kTokenLower = make_token_table();

bool text_byte_ok(unsigned char c) {
  return (c >= 0x20 && c != 0x7f) || c == '\t';
}

// Bytes of a request target: visible ASCII.
bool target_ok(std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte >= 0x7f) return false;
  }
  return true;
}

bool authority_ok(std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '/':
      case '?':
      case '#':
      case '@':
      case ',':
      case '\\':
      case '"':
      case '<':
      case '>':
        return false;
      default:
        break;
    }
  }
  return target_ok(text);
}

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

#if defined(__SSE2__)
// Whether `good` holds (0xff) for every byte: 16 at once, the last ones overlapping those before.
// REQUIRES: text.size() >= 4.
template <typename Good>
bool all_bytes(std::string_view text, Good&& good) {
  const char* at = text.data();
  const size_t size = text.size();
  const char* end = at + size;
  if (size >= 16) {
    for (; end - at > 16; at += 16) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
      if (_mm_movemask_epi8(good(bytes)) != 0xffff) return false;
    }
    return _mm_movemask_epi8(good(_mm_loadu_si128(reinterpret_cast<const __m128i*>(end - 16)))) == 0xffff;
  }
  uint64_t first = 0;
  uint64_t last = 0;
  if (size >= 8) {
    std::memcpy(&first, at, 8);
    std::memcpy(&last, end - 8, 8);
  } else {
    uint32_t head = 0;
    uint32_t tail = 0;
    std::memcpy(&head, at, 4);
    std::memcpy(&tail, end - 4, 4);
    first = last = head | static_cast<uint64_t>(tail) << 32U;
  }
  const __m128i bytes = _mm_set_epi64x(static_cast<int64_t>(last), static_cast<int64_t>(first));
  return _mm_movemask_epi8(good(bytes)) == 0xffff;
}
#endif

// Digits only, fits 63 bits.
bool parse_length(std::string_view text, uint64_t& out) {
  if (text.empty() || text.size() > 19) return false;
  uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  if (value > static_cast<uint64_t>(INT64_MAX)) return false;
  out = value;
  return true;
}

// What the fields of a head say about framing, gathered while they are parsed.
struct Seen {
  bool length = false;
  uint64_t length_value = 0;
  bool transfer_encoding = false;
  bool chunked_last = false;
  bool other_coding = false;
  bool close = false;
  bool keep_alive = false;
  int hosts = 0;
  std::string_view host;
  bool expect = false;
  bool expect_continue = false;
};

bool see_transfer_encoding(std::string_view value, Seen& seen) {
  seen.transfer_encoding = true;
  for (size_t at = 0; at <= value.size();) {
    const size_t comma = std::min(value.find(',', at), value.size());
    const std::string_view coding = trim(value.substr(at, comma - at));
    at = comma + 1;
    if (coding.empty()) return false;
    if (seen.chunked_last) return false;  // chunked must be the last, and there once
    if (ascii_iequals(coding, "chunked")) {
      seen.chunked_last = true;
    } else {
      seen.other_coding = true;
    }
  }
  return true;
}

bool see_field(std::string_view name, std::string_view value, Seen& seen) {
  switch (name.size()) {
    case 4:
      if (name == "host") {
        ++seen.hosts;
        seen.host = value;
      }
      break;
    case 6:
      if (name == "expect") {
        seen.expect = true;
        seen.expect_continue = ascii_iequals(value, "100-continue");
      }
      break;
    case 10:
      if (name == "connection") {
        if (list_has_token(value, "close")) seen.close = true;
        if (list_has_token(value, "keep-alive")) seen.keep_alive = true;
      }
      break;
    case 14:
      if (name == "content-length") {
        uint64_t length = 0;
        if (!parse_length(value, length)) return false;
        if (seen.length && seen.length_value != length) return false;
        seen.length = true;
        seen.length_value = length;
      }
      break;
    case 17:
      if (name == "transfer-encoding") return see_transfer_encoding(value, seen);
      break;
    default:
      break;
  }
  return true;
}

#if defined(__SSE2__)
// Behind the lower-case letters and dashes at [at, end), as far as 16 of them at once tell.
char* skip_plain_name(char* at, const char* end) {
  while (end - at >= 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m128i from_a = _mm_sub_epi8(bytes, _mm_set1_epi8('a'));
    const __m128i letter = _mm_cmpeq_epi8(_mm_min_epu8(from_a, _mm_set1_epi8('z' - 'a')), from_a);
    const __m128i plain = _mm_or_si128(letter, _mm_cmpeq_epi8(bytes, _mm_set1_epi8('-')));
    const auto other = static_cast<uint32_t>(_mm_movemask_epi8(plain)) ^ 0xffffU;
    if (other != 0) return at + __builtin_ctz(other);
    at += 16;
  }
  return at;
}
#else
char* skip_plain_name(char* at, const char*) {
  return at;
}
#endif

// One line "name: value", without its line end.
bool parse_field(char* line, char* end, HeaderField& field) {
  char* at = skip_plain_name(line, end);
  while (at != end) {
    const char lower = kTokenLower[static_cast<unsigned char>(*at)];
    if (lower == 0) break;
    *at++ = lower;
  }
  if (at == line || at == end || *at != ':') return false;
  field.name = std::string_view(line, static_cast<size_t>(at - line));
  ++at;
  while (at != end && is_blank(*at)) ++at;
  while (end != at && is_blank(end[-1])) --end;
  field.value = std::string_view(at, static_cast<size_t>(end - at));
  return is_field_text(field.value);
}

// The field lines of data[at, end), up to the empty line that ends them.
ParseError parse_fields(char* data, size_t at, size_t end, size_t max_fields, FieldVector& fields,
                        Seen& seen) {
  for (;;) {
    char* line = data + at;
    auto* lf = static_cast<char*>(std::memchr(line, '\n', end - at));
    if (lf == nullptr || lf == line || lf[-1] != '\r') return ParseError::kMalformed;
    char* line_end = lf - 1;
    if (line_end == line) return ParseError::kNone;
    if (fields.size() == max_fields) return ParseError::kTooLarge;
    HeaderField field;
    if (!parse_field(line, line_end, field)) return ParseError::kMalformed;
    if (!see_field(field.name, field.value, seen)) return ParseError::kMalformed;
    fields.push_back(field);
    at = static_cast<size_t>(lf + 1 - data);
  }
}

ParseError parse_version(std::string_view text, HttpVersion& version) {
  if (text == "HTTP/1.1") {
    version = HttpVersion::kHttp11;
    return ParseError::kNone;
  }
  if (text == "HTTP/1.0") {
    version = HttpVersion::kHttp10;
    return ParseError::kNone;
  }
  const bool well_formed = text.size() == 8 && text.substr(0, 5) == "HTTP/" && text[5] >= '0' &&
                           text[5] <= '9' && text[6] == '.' && text[7] >= '0' && text[7] <= '9';
  return well_formed ? ParseError::kVersion : ParseError::kMalformed;
}

// Splits the target; an absolute one is brought to origin form inside the buffer.
bool take_target(char* target, size_t size, RequestHead& head) {
  const std::string_view text(target, size);
  if (text.empty() || !target_ok(text)) return false;
  if (head.method == "CONNECT") {
    head.target = text;
    head.authority = text;
    return authority_ok(text);
  }
  if (text == "*") {
    head.target = text;
    head.path = text;
    return head.method == "OPTIONS";
  }
  size_t path_at = 0;
  if (text[0] != '/') {
    const size_t scheme_end = text.find("://");
    if (scheme_end == std::string_view::npos) return false;
    const std::string_view scheme = text.substr(0, scheme_end);
    if (!ascii_iequals(scheme, "http") && !ascii_iequals(scheme, "https")) return false;
    size_t authority_at = scheme_end + 3;
    path_at = std::min(text.find_first_of("/?", authority_at), size);
    size_t authority_size = path_at - authority_at;
    if (authority_size == 0 || !authority_ok(text.substr(authority_at, authority_size))) return false;
    if (path_at == size || target[path_at] == '?') {
      // No path: the authority moves over the second slash and makes room for one.
      std::memmove(target + authority_at - 1, target + authority_at, authority_size);
      --authority_at;
      --path_at;
      target[path_at] = '/';
    }
    head.authority = std::string_view(target + authority_at, authority_size);
  }
  head.target = std::string_view(target + path_at, size - path_at);
  const size_t question = head.target.find('?');
  head.path = head.target.substr(0, question);
  head.query = question == std::string_view::npos ? std::string_view{} : head.target.substr(question + 1);
  return true;
}

ParseError finish_framing(const Seen& seen, HttpVersion version, MessageFraming& framing) {
  framing.keep_alive = version == HttpVersion::kHttp11 ? !seen.close : seen.keep_alive && !seen.close;
  framing.declared_length = seen.length;
  if (seen.transfer_encoding) {
    if (seen.length || version == HttpVersion::kHttp10 || !seen.chunked_last) return ParseError::kMalformed;
    if (seen.other_coding) return ParseError::kNotImplemented;
    framing.kind = MessageFraming::Kind::kChunked;
  } else if (seen.length) {
    framing.kind = seen.length_value == 0 ? MessageFraming::Kind::kNone : MessageFraming::Kind::kLength;
    framing.length = seen.length_value;
  }
  return ParseError::kNone;
}

}  // namespace

int status_of(ParseError error) {
  switch (error) {
    case ParseError::kTooLarge:
      return 431;
    case ParseError::kNotImplemented:
      return 501;
    case ParseError::kVersion:
      return 505;
    case ParseError::kNone:
    case ParseError::kMalformed:
      break;
  }
  return 400;
}

HeadScanner::Result HeadScanner::scan(const char* data, size_t size, bool skip_leading_lines) {
  while (scanned_ < size) {
    const auto* lf = static_cast<const char*>(std::memchr(data + scanned_, '\n', size - scanned_));
    if (lf == nullptr) {
      scanned_ = size;
      break;
    }
    const auto at = static_cast<size_t>(lf - data);
    if (at == line_ || data[at - 1] != '\r') return Result::kMalformed;
    const bool empty = at == line_ + 1;
    scanned_ = line_ = at + 1;
    if (!empty) continue;
    if (begin_ + 2 == line_) {  // nothing but an empty line so far
      if (!skip_leading_lines || ++skipped_ > kLeadingLines) return Result::kMalformed;
      begin_ = line_;
      continue;
    }
    end_ = line_;
    return Result::kComplete;
  }
  return Result::kIncomplete;
}

ParseError parse_request_head(char* data, size_t begin, size_t end, size_t max_fields, FieldVector& fields,
                              RequestHead& head, MessageFraming& framing) {
  fields.clear();
  head = RequestHead{};
  framing = MessageFraming{};
  auto* lf = static_cast<char*>(std::memchr(data + begin, '\n', end - begin));
  if (lf == nullptr || lf == data + begin || lf[-1] != '\r') return ParseError::kMalformed;
  char* line = data + begin;
  const std::string_view first(line, static_cast<size_t>(lf - 1 - line));
  const size_t method_end = first.find(' ');
  const size_t target_end = first.rfind(' ');
  if (method_end == std::string_view::npos || target_end == method_end) return ParseError::kMalformed;
  head.method = first.substr(0, method_end);
  if (head.method.size() > 32 || !is_token(head.method)) return ParseError::kMalformed;
  if (const ParseError error = parse_version(first.substr(target_end + 1), head.version);
      error != ParseError::kNone)
    return error;
  if (!take_target(line + method_end + 1, target_end - method_end - 1, head)) return ParseError::kMalformed;

  Seen seen;
  if (const ParseError error =
          parse_fields(data, static_cast<size_t>(lf + 1 - data), end, max_fields, fields, seen);
      error != ParseError::kNone)
    return error;
  if (seen.hosts > 1 || (seen.hosts == 0 && head.version == HttpVersion::kHttp11))
    return ParseError::kMalformed;
  if (!authority_ok(seen.host)) return ParseError::kMalformed;
  if (head.authority.empty()) head.authority = seen.host;
  if (const ParseError error = finish_framing(seen, head.version, framing); error != ParseError::kNone)
    return error;
  framing.expect_continue = seen.expect_continue && head.version == HttpVersion::kHttp11;
  framing.unknown_expectation = seen.expect && !seen.expect_continue;
  head.fields = HeaderFields(std::span<const HeaderField>(fields));
  return ParseError::kNone;
}

ParseError parse_response_head(char* data, size_t begin, size_t end, size_t max_fields, bool to_head,
                               FieldVector& fields, ResponseHead& head, MessageFraming& framing) {
  fields.clear();
  head = ResponseHead{};
  framing = MessageFraming{};
  auto* lf = static_cast<char*>(std::memchr(data + begin, '\n', end - begin));
  if (lf == nullptr || lf == data + begin || lf[-1] != '\r') return ParseError::kMalformed;
  const std::string_view line(data + begin, static_cast<size_t>(lf - 1 - (data + begin)));
  if (line.size() < 12 || line[8] != ' ') return ParseError::kMalformed;
  if (const ParseError error = parse_version(line.substr(0, 8), head.version); error != ParseError::kNone)
    return error;
  for (size_t i = 9; i < 12; ++i) {
    if (line[i] < '0' || line[i] > '9') return ParseError::kMalformed;
    head.status = head.status * 10 + (line[i] - '0');
  }
  if (head.status < 100 || head.status > 599) return ParseError::kMalformed;
  if (line.size() > 12 && line[12] != ' ') return ParseError::kMalformed;
  if (line.size() > 13) head.reason = line.substr(13);
  if (!is_field_text(head.reason)) return ParseError::kMalformed;

  Seen seen;
  if (const ParseError error =
          parse_fields(data, static_cast<size_t>(lf + 1 - data), end, max_fields, fields, seen);
      error != ParseError::kNone)
    return error;
  if (const ParseError error = finish_framing(seen, head.version, framing); error != ParseError::kNone)
    return error;
  const bool bodiless = to_head || head.status < 200 || head.status == 204 || head.status == 304;
  if (bodiless) {
    framing.kind = MessageFraming::Kind::kNone;
  } else if (framing.kind == MessageFraming::Kind::kNone && !framing.declared_length) {
    framing.kind = MessageFraming::Kind::kUntilClose;
    framing.keep_alive = false;
  }
  head.fields = HeaderFields(std::span<const HeaderField>(fields));
  return ParseError::kNone;
}

// --- chunked bodies ---

void ChunkDecoder::reset() {
  state_ = State::kSizeFirst;
  digits_ = 0;
  left_ = 0;
  extension_bytes_ = 0;
  if (!trailer_.empty()) trailer_ = std::string();
  if (fields_.capacity() != 0) fields_ = FieldVector();
}

bool ChunkDecoder::end_trailers() {
  state_ = State::kDone;
  if (trailer_ == "\r\n") return true;
  Seen seen;
  if (parse_fields(trailer_.data(), 0, trailer_.size(), 64, fields_, seen) != ParseError::kNone) return false;
  return !seen.length && !seen.transfer_encoding && seen.hosts == 0;
}

// One byte outside of payloads; false when it is malformed.
bool ChunkDecoder::framing_byte(char c, size_t max_trailer_bytes) {
  switch (state_) {
    case State::kSizeFirst:
    case State::kSize: {
      if (const int digit = hex_digit(c); digit >= 0) {
        if (++digits_ > 15) return false;
        left_ = left_ * 16 + static_cast<uint32_t>(digit);
        state_ = State::kSize;
        return true;
      }
      if (state_ == State::kSizeFirst) return false;
      if (c == ';') {
        state_ = State::kExtension;
      } else if (c == '\r') {
        state_ = State::kSizeLf;
      } else {
        return false;
      }
      return true;
    }
    case State::kExtension:
      if (c == '\r') {
        state_ = State::kSizeLf;
        return true;
      }
      return ++extension_bytes_ <= kExtensionBytes && text_byte_ok(static_cast<unsigned char>(c));
    case State::kSizeLf:
      if (c != '\n') return false;
      state_ = left_ == 0 ? State::kTrailer : State::kData;
      return true;
    case State::kDataCr:
      if (c != '\r') return false;
      state_ = State::kDataLf;
      return true;
    case State::kDataLf:
      if (c != '\n') return false;
      state_ = State::kSizeFirst;
      digits_ = 0;
      return true;
    case State::kTrailer:
      trailer_.push_back(c);
      if (trailer_.size() > max_trailer_bytes + 4) return false;
      if (c == '\n' && (trailer_ == "\r\n" || trailer_.ends_with("\r\n\r\n"))) return end_trailers();
      return true;
    case State::kData:
    case State::kDone:
      break;
  }
  return false;
}

ChunkDecoder::Step ChunkDecoder::decode(char* data, size_t size, size_t max_trailer_bytes) {
  Step step;
  char* payload = nullptr;
  size_t payload_size = 0;
  size_t at = 0;
  while (at < size && state_ != State::kDone) {
    if (state_ != State::kData) {
      if (!framing_byte(data[at], max_trailer_bytes)) {
        step.error = true;
        break;
      }
      ++at;
      continue;
    }
    const size_t take = left_ < size - at ? static_cast<size_t>(left_) : size - at;
    if (payload == nullptr) {
      payload = data + at;
    } else {
      if (take > kLargePayload) break;
      std::memmove(payload + payload_size, data + at, take);
    }
    payload_size += take;
    at += take;
    left_ -= take;
    if (left_ == 0) state_ = State::kDataCr;
  }
  step.consumed = at;
  step.payload = std::string_view(payload, payload_size);
  step.done = state_ == State::kDone && !step.error;
  return step;
}

// --- writing ---

bool is_token(std::string_view text) {
  if (text.empty()) return false;
#if defined(__SSE2__)
  if (text.size() >= 4) {
    // Letters and '-' are what names are made of; anything else is looked up.
    const auto plain = [](__m128i bytes) {
      const __m128i from_a = _mm_sub_epi8(_mm_or_si128(bytes, _mm_set1_epi8(0x20)), _mm_set1_epi8('a'));
      const __m128i letter = _mm_cmpeq_epi8(_mm_min_epu8(from_a, _mm_set1_epi8('z' - 'a')), from_a);
      return _mm_or_si128(letter, _mm_cmpeq_epi8(bytes, _mm_set1_epi8('-')));
    };
    if (all_bytes(text, plain)) return true;
  }
#endif
  for (const char c : text)
    if (kTokenLower[static_cast<unsigned char>(c)] == 0) return false;
  return true;
}

bool is_field_text(std::string_view text) {
#if defined(__SSE2__)
  if (text.size() >= 4) {
    return all_bytes(text, [](__m128i bytes) {
      // Unsigned bytes below 0x20: max(byte, 0x20) differs from the byte.
      const __m128i printable = _mm_cmpeq_epi8(_mm_max_epu8(bytes, _mm_set1_epi8(0x20)), bytes);
      return _mm_or_si128(_mm_andnot_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(0x7f)), printable),
                          _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\t')));
    });
  }
#endif
  for (const char c : text)
    if (!text_byte_ok(static_cast<unsigned char>(c))) return false;
  return true;
}

bool is_connection_field(std::string_view name) {
  switch (name.size()) {
    case 2:
      return ascii_iequals(name, "te");
    case 7:
      return ascii_iequals(name, "upgrade") || ascii_iequals(name, "trailer");
    case 10:
      return ascii_iequals(name, "connection") || ascii_iequals(name, "keep-alive");
    case 14:
      return ascii_iequals(name, "content-length");
    case 16:
      return ascii_iequals(name, "proxy-connection");
    case 17:
      return ascii_iequals(name, "transfer-encoding");
    default:
      return false;
  }
}

bool append_fields(std::string& out, std::span<const HeaderField> fields, bool& has_date, bool& has_host) {
  size_t bytes = 0;
  for (const HeaderField& field : fields) bytes += field.name.size() + field.value.size() + 4;
  const size_t before = out.size();
  out.resize(before + bytes);
  char* to = out.data() + before;
  for (const HeaderField& field : fields) {
    if (!is_token(field.name) || !is_field_text(field.value)) return false;
    if (is_connection_field(field.name)) continue;
    if (field.name.size() == 4) {
      if (ascii_iequals(field.name, "date")) has_date = true;
      if (ascii_iequals(field.name, "host")) has_host = true;
    }
    std::memcpy(to, field.name.data(), field.name.size());
    to += field.name.size();
    *to++ = ':';
    *to++ = ' ';
    if (!field.value.empty()) std::memcpy(to, field.value.data(), field.value.size());
    to += field.value.size();
    *to++ = '\r';
    *to++ = '\n';
  }
  out.resize(static_cast<size_t>(to - out.data()));
  return true;
}

void append_number(std::string& out, uint64_t value) {
  char digits[20];
  const auto result = std::to_chars(digits, digits + sizeof(digits), value);
  out.append(digits, static_cast<size_t>(result.ptr - digits));
}

void append_chunk_size(std::string& out, uint64_t size) {
  char digits[18];
  const auto result = std::to_chars(digits, digits + 16, size, 16);
  char* end = result.ptr;
  *end++ = '\r';
  *end++ = '\n';
  out.append(digits, static_cast<size_t>(end - digits));
}

std::string_view http_date() {
  thread_local time_t at = -1;
  thread_local std::array<char, 32> text{};
  thread_local size_t size = 0;
  timespec now{};
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  if (now.tv_sec != at) {
    at = now.tv_sec;
    tm parts{};
    gmtime_r(&at, &parts);
    static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                              "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    char format[32];
    std::snprintf(format, sizeof(format), "%s, %%d %s %%Y %%H:%%M:%%S GMT", kDays[parts.tm_wday],
                  kMonths[parts.tm_mon]);
    size = strftime(text.data(), text.size(), format, &parts);
  }
  return {text.data(), size};
}

}  // namespace detail
}  // namespace penstock::io
