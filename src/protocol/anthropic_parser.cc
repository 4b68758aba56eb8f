#include "protocol/anthropic_parser.h"

#include "base/hash.h"
#include "protocol/body_members.h"
#include "protocol/chat_message.h"
#include "protocol/content_hash.h"
#include "protocol/prompt_estimate.h"

namespace penstock::protocol {
namespace {

constexpr std::string_view kSuffixes[] = {"messages", "messages/count_tokens"};
// Claude Code puts a line that differs in every call in front of its system text.
constexpr std::string_view kBillingPrefix = "x-anthropic-billing-header";

struct ImageSource {
  std::string_view type;
  std::string_view media_type;
  std::string_view data;
  std::string_view url;

  bool present() const { return !data.empty() || !url.empty(); }
};

struct Block {
  std::string_view type;
  std::string_view text;
  std::string_view thinking;
  std::string_view id;
  std::string_view name;
  std::string_view input;  // JSON text as sent
  ImageSource source;
};

// Reads message or system content into a stream. Everything returns false for a type the API doesn't know.
class ContentReader {
 public:
  ContentReader(std::string_view body, Arena& arena) : body_(body), arena_(arena) {}

  // A string, or blocks. `drop_billing`: see kBillingPrefix.
  bool take(JsonCursor& cursor, PromptStream& stream, bool drop_billing) {
    JsonString text;
    if (cursor.string(text)) {
      stream.text(text.value);
      return true;
    }
    if (cursor.kind() != JsonKind::kArray) return take_kind_or_null(cursor, JsonKind::kNull);
    bool ok = true;
    for (bool more = cursor.enter_array(); more; more = cursor.next_element()) {
      ok = take_block(cursor, stream, drop_billing) && ok;
      if (cursor.failed()) return false;
    }
    return ok;
  }

 private:
  bool take_block(JsonCursor& cursor, PromptStream& stream, bool drop_billing) {
    if (cursor.kind() != JsonKind::kObject) return take_kind_or_null(cursor, JsonKind::kNull);
    Block block;
    enum : unsigned { kType = 1, kText = 2, kThinking = 4, kId = 8, kName = 16, kSource = 32, kContent = 64 };
    unsigned wrong = 0;
    const auto note = [&](unsigned bit, bool ok) { wrong = ok ? wrong & ~bit : wrong | bit; };
    // What a tool_result holds goes straight into the stream, and out again if the block is something else.
    const PromptStream::Mark before = stream.mark();
    const size_t begin = cursor.offset();
    for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
      const std::string_view key = cursor.key();
      if (key == "type") {
        note(kType, take_text_or_null(cursor, block.type));
      } else if (key == "text") {
        note(kText, take_text_or_null(cursor, block.text));
      } else if (key == "thinking") {
        note(kThinking, take_text_or_null(cursor, block.thinking));
      } else if (key == "id") {
        note(kId, take_text_or_null(cursor, block.id));
      } else if (key == "name") {
        note(kName, take_text_or_null(cursor, block.name));
      } else if (key == "input") {
        cursor.raw(block.input);
      } else if (key == "source") {
        note(kSource, take_source(cursor, block.source));
      } else if (key == "content") {
        stream.rewind(before);
        note(kContent, take_tool_result(cursor, stream));
      } else {
        cursor.skip();
      }
      if (cursor.failed()) return false;
    }
    if (block.type == "tool_result") return wrong == 0;
    stream.rewind(before);
    emit(block, body_.substr(begin, cursor.consumed() - begin), stream, drop_billing);
    return wrong == 0;
  }

  static void emit(const Block& block, std::string_view literal, PromptStream& stream, bool drop_billing) {
    if (block.type == "text") {
      if (!drop_billing || !block.text.starts_with(kBillingPrefix)) stream.text(block.text);
    } else if (block.type == "thinking") {
      stream.text(block.thinking);
    } else if (block.type == "tool_use") {
      stream.text(block.id);
      stream.text(block.name);
      stream.text(block.input);
    } else if (block.type == "image") {
      emit_image(block.source, stream);
    } else {
      stream.text(literal);
    }
  }

  // An inline picture hashes like the data URL that the chat API would carry.
  static void emit_image(const ImageSource& source, PromptStream& stream) {
    if (source.data.empty()) {
      stream.media("image", xxh64(source.url), image_tokens(source.url));
      return;
    }
    Xxh64 hash;
    hash.update("data:");
    hash.update(source.media_type);
    hash.update(";base64,");
    hash.update(source.data);
    stream.media("image", hash.digest(), image_tokens_base64(source.data));
  }

  static bool take_source(JsonCursor& cursor, ImageSource& out) {
    out = {};
    if (cursor.kind() != JsonKind::kObject) return take_kind_or_null(cursor, JsonKind::kNull);
    bool ok = true;
    for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
      const std::string_view key = cursor.key();
      if (key == "type") {
        ok = take_text_or_null(cursor, out.type) && ok;
      } else if (key == "media_type") {
        ok = take_text_or_null(cursor, out.media_type) && ok;
      } else if (key == "data") {
        ok = take_text_or_null(cursor, out.data) && ok;
      } else if (key == "url") {
        ok = take_text_or_null(cursor, out.url) && ok;
      } else {
        cursor.skip();
      }
      if (cursor.failed()) return false;
    }
    return ok;
  }

  // Its texts joined by line ends, then its images.
  bool take_tool_result(JsonCursor& cursor, PromptStream& stream) {
    JsonString text;
    if (cursor.string(text)) {
      stream.text(text.value);
      return true;
    }
    if (cursor.kind() != JsonKind::kArray) return take_kind_or_null(cursor, JsonKind::kNull);
    ArenaList<ImageSource> images(arena_);
    bool ok = true;
    bool first = true;
    for (bool more = cursor.enter_array(); more; more = cursor.next_element()) {
      if (cursor.kind() != JsonKind::kObject) {
        ok = take_kind_or_null(cursor, JsonKind::kNull) && ok;
      } else {
        std::string_view type;
        std::string_view block_text;
        ImageSource source;
        for (bool inner = cursor.enter_object(); inner; inner = cursor.next_member()) {
          if (cursor.key() == "type") {
            ok = take_text_or_null(cursor, type) && ok;
          } else if (cursor.key() == "text") {
            ok = take_text_or_null(cursor, block_text) && ok;
          } else if (cursor.key() == "source") {
            ok = take_source(cursor, source) && ok;
          } else {
            cursor.skip();
          }
          if (cursor.failed()) return false;
        }
        if (type == "text") {
          if (!first) stream.text("\n");
          first = false;
          stream.text(block_text);
        } else if (type == "image" && source.present()) {
          images.push_back(source);
        }
      }
      if (cursor.failed()) return false;
    }
    for (const ImageSource& image : images.view()) emit_image(image, stream);
    return ok;
  }

  std::string_view body_;
  Arena& arena_;
};

class MessagesReader {
 public:
  MessagesReader(std::string_view body, Arena& arena) : content_(body, arena), stream_(arena) {}

  void take(JsonCursor& cursor) {
    ok_ = true;
    count_ = 0;
    stream_.rewind({});
    if (cursor.kind() != JsonKind::kArray) {
      ok_ = take_kind_or_null(cursor, JsonKind::kNull);
      return;
    }
    const auto content = [this](JsonCursor& at) { return content_.take(at, stream_, false); };
    const auto other = [](JsonCursor& at) { at.skip(); };
    for (bool more = cursor.enter_array(); more; more = cursor.next_element()) {
      ++count_;
      ok_ = take_message(cursor, stream_, content, other) && ok_;
      if (cursor.failed()) return;
    }
  }
  bool ok() const { return ok_; }
  size_t count() const { return count_; }
  const PromptStream& stream() const { return stream_; }
  ContentReader& content() { return content_; }

 private:
  ContentReader content_;
  PromptStream stream_;
  bool ok_ = true;
  size_t count_ = 0;
};

ParsedBody parse_count_tokens(const PaddedBody& body, Arena& arena) {
  ParsedBody out;
  out.api = ApiKind::kCountTokens;
  out.skip_response = true;
  CommonMembers common(arena);
  const Status status = walk_object(body, arena, common, "", [](JsonCursor& cursor) { cursor.skip(); });
  if (status.ok()) common.fill(out);
  out.streaming = false;
  return out;
}

}  // namespace

std::span<const std::string_view> AnthropicParser::path_suffixes() const {
  return kSuffixes;
}

Result<ParsedBody> AnthropicParser::parse(std::string_view path, std::span<const HeaderField>,
                                          const PaddedBody& body, Arena& arena) const {
  const std::string_view normal = normal_path(path);
  if (path_ends_with(normal, kSuffixes[1])) return parse_count_tokens(body, arena);
  if (!path_ends_with(normal, kSuffixes[0]))
    return bad_request("unsupported API endpoint: " + std::string(path));

  ParsedBody out;
  out.api = ApiKind::kMessages;
  CommonMembers common(arena);
  MessagesReader messages(body.view(), arena);
  PromptStream system(arena);
  bool system_ok = true;
  std::string_view tools;
  bool tools_ok = true;
  const Status status =
      walk_object(body, arena, common, "error unmarshaling request body: ", [&](JsonCursor& cursor) {
        const std::string_view key = cursor.key();
        if (key == "messages") {
          messages.take(cursor);
        } else if (key == "system") {
          system.rewind({});
          system_ok = messages.content().take(cursor, system, true);
        } else if (key == "tools") {
          const JsonKind kind = cursor.kind();
          tools_ok = kind == JsonKind::kArray || kind == JsonKind::kNull;
          cursor.raw(tools);
        } else if (key == "max_tokens") {
          out.max_output_tokens = take_token_limit(cursor);
        } else {
          cursor.skip();
        }
      });
  if (!status.ok()) return status.error();
  const char* wrong = !messages.ok()           ? "messages"
                      : !system_ok             ? "system"
                      : !tools_ok              ? "tools"
                      : !common.salt_is_text() ? "cache_salt"
                                               : nullptr;
  if (wrong != nullptr)
    return bad_request(std::string("error parsing messages request: ") + wrong + " has an unknown type");
  if (messages.count() == 0) return bad_request("invalid messages request: must have at least one message");

  common.fill(out);
  PromptStream head(arena);
  if (tools.starts_with('[') && has_elements(tools)) head.text(tools);
  const PromptStream* const parts[] = {&head, &system, &messages.stream()};
  std::span<TokenizedPrompt> prompts = arena.make_filled<TokenizedPrompt>(1);
  prompts[0] = PromptStream::assemble(parts, arena);
  out.prompts = prompts;
  out.prompts_are_estimated = true;
  return out;
}

}  // namespace penstock::protocol
