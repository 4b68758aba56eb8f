#pragma once

#include <span>
#include <string_view>

#include "protocol/parser.h"

namespace penstock::protocol {

// The Anthropic Messages API. `messages` must be a non-empty array. The estimate: tools (JSON text as sent),
// system text, then role and content of each message; blocks of system text that begin with
// "x-anthropic-billing-header" are left out, since they change with every call.
// messages/count_tokens takes any bytes and its answer is not read; its model is found and can be rewritten
// where the body is a JSON object.
class AnthropicParser final : public RequestParser {
 public:
  static constexpr std::string_view kType = "anthropic-parser";

  std::span<const std::string_view> path_suffixes() const override;
  bool can_rewrite_model() const override { return true; }
  Result<ParsedBody> parse(std::string_view path, std::span<const HeaderField> headers,
                           const PaddedBody& body, Arena& arena) const override;
};

}  // namespace penstock::protocol
