#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/arena.h"
#include "base/result.h"
#include "inference/plugin.h"
#include "inference/request.h"

namespace penstock::protocol {

// How bodies are read (all JSON parsers alike):
// * One pass over the bytes to their very end checks the grammar of RFC 8259; what stands behind the value,
//   a broken array, a control character in a string, a byte order mark or nesting deeper than 100 levels is
//   kBadRequest.
// * Of equal keys the last one counts, as in the engines. Keys compare exactly, after their escapes.
// * Strings are bytes. Text that isn't UTF-8 and lone surrogate escapes are accepted and forwarded byte for
//   byte: the engine judges them. For hashing, raw bytes stand as they are and an escape that is no
//   character becomes U+FFFD.
// * Unknown keys, roles, block types and engine options are nobody's business here.

// A request body in one piece, followed by at least kBodyPadding readable bytes (simdjson reads ahead).
// The one copy of the body; bodies themselves are never changed, edits are splices made while sending.
inline constexpr size_t kBodyPadding = 64;
struct PaddedBody {
  const char* data = nullptr;
  size_t size = 0;
  std::string_view view() const { return {data, size}; }
};

// A stretch of the body to be replaced while it is sent.
struct Splice {
  size_t offset = 0;
  size_t length = 0;
};

// What a parser found. Views point into the body or the arena.
struct ParsedBody {
  ApiKind api = ApiKind::kNone;
  std::string_view model;  // the last top-level "model"; empty when absent or not a string
  // Where the value of each top-level "model" stands (a string literal with its quotes, or whatever else
  // the client wrote there), ascending: a rewrite replaces all of them.
  std::span<const Splice> model_literals;
  // The body is a JSON object, so rewrite_model() works on it.
  bool rewritable = false;
  size_t model_insert_offset = 0;   // just behind the opening brace: where a missing "model" goes
  bool model_insert_comma = false;  // the object has other members
  bool streaming = false;
  std::optional<int64_t> max_output_tokens;
  std::string_view cache_salt;
  // The answer needs no reading (count_tokens): nothing is observed or restored in it.
  bool skip_response = false;
  // State that lives in one replica, and that the request goes on from: ids, or empty.
  std::string_view previous_response_id;
  std::string_view conversation_id;
  // The engine is to keep its answer, so that later requests may name it.
  bool stores_response = false;
  // Token ids given by the client, or the estimate's pseudo-tokens made while walking the body. Empty for
  // bodies that cannot be estimated.
  std::span<const TokenizedPrompt> prompts;
  bool prompts_are_estimated = false;
};

// One API family, a plugin of the `requestHandler.parsers` list.
class RequestParser : public virtual Plugin {
 public:
  // Path suffixes this parser claims, without leading slash; empty: the fallback for everything. One that
  // begins with a dot matches within a segment: ".PredictionService/RawPredict".
  virtual std::span<const std::string_view> path_suffixes() const = 0;
  virtual bool can_rewrite_model() const = 0;
  // Its requests are gRPC: the engines of a pool that it serves speak HTTP/2.
  virtual bool needs_http2() const { return false; }
  // Walks the body once, to its end. Errors are kBadRequest with the reference's text; trailing data and
  // broken arrays are errors. `path` has no query.
  virtual Result<ParsedBody> parse(std::string_view path, std::span<const HeaderField> headers,
                                   const PaddedBody& body, Arena& arena) const = 0;
};

// The body with another model name, as pieces to be sent one after the other. `size` is their sum.
struct RewrittenBody {
  std::span<const std::string_view> pieces;
  size_t size = 0;
};
// Replaces every model literal by the quoted `target`, or inserts a "model" member where there is none;
// all other bytes stay. Pieces point into the body and the arena. REQUIRES: parsed.rewritable.
RewrittenBody rewrite_model(const PaddedBody& body, const ParsedBody& parsed, std::string_view target,
                            Arena& arena);

// The last top-level "model" of a body that no parser reads (rerank, tokenize, ...), for routing by model
// name: empty when the body is no JSON object or has no such string.
std::string_view find_model(const PaddedBody& body, Arena& arena);

// Finds the parser for a path: the longest matching suffix wins, the first registered on a tie; a suffix
// matches on a segment boundary; one trailing slash is ignored. nullptr: none matches and there is no
// fallback. A parser without suffixes is the fallback and ends the list: those after it are not used.
class ParserTable {
 public:
  explicit ParserTable(std::span<const RequestParser* const> parsers);
  const RequestParser* find(std::string_view path) const;
  // True when a parser other than the fallback claims this path.
  bool claims(std::string_view path) const;
  // One that does, nullptr: none.
  const RequestParser* needs_http2() const { return needs_http2_; }

 private:
  struct Claim {
    std::string_view suffix;
    const RequestParser* parser;
  };
  std::vector<Claim> claims_;  // longest suffix first
  const RequestParser* fallback_ = nullptr;
  const RequestParser* needs_http2_ = nullptr;
};

// The parsers as registry lines.
std::span<const PluginDescriptor> parser_plugins();

}  // namespace penstock::protocol
