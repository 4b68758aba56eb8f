#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "simulator/engine_stats.h"
#include "simulator/request_body.h"

namespace penstock::simulator {

// The engine's answers as bytes: member order, nulls and spacing are those of vLLM 0.32 (recorded
// exchanges in tests/vectors/vllm-0.32.0). Everything appends to `out`; SSE functions write whole events,
// blank line included.

// What all answers to one request have in common.
struct ResponseContext {
  EngineApi api = EngineApi::kChat;
  std::string id;       // "chatcmpl-…", "cmpl-…", "resp_…", "generate-tokens-…"
  std::string item_id;  // Responses API: "msg_…"
  int64_t created = 0;  // unix seconds
  std::string_view model;
  std::string_view fingerprint;
  bool prompt_tokens_details = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  std::span<const uint32_t> prompt_tokens;  // shown when return_token_ids
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t max_tokens = 0;  // Responses API
  std::string_view previous_response_id;
};

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t created_cache_tokens = 0;
};

struct ChoiceText {
  uint32_t index = 0;
  std::string_view text;
  FinishReason finish = FinishReason::kNone;
  std::string_view stop;  // the stop string that ended it, or empty
  std::span<const uint32_t> tokens;
};

void append_response(std::string& out, const ResponseContext& context, std::span<const ChoiceText> choices,
                     const Usage& usage);

// What precedes the first token of a stream (for chat: the role, once per choice).
void append_stream_start(std::string& out, const ResponseContext& context, uint32_t choices,
                         const Usage& usage);
// New text of one choice; with its end when `choice.finish` is set. `sequence` counts Responses events.
void append_stream_delta(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                         const Usage& usage, uint32_t& sequence);
// What follows the last choice's end. `choice` is the first choice with its whole text.
void append_stream_end(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                       const Usage& usage, uint32_t& sequence);

// {"error":{…}}, or Anthropic's form for the Messages API.
void append_error(std::string& out, EngineApi api, const ApiError& error);

}  // namespace penstock::simulator
