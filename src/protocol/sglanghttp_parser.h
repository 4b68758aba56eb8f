#pragma once

#include <span>
#include <string_view>

#include "protocol/parser.h"

namespace penstock::protocol {

// SGLang's native /generate, only with one prompt given as `input_ids`. `extra_key` is the cache salt; there
// is no model name.
class SglangHttpParser final : public RequestParser {
 public:
  static constexpr std::string_view kType = "sglanghttp-parser";

  std::span<const std::string_view> path_suffixes() const override;
  bool can_rewrite_model() const override { return false; }
  Result<ParsedBody> parse(std::string_view path, std::span<const HeaderField> headers,
                           const PaddedBody& body, Arena& arena) const override;
};

}  // namespace penstock::protocol
