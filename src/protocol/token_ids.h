#pragma once

#include <span>
#include <string_view>

#include "protocol/arena_list.h"
#include "protocol/json_cursor.h"

namespace penstock::protocol {

// What became of an array of token ids.
struct TokenIds {
  std::span<const uint32_t> ids;
  bool valid = false;          // an array of integers 0..4294967295; may be empty
  size_t bad_index = 0;        // of the first element that is no token id
  std::string_view bad_value;  // its text; empty when the value is no array
};
// Consumes the value, whatever it is.
TokenIds take_token_ids(JsonCursor& cursor, Arena& arena);

}  // namespace penstock::protocol
