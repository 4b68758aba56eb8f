#pragma once

#include <span>
#include <string_view>

#include "protocol/parser.h"

namespace penstock::protocol {

// The fallback: claims every path that nobody else does; the body is forwarded unread.
class PassthroughParser final : public RequestParser {
 public:
  static constexpr std::string_view kType = "passthrough-parser";

  std::span<const std::string_view> path_suffixes() const override;
  bool can_rewrite_model() const override { return false; }
  Result<ParsedBody> parse(std::string_view path, std::span<const HeaderField> headers,
                           const PaddedBody& body, Arena& arena) const override;
};

}  // namespace penstock::protocol
