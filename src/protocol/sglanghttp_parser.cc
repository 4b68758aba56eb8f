#include "protocol/sglanghttp_parser.h"

#include "protocol/body_members.h"
#include "protocol/token_ids.h"

namespace penstock::protocol {
namespace {

constexpr std::string_view kSuffixes[] = {"generate"};

}  // namespace

std::span<const std::string_view> SglangHttpParser::path_suffixes() const {
  return kSuffixes;
}

Result<ParsedBody> SglangHttpParser::parse(std::string_view path, std::span<const HeaderField>,
                                           const PaddedBody& body, Arena& arena) const {
  const std::string_view normal = normal_path(path);
  if (normal != "/generate" && normal != "generate")
    return bad_request("unsupported path: " + std::string(path));

  JsonCursor cursor(body.view(), &arena);
  ParsedBody out;
  TokenIds tokens;
  bool has_ids = false;
  bool salt_ok = true;
  bool stream_ok = true;
  const bool is_object = cursor.kind() == JsonKind::kObject;
  if (!is_object) cursor.skip();
  for (bool more = is_object && cursor.enter_object(); more; more = cursor.next_member()) {
    const std::string_view key = cursor.key();
    if (key == "input_ids") {
      has_ids = cursor.kind() != JsonKind::kNull;
      tokens = take_token_ids(cursor, arena);
    } else if (key == "extra_key") {
      salt_ok = take_text_or_null(cursor, out.cache_salt);
    } else if (key == "stream") {
      out.streaming = false;
      stream_ok = cursor.boolean(out.streaming) || take_kind_or_null(cursor, JsonKind::kNull);
    } else if (key == "sampling_params") {
      take_token_limit_of(cursor, "max_new_tokens", out.max_output_tokens);
    } else {
      cursor.skip();
    }
    if (cursor.failed()) break;
  }
  if (!cursor.finish()) return bad_request("error unmarshaling request body: " + cursor.error_text());
  if (!has_ids) return bad_request("invalid generate request: input_ids must be provided");
  if (!tokens.valid)
    return bad_request("invalid generate request: input_ids must be an array of uint32 integers");
  if (tokens.ids.empty()) return bad_request("invalid generate request: input_ids cannot be empty");
  if (!salt_ok) return bad_request("unsupported generate request: extra_key must be a string");
  if (!stream_ok) return bad_request("invalid generate request: stream must be a bool");

  out.api = ApiKind::kSglangGenerate;
  std::span<TokenizedPrompt> prompts = arena.make_filled<TokenizedPrompt>(1);
  prompts[0] = {tokens.ids, {}};
  out.prompts = prompts;
  return out;
}

}  // namespace penstock::protocol
