#include "protocol/parser.h"

#include <algorithm>

#include "base/strings.h"
#include "protocol/anthropic_parser.h"
#include "protocol/body_members.h"
#include "protocol/openai_parser.h"
#include "protocol/passthrough_parser.h"
#include "protocol/sglanghttp_parser.h"
#include "protocol/vertexai_parser.h"
#include "protocol/vllmgrpc_parser.h"
#include "protocol/vllmhttp_parser.h"

namespace penstock::protocol {

RewrittenBody rewrite_model(const PaddedBody& body, const ParsedBody& parsed, std::string_view target,
                            Arena& arena) {
  const std::string_view text = body.view();
  const std::string_view quoted = arena.copy(json_quote(target));
  if (parsed.model_literals.empty()) {
    std::span<std::string_view> pieces = arena.make_filled<std::string_view>(5);
    pieces[0] = text.substr(0, parsed.model_insert_offset);
    pieces[1] = "\"model\":";
    pieces[2] = quoted;
    pieces[3] = parsed.model_insert_comma ? "," : "";
    pieces[4] = text.substr(parsed.model_insert_offset);
    size_t size = 0;
    for (const std::string_view piece : pieces) size += piece.size();
    return {pieces, size};
  }
  std::span<std::string_view> pieces =
      arena.make_filled<std::string_view>(2 * parsed.model_literals.size() + 1);
  size_t at = 0;
  size_t size = body.size;
  size_t count = 0;
  for (const Splice& literal : parsed.model_literals) {
    pieces[count++] = text.substr(at, literal.offset - at);
    pieces[count++] = quoted;
    at = literal.offset + literal.length;
    size += quoted.size();
    size -= literal.length;
  }
  pieces[count] = text.substr(at);
  return {pieces, size};
}

std::string_view find_model(const PaddedBody& body, Arena& arena) {
  CommonMembers common(arena);
  if (!walk_object(body, arena, common, "", [](JsonCursor& cursor) { cursor.skip(); }).ok()) return {};
  ParsedBody parsed;
  common.fill(parsed);
  return parsed.model;
}

ParserTable::ParserTable(std::span<const RequestParser* const> parsers) {
  for (const RequestParser* parser : parsers) {
    const std::span<const std::string_view> suffixes = parser->path_suffixes();
    if (suffixes.empty()) {
      fallback_ = parser;
      break;
    }
    for (const std::string_view suffix : suffixes) {
      const auto shorter = std::find_if(claims_.begin(), claims_.end(), [&](const Claim& claim) {
        return claim.suffix.size() < suffix.size();
      });
      claims_.insert(shorter, {suffix, parser});
    }
    if (parser->needs_http2() && needs_http2_ == nullptr) needs_http2_ = parser;
  }
}

const RequestParser* ParserTable::find(std::string_view path) const {
  path = normal_path(path);
  for (const Claim& claim : claims_) {
    if (path_ends_with(path, claim.suffix)) return claim.parser;
  }
  return fallback_;
}

bool ParserTable::claims(std::string_view path) const {
  path = normal_path(path);
  return std::any_of(claims_.begin(), claims_.end(),
                     [&](const Claim& claim) { return path_ends_with(path, claim.suffix); });
}

namespace {

template <typename Parser>
Result<std::unique_ptr<Plugin>> create(const PluginFactoryContext& context) {
  const Status status = config::decode_params(context.parameters, context.path, [](config::Binder&) {});
  if (!status.ok()) return status.error();
  return std::unique_ptr<Plugin>(std::make_unique<Parser>());
}

constexpr PluginDescriptor kParsers[] = {
    {.type = OpenAiParser::kType,
     .summary = "Reads the OpenAI APIs: chat, completions, embeddings, responses, conversations, images.",
     .create = create<OpenAiParser>},
    {.type = AnthropicParser::kType,
     .summary = "Reads the Anthropic Messages API and its token counting.",
     .create = create<AnthropicParser>},
    {.type = VllmHttpParser::kType,
     .summary = "Reads vLLM's token-in token-out API, /inference/v1/generate.",
     .create = create<VllmHttpParser>},
    {.type = SglangHttpParser::kType,
     .summary = "Reads SGLang's /generate with token ids.",
     .create = create<SglangHttpParser>},
    {.type = VllmGrpcParser::kType,
     .summary = "Reads vLLM's gRPC engine service: Generate and Embed.",
     .create = create<VllmGrpcParser>},
    {.type = VertexAiParser::kType,
     .summary = "Reads Vertex AI's PredictionService: OpenAI bodies within gRPC.",
     .create = create<VertexAiParser>},
    {.type = PassthroughParser::kType,
     .summary = "Takes every path no other parser claims and forwards the body unread.",
     .create = create<PassthroughParser>},
};

}  // namespace

std::span<const PluginDescriptor> parser_plugins() {
  return kParsers;
}

}  // namespace penstock::protocol
