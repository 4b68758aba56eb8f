#pragma once

#include <span>
#include <string_view>

#include "protocol/openai_parser.h"
#include "protocol/parser.h"

namespace penstock::protocol {

// Vertex AI's PredictionService over gRPC, of any package version: the JSON in the request's HttpBody is read
// as OpenAI chat completions (ChatCompletions) or responses (StreamRawPredict, RawPredict). The body is
// forwarded as it came, its model never rewritten. Any other method: nothing is read.
//
// Errors: those of grpc_message.h, "<Type> has no HttpBody", and the OpenAI parser's.
class VertexAiParser final : public RequestParser {
 public:
  static constexpr std::string_view kType = "vertexai-parser";

  std::span<const std::string_view> path_suffixes() const override;
  bool can_rewrite_model() const override { return false; }
  bool needs_http2() const override { return true; }
  Result<ParsedBody> parse(std::string_view path, std::span<const HeaderField> headers,
                           const PaddedBody& body, Arena& arena) const override;

 private:
  OpenAiParser json_;
};

}  // namespace penstock::protocol
