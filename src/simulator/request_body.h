#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::simulator {

// The engine's API routes that take a JSON body.
enum class EngineApi : uint8_t {
  kChat,
  kCompletions,
  kMessages,
  kCountTokens,
  kResponses,
  kGenerate,
  kEmbeddings,
  kTokenize,
  kDetokenize,
  kLoadAdapter,
  kUnloadAdapter,
};

// A refusal in the engine's words.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "BadRequestError";
  std::string param;  // "": null
};

// What the simulated engine uses of a body; everything else is accepted and ignored, as the real one does.
struct EngineRequest {
  std::string model;  // empty: the first served name
  bool stream = false;
  bool has_stream_options = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool echo = false;
  bool ignore_eos = false;
  bool return_token_ids = false;
  bool return_token_texts = false;  // /tokenize: return_token_strs
  bool base64 = false;              // /v1/embeddings: encoding_format
  bool load_inplace = false;
  uint32_t n = 1;
  uint32_t stream_interval = 1;  // tokens per chunk
  uint32_t dimensions = 0;       // /v1/embeddings; 0: the engine's
  std::optional<int64_t> max_tokens;
  double temperature = 1.0;
  double top_p = 1.0;
  uint64_t seed = 0;
  std::string cache_salt;
  std::string request_id;
  std::vector<std::string> stop;
  std::string echo_text;  // completions with echo: the prompt's text
  std::string adapter_name;
  std::string adapter_path;
  std::string previous_response_id;
  bool store = true;             // Responses API: the answer is to be kept
  bool prompt_is_media = false;  // parts that a text model can't take

  // One token list per prompt; /detokenize: the tokens. The first `prompt_count` are valid.
  std::vector<std::vector<uint32_t>> prompts;
  size_t prompt_count = 0;
  std::span<std::vector<uint32_t>> valid_prompts() { return std::span(prompts).first(prompt_count); }

  void clear();
  std::vector<uint32_t>& add_prompt();
};

// Reads bodies: validates the JSON to its end and turns prompts into tokens. Keeps its buffers, so after
// warm-up a body costs one walk. Not thread-safe. Bounds: prompts of one body <= kMaxPrompts, stop strings
// <= kMaxStops, nesting as simdjson allows (1024).
class RequestReader {
 public:
  static constexpr size_t kMaxPrompts = 2048;
  static constexpr size_t kMaxStops = 64;
  static constexpr size_t kPadding = 64;  // readable bytes wanted after the body

  RequestReader();
  ~RequestReader();

  // The refusal, or nothing and the fields in `out`.
  std::optional<ApiError> read(EngineApi api, std::string_view padded_body, EngineRequest& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::simulator
