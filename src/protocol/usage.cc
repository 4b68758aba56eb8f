#include "protocol/usage.h"

#include "base/strings.h"
#include "protocol/json_cursor.h"

namespace penstock::protocol {
namespace {

uint64_t take_count(JsonCursor& cursor) {
  std::string_view literal;
  JsonString text;
  if (cursor.number(literal)) return static_cast<uint64_t>(integral_value(literal).value_or(0));
  if (cursor.string(text)) return static_cast<uint64_t>(integral_value(text.value).value_or(0));
  cursor.skip();
  return 0;
}

void take_details(JsonCursor& cursor, std::optional<uint64_t>& cached) {
  if (cursor.kind() != JsonKind::kObject) {
    cursor.skip();
    return;
  }
  for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
    if (cursor.key() == "cached_tokens" && cursor.kind() != JsonKind::kNull) {
      cached = take_count(cursor);
    } else {
      cursor.skip();
    }
    if (cursor.failed()) return;
  }
}

}  // namespace

bool read_usage(std::string_view object, bool is_meta_info, bool in_stream, Usage& out) {
  JsonCursor cursor(object, nullptr);
  std::optional<uint64_t> prompt;
  std::optional<uint64_t> input;
  std::optional<uint64_t> completion;
  std::optional<uint64_t> output;
  std::optional<uint64_t> total;
  std::optional<uint64_t> cached;
  bool finished = false;
  for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
    const std::string_view key = cursor.key();
    if (cursor.kind() == JsonKind::kNull) {
      cursor.skip();
    } else if (key == "prompt_tokens") {
      prompt = take_count(cursor);
    } else if (key == "input_tokens") {
      input = take_count(cursor);
    } else if (key == "completion_tokens") {
      completion = take_count(cursor);
    } else if (key == "output_tokens") {
      output = take_count(cursor);
    } else if (key == "total_tokens") {
      total = take_count(cursor);
    } else if (key == "prompt_tokens_details" || key == "input_tokens_details") {
      take_details(cursor, cached);
    } else if (key == "cache_read_input_tokens" || (is_meta_info && key == "cached_tokens")) {
      cached = take_count(cursor);
    } else {
      finished = finished || key == "finish_reason";
      cursor.skip();
    }
    if (cursor.failed()) return false;
  }
  if (!cursor.finish()) return false;
  if (is_meta_info && in_stream && !finished) return false;
  if (!prompt) prompt = input;
  if (!completion) completion = output;
  if (!prompt && !completion && (is_meta_info || (!total && !cached))) return false;
  out.prompt_tokens = prompt.value_or(0);
  out.completion_tokens = completion.value_or(0);
  out.total_tokens = total.value_or(0);
  out.cached_tokens = cached;
  return true;
}

void merge_usage(Usage& known, const Usage& block) {
  if (block.prompt_tokens != 0) known.prompt_tokens = block.prompt_tokens;
  if (block.completion_tokens != 0) known.completion_tokens = block.completion_tokens;
  if (block.cached_tokens) known.cached_tokens = block.cached_tokens;
  const bool whole = block.prompt_tokens != 0 && block.completion_tokens != 0 && block.total_tokens != 0;
  known.total_tokens = whole ? block.total_tokens : known.prompt_tokens + known.completion_tokens;
}

}  // namespace penstock::protocol
