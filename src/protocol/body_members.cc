#include "protocol/body_members.h"

#include "base/strings.h"

namespace penstock::protocol {

bool CommonMembers::take(JsonCursor& cursor) {
  const std::string_view key = cursor.key();
  if (key == "model") {
    const size_t offset = cursor.offset();
    JsonString text;
    const bool is_text = cursor.string(text);
    if (!is_text) cursor.skip();
    model_ = is_text ? text.value : std::string_view();
    if (++models_ <= kMaxModels) model_literals_.push_back({offset, cursor.consumed() - offset});
    return true;
  }
  if (key == "stream") {
    streaming_ = false;
    if (!cursor.boolean(streaming_)) cursor.skip();
    return true;
  }
  if (key == "cache_salt") {
    salt_is_text_ = take_text_or_null(cursor, salt_);
    return true;
  }
  return false;
}

void CommonMembers::fill(ParsedBody& out) {
  out.model = model_;
  out.model_literals = model_literals_.view();
  out.streaming = streaming_;
  out.cache_salt = salt_;
  out.rewritable = insert_offset_ != 0;
  out.model_insert_offset = insert_offset_;
  out.model_insert_comma = has_members_;
}

bool take_text_or_null(JsonCursor& cursor, std::string_view& out) {
  JsonString text;
  if (cursor.string(text)) {
    out = text.value;
    return true;
  }
  out = {};
  return take_kind_or_null(cursor, JsonKind::kNull);
}

bool take_kind_or_null(JsonCursor& cursor, JsonKind kind) {
  const JsonKind found = cursor.kind();
  cursor.skip();
  return found == kind || found == JsonKind::kNull;
}

std::optional<int64_t> take_token_limit(JsonCursor& cursor) {
  std::string_view literal;
  if (cursor.number(literal)) return integral_value(literal);
  cursor.skip();
  return std::nullopt;
}

void take_token_limit_of(JsonCursor& cursor, std::string_view name, std::optional<int64_t>& limit) {
  if (cursor.kind() != JsonKind::kObject) {
    cursor.skip();
    return;
  }
  limit.reset();
  for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
    if (cursor.key() == name) {
      limit = take_token_limit(cursor);
    } else {
      cursor.skip();
    }
    if (cursor.failed()) return;
  }
}

bool has_elements(std::string_view array_literal) {
  return array_literal.size() > 2 &&
         array_literal.find_first_not_of(" \t\r\n", 1) != array_literal.size() - 1;
}

std::string_view normal_path(std::string_view path) {
  path = trim(path);
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return path;
}

bool path_ends_with(std::string_view path, std::string_view suffix) {
  if (!path.ends_with(suffix)) return false;
  if (suffix.starts_with('.')) return true;
  return path.size() == suffix.size() || path[path.size() - suffix.size() - 1] == '/';
}

}  // namespace penstock::protocol
