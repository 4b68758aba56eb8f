#pragma once

#include <string_view>

#include "protocol/body_members.h"
#include "protocol/json_cursor.h"
#include "protocol/prompt_estimate.h"

namespace penstock::protocol {

// One message of a chat into `stream`: its role first, then its content, whatever order they come in; the
// last of equal members counts. `content(cursor)` writes the content into `stream` and says whether its type
// is one the API knows; `other(cursor)` consumes any further member. False where role or content is of a
// wrong type, or the message is neither an object nor null. A broken document shows in the cursor.
template <typename Content, typename Other>
bool take_message(JsonCursor& cursor, PromptStream& stream, Content&& content, Other&& other) {
  if (cursor.kind() != JsonKind::kObject) return take_kind_or_null(cursor, JsonKind::kNull);
  const size_t role_place = stream.reserve_text();
  const PromptStream::Mark before_content = stream.mark();
  bool role_ok = true;
  bool content_ok = true;
  for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
    const std::string_view key = cursor.key();
    if (key == "role") {
      std::string_view role;
      role_ok = take_text_or_null(cursor, role);
      stream.set_text(role_place, role);
    } else if (key == "content") {
      stream.rewind(before_content);
      content_ok = content(cursor);
    } else {
      other(cursor);
    }
    if (cursor.failed()) return false;
  }
  return role_ok && content_ok;
}

}  // namespace penstock::protocol
