#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/detail/memory.h"
#include "io/http.h"

namespace penstock::io::detail {

// HTTP/1.1 message syntax (RFC 9110, 9112), strict: what two implementations could read in two ways is an
// error. Nothing here allocates per field; views point into the caller's buffer, names are lowered in it.

using FieldVector = std::vector<HeaderField, FrameAllocator<HeaderField>>;

enum class ParseError : uint8_t {
  kNone,
  kMalformed,       // 400
  kTooLarge,        // 431
  kNotImplemented,  // 501: a transfer coding we don't have
  kVersion,         // 505
};
int status_of(ParseError error);

// Finds the end of a head as bytes arrive. Each byte is looked at once.
class HeadScanner {
 public:
  enum class Result : uint8_t { kIncomplete, kComplete, kMalformed };
  // `data[0, size)` is all that has come, seen before or not. Empty lines in front of a request's first
  // line are skipped, at most kLeadingLines.
  Result scan(const char* data, size_t size, bool skip_leading_lines);
  size_t begin() const { return begin_; }  // of the first line
  size_t end() const { return end_; }      // after the empty line; valid when complete
  void reset() { *this = HeadScanner(); }

 private:
  static constexpr size_t kLeadingLines = 8;
  size_t begin_ = 0;
  size_t line_ = 0;     // start of the line being read
  size_t scanned_ = 0;  // everything before was looked at
  size_t end_ = 0;
  size_t skipped_ = 0;
};

// How the body of a received message is delimited, and what its head says about the connection.
struct MessageFraming {
  enum class Kind : uint8_t { kNone, kLength, kChunked, kUntilClose };
  Kind kind = Kind::kNone;
  uint64_t length = 0;
  bool keep_alive = true;
  bool expect_continue = false;
  bool unknown_expectation = false;
  bool declared_length = false;  // a content-length was there (also without a body: HEAD, 304)
};

// Parses the complete head data[begin, end) that a HeadScanner found. At most `max_fields` fields.
ParseError parse_request_head(char* data, size_t begin, size_t end, size_t max_fields, FieldVector& fields,
                              RequestHead& head, MessageFraming& framing);
// `to_head`: the request was HEAD, so no body follows.
ParseError parse_response_head(char* data, size_t begin, size_t end, size_t max_fields, bool to_head,
                               FieldVector& fields, ResponseHead& head, MessageFraming& framing);

// Takes the chunk framing out of a body, in place and in pieces of any size.
class ChunkDecoder {
 public:
  struct Step {
    size_t consumed = 0;  // bytes of the input that are done with
    std::string_view payload;
    bool done = false;  // the body and its trailers are complete
    bool error = false;
  };
  // Decodes from data[0, size): the payloads of all chunks in it are moved together behind the first one,
  // except that a large one that would have to move is left for the next call. The payload may be empty
  // while nothing is done: then everything was consumed and more is needed.
  Step decode(char* data, size_t size, size_t max_trailer_bytes);
  // After done: the trailer fields; they point into this object.
  HeaderFields trailers() const { return HeaderFields(std::span<const HeaderField>(fields_)); }
  void reset();

 private:
  enum class State : uint8_t {
    kSizeFirst,
    kSize,
    kExtension,
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kTrailer,
    kDone
  };
  static constexpr size_t kLargePayload = 4096;
  static constexpr size_t kExtensionBytes = 16 * 1024;  // of a whole message

  bool framing_byte(char c, size_t max_trailer_bytes);
  bool end_trailers();

  State state_ = State::kSizeFirst;
  uint32_t digits_ = 0;
  uint64_t left_ = 0;  // of the chunk being read
  size_t extension_bytes_ = 0;
  std::string trailer_;
  FieldVector fields_;
};

// --- writing ---

bool is_token(std::string_view text);
// No controls but tab: what may stand in a field value or a reason.
bool is_field_text(std::string_view text);
// Fields that describe the connection or the framing; ours to write.
bool is_connection_field(std::string_view name);
// "name: value\r\n" for each end-to-end field; false when one would break the framing.
bool append_fields(std::string& out, std::span<const HeaderField> fields, bool& has_date, bool& has_host);
void append_number(std::string& out, uint64_t value);
void append_chunk_size(std::string& out, uint64_t size);
// "Sun, 06 Nov 1994 08:49:37 GMT", computed once a second and thread.
std::string_view http_date();

}  // namespace penstock::io::detail
