#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/arena.h"
#include "base/result.h"
#include "inference/plugin.h"
#include "inference/request.h"

namespace penstock::protocol {

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
  // Where each top-level "model" string literal stands, quotes included, ascending: a rewrite replaces all.
  std::span<const Splice> model_literals;
  bool streaming = false;
  std::optional<int64_t> max_output_tokens;
  std::string_view cache_salt;
  // The answer needs no reading (count_tokens): nothing is observed or restored in it.
  bool skip_response = false;
  // State that lives in one replica (previous_response_id, conversation): the id, or empty.
  std::string_view replica_state_id;
  // Token ids given by the client, or the estimate's pseudo-tokens made while walking the body.
  std::span<const TokenizedPrompt> prompts;
  bool prompts_are_estimated = false;
};

// One API family, a plugin of the `requestHandler.parsers` list.
class RequestParser : public virtual Plugin {
 public:
  // Path suffixes this parser claims, without leading slash; empty: the fallback for everything.
  virtual std::span<const std::string_view> path_suffixes() const = 0;
  virtual bool can_rewrite_model() const = 0;
  // Walks the body once, to its end. Errors are kBadRequest with the reference's text; trailing data and
  // broken arrays are errors. `path` has no query.
  virtual Result<ParsedBody> parse(std::string_view path, std::span<const HeaderField> headers,
                                   const PaddedBody& body, Arena& arena) const = 0;
};

// Finds the parser for a path: the longest matching suffix wins, the first registered on a tie; a suffix
// matches on a segment boundary. nullptr: none matches and there is no fallback.
class ParserTable {
 public:
  explicit ParserTable(std::span<const RequestParser* const> parsers);
  const RequestParser* find(std::string_view path) const;
  // True when a parser other than the fallback claims this path.
  bool claims(std::string_view path) const;

 private:
  struct Claim {
    std::string_view suffix;
    const RequestParser* parser;
  };
  std::vector<Claim> claims_;  // longest suffix first
  const RequestParser* fallback_ = nullptr;
};

// The parsers as registry lines.
std::span<const PluginDescriptor> parser_plugins();

}  // namespace penstock::protocol
