#include "signals/sleep_probe.h"

#include <cstddef>

#include "protocol/json_cursor.h"

namespace penstock::signals {

std::optional<bool> parse_sleep_answer(std::string_view body) {
  if (body.size() > kMaxSleepAnswer || !body.starts_with('{')) return std::nullopt;
  protocol::JsonCursor cursor(body, nullptr);
  std::optional<bool> asleep;
  for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
    bool value = false;
    if (cursor.key() != "is_sleeping") {
      cursor.skip();
    } else if (cursor.kind() == protocol::JsonKind::kBool && cursor.boolean(value)) {
      asleep = value;
    } else {
      asleep.reset();
      cursor.skip();
    }
  }
  return cursor.finish() ? asleep : std::nullopt;
}

}  // namespace penstock::signals
