#include "protocol/token_ids.h"

namespace penstock::protocol {

TokenIds take_token_ids(JsonCursor& cursor, Arena& arena) {
  TokenIds out;
  if (cursor.kind() != JsonKind::kArray) {
    cursor.skip();
    return out;
  }
  ArenaList<uint32_t> ids(arena);
  out.valid = true;
  for (bool more = cursor.enter_array(); more; more = cursor.next_element()) {
    uint32_t id = 0;
    if (cursor.u32(id)) {
      ids.push_back(id);
      continue;
    }
    std::string_view value;
    if (!cursor.raw(value)) break;
    if (out.valid) {
      out.valid = false;
      out.bad_index = ids.size();
      out.bad_value = value;
    }
  }
  out.ids = ids.view();
  return out;
}

}  // namespace penstock::protocol
