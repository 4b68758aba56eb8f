#pragma once

#include <span>
#include <string_view>

#include "protocol/parser.h"

namespace penstock::protocol {

// The OpenAI APIs, by path suffix: chat/completions, completions, embeddings, responses, conversations,
// images/generations and the /render forms. Required members and error texts are the reference's; types are
// checked only where it does. On top of it: nested token-id prompts ([[1,2],[3]]), `prompt_embeds` in place
// of `prompt`, and unknown content blocks, whose JSON text takes part in the estimate so that prompts which
// differ in them differ.
//
// The estimate is the byte stream of prompt_estimate.h: tools (their JSON text as sent), then role and
// content of each message. Example: [{"role":"user","content":"hi"}] is "userhi", tokens 1919251317, 26984.
// `instructions`, `tools`, `input` (responses), `items` (conversations) and `input` (embeddings) enter as
// their JSON text as sent.
class OpenAiParser final : public RequestParser {
 public:
  static constexpr std::string_view kType = "openai-parser";

  std::span<const std::string_view> path_suffixes() const override;
  bool can_rewrite_model() const override { return true; }
  Result<ParsedBody> parse(std::string_view path, std::span<const HeaderField> headers,
                           const PaddedBody& body, Arena& arena) const override;
};

}  // namespace penstock::protocol
