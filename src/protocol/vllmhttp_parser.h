#pragma once

#include <span>
#include <string_view>

#include "protocol/parser.h"

namespace penstock::protocol {

// vLLM's tokens-in, tokens-out API: `token_ids` is the prompt, `features` its media, the limit is
// `sampling_params.max_tokens`.
class VllmHttpParser final : public RequestParser {
 public:
  static constexpr std::string_view kType = "vllmhttp-parser";

  std::span<const std::string_view> path_suffixes() const override;
  bool can_rewrite_model() const override { return true; }
  Result<ParsedBody> parse(std::string_view path, std::span<const HeaderField> headers,
                           const PaddedBody& body, Arena& arena) const override;
};

}  // namespace penstock::protocol
