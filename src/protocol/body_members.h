#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/arena.h"
#include "base/result.h"
#include "protocol/arena_list.h"
#include "protocol/json_cursor.h"
#include "protocol/parser.h"

namespace penstock::protocol {

// What one walk over a JSON object body gathers for every API: "model", "stream", "cache_salt" and where a
// new model name goes. A later member replaces an earlier one of the same key.
class CommonMembers {
 public:
  // Longest model name. It is kept in logs, metrics and decision records long after its request.
  static constexpr size_t kMaxModelBytes = 1024;

  // Most members "model". A client sends one; each is remembered for rewriting, and costs 16 times its bytes.
  static constexpr size_t kMaxModels = 64;

  explicit CommonMembers(Arena& arena) : model_literals_(arena) {}

  // Consumes the member's value when the key is one of ours.
  bool take(JsonCursor& cursor);
  // Call for each member, before take(): notes where the object's first member begins.
  void saw_member() { has_members_ = true; }
  void saw_opening(size_t offset) { insert_offset_ = offset + 1; }

  bool salt_is_text() const { return salt_is_text_; }
  bool model_is_too_long() const { return model_.size() > kMaxModelBytes; }
  bool has_too_many_models() const { return models_ > kMaxModels; }
  void fill(ParsedBody& out);

 private:
  std::string_view model_;
  ArenaList<Splice> model_literals_;
  size_t models_ = 0;
  std::string_view salt_;
  bool salt_is_text_ = true;
  bool streaming_ = false;
  bool has_members_ = false;
  size_t insert_offset_ = 0;
};

// Readers of one value. They consume it whatever it is, and say whether it was of the wanted kind.
// A broken value shows in the cursor.
bool take_text_or_null(JsonCursor& cursor, std::string_view& out);
bool take_kind_or_null(JsonCursor& cursor, JsonKind kind);
// A member that counts tokens: a non-negative integral number, anything else counts as absent.
std::optional<int64_t> take_token_limit(JsonCursor& cursor);
// The token limit that an object has as its member `name`; a value of another kind leaves `limit` alone.
void take_token_limit_of(JsonCursor& cursor, std::string_view name, std::optional<int64_t>& limit);
// True for an array literal with elements.
bool has_elements(std::string_view array_literal);

// Walks the object `body`, calling `member(cursor)` for each member that CommonMembers doesn't take; it must
// consume the value. A body that is `null` has no members. Errors carry `prefix` and the JSON error.
template <typename Member>
Status walk_object(const PaddedBody& body, Arena& arena, CommonMembers& common, std::string_view prefix,
                   Member&& member) {
  JsonCursor cursor(body.view(), &arena);
  const JsonKind kind = cursor.kind();
  if (kind == JsonKind::kObject) {
    common.saw_opening(cursor.offset());
    for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
      common.saw_member();
      if (!common.take(cursor)) member(cursor);
      if (cursor.failed()) break;
    }
  } else {
    cursor.skip();
  }
  if (!cursor.finish()) return Error{ErrorCode::kBadRequest, std::string(prefix) + cursor.error_text()};
  if (kind != JsonKind::kObject && kind != JsonKind::kNull)
    return Error{ErrorCode::kBadRequest, std::string(prefix) + "the body is not a JSON object"};
  if (common.has_too_many_models()) {
    return Error{ErrorCode::kBadRequest, std::string(prefix) + "the body has more than " +
                                             std::to_string(CommonMembers::kMaxModels) +
                                             " members \"model\""};
  }
  if (common.model_is_too_long()) {
    return Error{ErrorCode::kBadRequest, std::string(prefix) + "the model name is longer than " +
                                             std::to_string(CommonMembers::kMaxModelBytes) + " bytes"};
  }
  return {};
}

inline Error bad_request(std::string message) {
  return Error{ErrorCode::kBadRequest, std::move(message)};
}

// A path without surrounding blanks and one trailing slash.
std::string_view normal_path(std::string_view path);
// True when `suffix` (no leading slash) is the whole path or its last segments. A suffix that begins with a
// dot is the end of a gRPC service's name, whatever its package, and a method.
bool path_ends_with(std::string_view path, std::string_view suffix);

}  // namespace penstock::protocol
