#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::sharing {

// RESP version 2, the protocol of Redis and Valkey (https://redis.io/docs/reference/protocol-spec): what a
// client of a few commands needs of it.

// Appends one command as an array of bulk strings.
void append_command(std::string& out, std::initializer_list<std::string_view> arguments);

// One reply. Texts are views of the bytes that were parsed.
struct RespReply {
  enum class Kind : uint8_t { kNull, kText, kError, kInteger, kArray };
  Kind kind = Kind::kNull;
  std::string_view text;  // kText (simple or bulk) and kError
  int64_t integer = 0;
  std::vector<RespReply> items;

  bool is_error() const { return kind == Kind::kError; }
};

struct RespLimits {
  size_t bytes = size_t{32} << 20;  // of a reply
  size_t items = 100'000;           // elements of all its arrays together
  size_t depth = 8;
};

enum class RespOutcome : uint8_t { kComplete, kIncomplete, kMalformed, kTooLarge };

struct RespParsed {
  RespOutcome outcome = RespOutcome::kIncomplete;
  size_t bytes = 0;  // kComplete: of the reply. kIncomplete: it is at least so long
};

// Reads the reply that `bytes` begin with. Nothing is believed: lengths are decimal, within the limits, and
// what they announce has to be there; no memory is taken for elements that have not come.
RespParsed parse_reply(std::string_view bytes, RespReply& out, const RespLimits& limits = {});

}  // namespace penstock::sharing
