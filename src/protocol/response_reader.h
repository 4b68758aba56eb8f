#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inference/request.h"

namespace penstock::protocol {

// Token counts of one answer, merged over everything seen so far: a later non-zero count replaces an
// earlier one, so usage that is repeated with each chunk counts once.
struct Usage {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  uint64_t total_tokens = 0;
  std::optional<uint64_t> cached_tokens;
};

// Reads one answer while it passes, in whatever pieces it comes, and restores the client's model name in
// it. Never holds back more than an unfinished JSON string or SSE line that may contain the name (bounded;
// beyond the bound the bytes pass unchanged). A body it can't read passes unchanged: reading never harms
// the answer. One per request at a time, on the request's loop; start() makes it ready for another, with the
// memory it has.
//
// A model name is restored where it is the value of a "model" member at the top of a JSON value, or of its
// "response" or "message" object, in unary JSON bodies and in the data of events, however split, spaced or
// escaped. Usage is read from "usage" in the same places (OpenAI, Anthropic and vLLM names) and from
// SGLang's "meta_info". Lines that are bare JSON are read like data lines. Answers of the gRPC APIs are read
// message by message (grpc_response.h); nothing in them is ever changed.
class ResponseReader {
 public:
  struct Options {
    ApiKind api = ApiKind::kNone;
    // Model-name restore: both non-empty and different turns it on.
    std::string_view served_model;
    std::string_view client_model;
    size_t max_usage_bytes = 16 * 1024;  // of one `usage` object; larger ones are not read
    // The answer's id is wanted (response_id()), of at most so many bytes; 0: it is not.
    size_t max_id_bytes = 0;
  };
  ResponseReader();
  explicit ResponseReader(const Options& options) : ResponseReader() { start(options); }
  ~ResponseReader();
  ResponseReader(const ResponseReader&) = delete;
  ResponseReader& operator=(const ResponseReader&) = delete;

  // Another answer. Views given out before are invalid.
  void start(const Options& options);
  // Once, before the first byte. content_encoding other than "" or "identity" turns reading off.
  void begin(int status, std::string_view content_type, std::string_view content_encoding);
  bool is_event_stream() const;
  // True when bytes may be changed or held back: the answer then has no content-length.
  bool rewrites() const;

  // Reads the next piece. Appends the pieces to send to `out`: views into `piece` or into this reader,
  // valid until the next call. Without rewriting, `out` gets `piece` itself.
  void feed(std::string_view piece, std::vector<std::string_view>& out);
  // The end: what was held back.
  void finish(std::vector<std::string_view>& out);

  const Usage* usage() const;  // nullptr: none seen
  // The first "id" in the places above, once it has passed; empty: none was seen, or none is wanted.
  std::string_view response_id() const;
  // Events that carried content ("data:" lines other than [DONE]); 0 for unary answers.
  uint64_t events() const;
  // True once the first piece that carries model output has passed (SSE: the first event with content;
  // unary: the first body byte).
  bool first_token_seen() const;
  // True once the engine reported a failure inside a stream ("error" member or event).
  bool error_seen() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::protocol
