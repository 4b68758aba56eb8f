#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "base/strings.h"

namespace penstock {

// Which API a request speaks: decides how its prompt is found, how its answer is read and in which shape
// errors go back.
enum class ApiKind : uint8_t {
  kNone,  // no body, or one nobody reads (passthrough)
  kCompletions,
  kChatCompletions,
  kResponses,
  kConversations,
  kEmbeddings,
  kImagesGenerations,
  kMessages,      // Anthropic
  kCountTokens,   // Anthropic
  kVllmGenerate,  // /inference/v1/generate
  kSglangGenerate,
  kVllmGrpcGenerate,  // vllm.grpc.engine.VllmEngine
  kVllmGrpcEmbed,
  kVertexChatCompletions,  // OpenAI JSON in google.api.HttpBody in gRPC
  kVertexRawPredict,
};
std::string_view api_kind_name(ApiKind kind);

// One header field. Names are lower-case. Views point into the connection's or the request's arena.
struct HeaderField {
  std::string_view name;
  std::string_view value;
};

// The last value of a name decides (as the reference's header map does).
inline std::optional<std::string_view> find_header(std::span<const HeaderField> headers,
                                                   std::string_view name) {
  for (size_t i = headers.size(); i-- > 0;) {
    if (headers[i].name == name) return headers[i].value;
  }
  return std::nullopt;
}

// A multi-modal item inside a tokenised prompt.
struct MultiModalFeature {
  std::string_view modality;  // "image", "video", "audio"
  std::string_view hash;      // lower-case hex of the content hash; empty: unknown
  uint32_t offset_tokens = 0;
  uint32_t length_tokens = 0;
};

// One prompt as token ids: real ones, or the estimate's pseudo-tokens (4 bytes of text each,
// little-endian, zero-padded). Storage: the request's arena.
struct TokenizedPrompt {
  std::span<const uint32_t> token_ids;
  std::span<const MultiModalFeature> features;
};

// What the director knows of one request while it decides. Plain views into the request's arena: valid
// until the arena is reset. One loop owns it.
struct InferenceRequest {
  // Unique in the process: what plugins that follow a request know it by. The id is for logs, it may be the
  // client's and come twice.
  uint64_t number = 0;
  std::string_view request_id;
  std::string_view method;
  std::string_view path;  // without the query
  std::span<const HeaderField> headers;

  ApiKind api = ApiKind::kNone;
  std::string_view incoming_model;  // as the client wrote it; may be empty
  std::string_view target_model;    // after rewriting
  std::string_view cache_salt;
  bool streaming = false;
  std::optional<int64_t> max_output_tokens;
  uint64_t body_bytes = 0;

  // Set by the token producer; empty before, and for bodies nobody can tokenise.
  std::span<const TokenizedPrompt> prompts;

  std::string_view objective;       // name from the header, may be empty
  int priority = 0;                 // higher first; < 0 is sheddable
  std::string_view fairness_id;     // never empty after the director's first step
  std::string_view identity;        // name of the caller's API key, or empty
  std::string_view agent_identity;  // found by a RequestHook, or empty
  TimePoint received_at = kNever;

  // Sum over all prompts; 0 when unknown.
  uint64_t prompt_tokens() const {
    uint64_t total = 0;
    for (const TokenizedPrompt& prompt : prompts) total += prompt.token_ids.size();
    return total;
  }
};

}  // namespace penstock
