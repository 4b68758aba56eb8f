#pragma once

// For this room's fuzz targets only.

#include <simdjson.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "protocol/json_cursor.h"
#include "protocol/parser.h"

namespace penstock::protocol {

// A copy whose end is the end of its allocation, so that a read beyond it is seen.
class ExactCopy {
 public:
  explicit ExactCopy(std::string_view text) : bytes_(new char[text.size()]), size_(text.size()) {
    text.copy(bytes_.get(), size_);
  }
  PaddedBody body() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<char[]> bytes_;
  size_t size_;
};

inline void require(bool condition) {
  if (!condition) std::abort();
}

// The cursor accepts what simdjson accepts and refuses what breaks the grammar there. Text that isn't UTF-8,
// lone surrogates, huge numbers and depth are judged differently on purpose.
inline void compare_with_simdjson(std::string_view text) {
  static simdjson::dom::parser parser;
  Arena arena;
  JsonCursor cursor(text, &arena);
  cursor.skip();
  const bool accepted = cursor.finish();
  const auto error = parser.parse(text.data(), text.size()).error();
  if (error == simdjson::SUCCESS) {
    require(accepted || cursor.error_text().starts_with("nesting"));
  } else if (error == simdjson::TAPE_ERROR || error == simdjson::UNCLOSED_STRING ||
             error == simdjson::EMPTY || error == simdjson::UNESCAPED_CHARS) {
    require(!accepted);
  }
}

// Parses and checks what must hold of every result: spans lie in reach, a rewritten body says the same but
// for its model.
inline void check_parser(const RequestParser& parser, std::string_view path, std::string_view text) {
  const ExactCopy copy(text);
  Arena arena;
  const auto result = parser.parse(path, {}, copy.body(), arena);
  if (!result.ok()) {
    require(result.error().code == ErrorCode::kBadRequest);
    return;
  }
  uint64_t sum = 0;
  for (const TokenizedPrompt& prompt : result->prompts) {
    for (const uint32_t id : prompt.token_ids) sum += id;
    for (const MultiModalFeature& feature : prompt.features) sum += feature.hash.size();
  }
  if (!result->rewritable) return;

  const RewrittenBody rewritten = rewrite_model(copy.body(), result.value(), "T\"1", arena);
  std::string joined;
  for (const std::string_view piece : rewritten.pieces) joined += piece;
  require(joined.size() == rewritten.size);
  const ExactCopy again(joined);
  const auto second = parser.parse(path, {}, again.body(), arena);
  require(second.ok());
  require(second->model == "T\"1");
  require(second->streaming == result->streaming && second->max_output_tokens == result->max_output_tokens);
  uint64_t second_sum = 0;
  for (const TokenizedPrompt& prompt : second->prompts) {
    for (const uint32_t id : prompt.token_ids) second_sum += id;
    for (const MultiModalFeature& feature : prompt.features) second_sum += feature.hash.size();
  }
  require(sum == second_sum);
}

}  // namespace penstock::protocol
