#pragma once

#include <span>
#include <string_view>

#include "protocol/parser.h"

namespace penstock::protocol {

// vLLM's gRPC engine service (src/proto/vllm/grpc/engine/vllm_engine.proto): VllmEngine/Generate and /Embed.
// The first message of the body is read and the body forwarded as it came; there is no model name. A text
// input is estimated like a completions prompt, a tokenised one taken as it is; placeholder i of the
// multi-modal inputs belongs to hash i, a missing hash is empty. Any other method: nothing is read, neither
// of the request nor of its answer. `path` counts verbatim, without a trailing slash removed.
//
// Errors: "invalid or unsupported gRPC payload" (frame or message broken, compressed), "not supported request
// inputType", "missing tokenized input in EmbedRequest".
class VllmGrpcParser final : public RequestParser {
 public:
  static constexpr std::string_view kType = "vllmgrpc-parser";

  std::span<const std::string_view> path_suffixes() const override;
  bool can_rewrite_model() const override { return false; }
  bool needs_http2() const override { return true; }
  Result<ParsedBody> parse(std::string_view path, std::span<const HeaderField> headers,
                           const PaddedBody& body, Arena& arena) const override;
};

}  // namespace penstock::protocol
