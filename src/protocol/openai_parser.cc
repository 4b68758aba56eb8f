#include "protocol/openai_parser.h"

#include <array>

#include "base/hash.h"
#include "protocol/body_members.h"
#include "protocol/chat_message.h"
#include "protocol/content_hash.h"
#include "protocol/prompt_estimate.h"
#include "protocol/token_ids.h"

namespace penstock::protocol {
namespace {

constexpr std::string_view kSuffixes[] = {
    "chat/completions",        "completions",        "embeddings",        "responses", "conversations",
    "chat/completions/render", "completions/render", "images/generations"};

ApiKind api_of(std::string_view path) {
  path = normal_path(path);
  const auto is = [&](std::string_view suffix) { return path_ends_with(path, suffix); };
  if (is("conversations")) return ApiKind::kConversations;
  if (is("responses")) return ApiKind::kResponses;
  if (is("chat/completions") || is("chat/completions/render")) return ApiKind::kChatCompletions;
  if (is("completions") || is("completions/render")) return ApiKind::kCompletions;
  if (is("embeddings")) return ApiKind::kEmbeddings;
  if (is("images/generations")) return ApiKind::kImagesGenerations;
  return ApiKind::kCompletions;
}

std::string_view error_text(ApiKind api) {
  switch (api) {
    case ApiKind::kChatCompletions:
      return "invalid chat completions request: must have valid messages field";
    case ApiKind::kResponses:
      return "invalid responses request: must have input field";
    case ApiKind::kConversations:
      return "invalid conversations request: must have items field";
    case ApiKind::kEmbeddings:
      return "invalid embeddings request: must have input field";
    case ApiKind::kImagesGenerations:
      return "invalid images generations request: must have prompt field";
    default:
      return "invalid completions request: must have prompt field";
  }
}

// Prompts of one body that are looked at; the estimate of one takes up to a hundred times its bytes.
constexpr size_t kMaxPrompts = 4096;

// A `prompt` (completions) or `input` (embeddings): a string, strings, token ids, or lists of token ids.
struct PromptValue {
  bool valid = false;
  bool is_text = false;
  std::span<const std::string_view> texts;               // is_text
  std::span<const std::span<const uint32_t>> token_ids;  // !is_text
  bool is_list = false;
  std::string_view literal;  // the value as sent
};

PromptValue take_prompt(JsonCursor& cursor, std::string_view body, Arena& arena) {
  PromptValue out;
  const size_t begin = cursor.offset();
  ArenaList<std::string_view> texts(arena);
  ArenaList<std::span<const uint32_t>> lists(arena);
  JsonString text;
  if (cursor.string(text)) {
    out.valid = !text.value.empty();
    out.is_text = true;
    texts.push_back(text.value);
  } else if (cursor.kind() == JsonKind::kArray) {
    out.is_list = true;
    ArenaList<uint32_t> ids(arena);
    bool others = false;
    for (bool more = cursor.enter_array(); more; more = cursor.next_element()) {
      uint32_t id = 0;
      if (cursor.u32(id)) {
        ids.push_back(id);
      } else if (cursor.string(text)) {
        if (texts.size() < kMaxPrompts) texts.push_back(text.value);
      } else if (cursor.kind() == JsonKind::kArray && lists.size() == kMaxPrompts) {
        if (!cursor.skip()) break;
      } else if (cursor.kind() == JsonKind::kArray) {
        const TokenIds inner = take_token_ids(cursor, arena);
        others = others || !inner.valid;
        lists.push_back(inner.ids);
      } else {
        others = true;
        if (!cursor.skip()) break;
      }
    }
    const bool pure = (ids.size() != 0) + (texts.size() != 0) + (lists.size() != 0) == 1;
    out.valid = pure && !others;
    out.is_text = texts.size() != 0;
    if (ids.size() != 0) lists.push_back(ids.view());
  } else {
    cursor.skip();
  }
  out.texts = texts.view();
  out.token_ids = lists.view();
  if (!cursor.failed()) out.literal = body.substr(begin, cursor.consumed() - begin);
  return out;
}

// One content block while its members are read.
struct Block {
  std::string_view type;
  std::string_view text;
  std::string_view image_url;
  std::string_view video_url;
  std::string_view audio_url;
  std::string_view audio_data;
  std::string_view audio_format;
};

// Reads the messages of a chat into a prompt stream. ok() false: a member has a type the API doesn't know.
class ChatReader {
 public:
  ChatReader(std::string_view body, std::span<const HeaderField> headers, Arena& arena)
      : body_(body), headers_(headers), stream_(arena) {}

  void take(JsonCursor& cursor) {
    ok_ = true;
    messages_ = 0;
    stream_.rewind({});
    if (cursor.kind() != JsonKind::kArray) {
      ok_ = false;
      cursor.skip();
      return;
    }
    for (bool more = cursor.enter_array(); more; more = cursor.next_element()) {
      ++messages_;
      take_message(cursor);
      if (cursor.failed()) return;
    }
  }
  bool ok() const { return ok_ && messages_ > 0; }
  const PromptStream& stream() const { return stream_; }

 private:
  void take_message(JsonCursor& cursor) {
    bool calls_ok = true;
    const auto content = [this](JsonCursor& at) { return take_content(at); };
    const auto other = [&](JsonCursor& at) {
      if (at.key() == "tool_calls") {
        calls_ok = take_kind_or_null(at, JsonKind::kArray);
      } else {
        at.skip();
      }
    };
    ok_ = protocol::take_message(cursor, stream_, content, other) && calls_ok && ok_;
  }

  bool take_content(JsonCursor& cursor) {
    JsonString text;
    if (cursor.string(text)) {
      stream_.text(text.value);
      return true;
    }
    if (cursor.kind() != JsonKind::kArray) return take_kind_or_null(cursor, JsonKind::kNull);
    bool ok = true;
    for (bool more = cursor.enter_array(); more; more = cursor.next_element()) {
      ok = take_block(cursor) && ok;
      if (cursor.failed()) return false;
    }
    return ok;
  }

  bool take_block(JsonCursor& cursor) {
    if (cursor.kind() != JsonKind::kObject) return take_kind_or_null(cursor, JsonKind::kNull);
    Block block;
    // One bit per member that is of a wrong type; the last of equal keys decides.
    enum : unsigned { kType = 1, kText = 2, kImage = 4, kVideo = 8, kAudioUrl = 16, kAudio = 32 };
    unsigned wrong = 0;
    const auto note = [&](unsigned bit, bool ok) { wrong = ok ? wrong & ~bit : wrong | bit; };
    const size_t begin = cursor.offset();
    for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
      const std::string_view key = cursor.key();
      if (key == "type") {
        note(kType, take_text_or_null(cursor, block.type));
      } else if (key == "text") {
        note(kText, take_text_or_null(cursor, block.text));
      } else if (key == "image_url") {
        note(kImage, take_texts(cursor, "url", block.image_url));
      } else if (key == "video_url") {
        note(kVideo, take_texts(cursor, "url", block.video_url));
      } else if (key == "audio_url") {
        note(kAudioUrl, take_texts(cursor, "url", block.audio_url));
      } else if (key == "input_audio") {
        note(kAudio, take_texts(cursor, "data", block.audio_data, "format", &block.audio_format));
      } else {
        cursor.skip();
      }
      if (cursor.failed()) return false;
    }
    emit(block, body_.substr(begin, cursor.consumed() - begin));
    return wrong == 0;
  }

  void emit(const Block& block, std::string_view literal) {
    if (block.type == "text") {
      stream_.text(block.text);
    } else if (block.type == "image_url") {
      stream_.media("image", xxh64(block.image_url), image_tokens(block.image_url));
    } else if (block.type == "video_url") {
      stream_.media("video", xxh64(block.video_url), video_tokens(headers_));
    } else if (block.type == "input_audio") {
      stream_.media("audio", xxh64_of_two(block.audio_data, block.audio_format),
                    audio_tokens(block.audio_data.size() + block.audio_format.size()));
    } else if (block.type == "audio_url") {
      stream_.media("audio", xxh64(block.audio_url), audio_tokens(block.audio_url.size()));
    } else {
      stream_.text(literal);
    }
  }

  // An object with one or two text members; null is as good as absent.
  static bool take_texts(JsonCursor& cursor, std::string_view name, std::string_view& out,
                         std::string_view second_name = {}, std::string_view* second = nullptr) {
    out = {};
    if (second != nullptr) *second = {};
    if (cursor.kind() != JsonKind::kObject) return take_kind_or_null(cursor, JsonKind::kNull);
    bool ok = true;
    for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
      if (cursor.key() == name) {
        ok = take_text_or_null(cursor, out);
      } else if (second != nullptr && cursor.key() == second_name) {
        ok = take_text_or_null(cursor, *second);
      } else {
        cursor.skip();
      }
      if (cursor.failed()) return false;
    }
    return ok;
  }

  std::string_view body_;
  std::span<const HeaderField> headers_;
  PromptStream stream_;
  bool ok_ = false;
  size_t messages_ = 0;
};

// Members that only have to be of one type, or null.
struct TypedMember {
  std::string_view key;
  JsonKind kind;
};
constexpr TypedMember kChatMembers[] = {
    {"documents", JsonKind::kArray},
    {"chat_template", JsonKind::kString},
    {"return_assistant_tokens_mask", JsonKind::kBool},
    {"continue_final_message", JsonKind::kBool},
    {"add_generation_prompt", JsonKind::kBool},
    {"chat_template_kwargs", JsonKind::kObject},
};
constexpr TypedMember kImageMembers[] = {
    {"n", JsonKind::kNumber},
    {"size", JsonKind::kString},
    {"num_inference_steps", JsonKind::kNumber},
};
constexpr TypedMember kConversationMembers[] = {{"metadata", JsonKind::kObject}};

std::span<const TypedMember> typed_members(ApiKind api) {
  switch (api) {
    case ApiKind::kChatCompletions:
      return kChatMembers;
    case ApiKind::kImagesGenerations:
      return kImageMembers;
    case ApiKind::kConversations:
      return kConversationMembers;
    default:
      return {};
  }
}

// `items` of a conversation: objects whose type and role are texts.
bool take_items(JsonCursor& cursor) {
  size_t count = 0;
  if (cursor.kind() != JsonKind::kArray) {
    cursor.skip();
    return false;
  }
  bool ok = true;
  for (bool more = cursor.enter_array(); more; more = cursor.next_element()) {
    ++count;
    if (cursor.kind() != JsonKind::kObject) {
      ok = take_kind_or_null(cursor, JsonKind::kNull) && ok;
    } else {
      for (bool inner = cursor.enter_object(); inner; inner = cursor.next_member()) {
        if (cursor.key() == "type" || cursor.key() == "role") {
          std::string_view ignored;
          ok = take_text_or_null(cursor, ignored) && ok;
        } else {
          cursor.skip();
        }
        if (cursor.failed()) return false;
      }
    }
    if (cursor.failed()) return false;
  }
  return ok && count > 0;
}

// Everything of one body but the common members.
class OpenAiBody {
 public:
  OpenAiBody(ApiKind api, const PaddedBody& body, std::span<const HeaderField> headers, Arena& arena)
      : api_(api), body_(body.view()), arena_(arena), chat_(body_, headers, arena) {}

  void take(JsonCursor& cursor) {
    const std::string_view key = cursor.key();
    switch (api_) {
      case ApiKind::kChatCompletions:
        if (key == "messages") return chat_.take(cursor);
        if (key == "tools") return take_raw(cursor, tools_, tools_kind_);
        if (key == "max_completion_tokens") return take_limit(cursor, 0);
        if (key == "max_tokens") return take_limit(cursor, 1);
        break;
      case ApiKind::kCompletions:
        if (key == "prompt") {
          prompt_ = take_prompt(cursor, body_, arena_);
          return;
        }
        if (key == "prompt_embeds") {
          has_embeds_ = cursor.kind() != JsonKind::kNull;
          cursor.skip();
          return;
        }
        if (key == "max_tokens") return take_limit(cursor, 0);
        break;
      case ApiKind::kEmbeddings:
        if (key == "input") {
          prompt_ = take_prompt(cursor, body_, arena_);
          return;
        }
        break;
      case ApiKind::kResponses:
        if (key == "input") return take_raw(cursor, input_, input_kind_);
        if (key == "instructions") return take_raw(cursor, instructions_, instructions_kind_);
        if (key == "tools") return take_raw(cursor, tools_, tools_kind_);
        if (key == "max_output_tokens") return take_limit(cursor, 0);
        if (key == "previous_response_id") return take_state(cursor, previous_response_);
        if (key == "conversation") return take_state(cursor, conversation_);
        if (key == "store") {
          std::string_view kept;
          cursor.raw(kept);
          is_kept_ = kept != "false";
          return;
        }
        break;
      case ApiKind::kConversations:
        if (key == "items") {
          const size_t begin = cursor.offset();
          required_ok_ = take_items(cursor);
          if (!cursor.failed()) input_ = body_.substr(begin, cursor.consumed() - begin);
          return;
        }
        break;
      default:  // images
        if (key == "prompt") {
          std::string_view prompt;
          required_ok_ = take_text_or_null(cursor, prompt) && !prompt.empty();
          return;
        }
        break;
    }
    const std::span<const TypedMember> members = typed_members(api_);
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i].key != key) continue;
      const bool ok = take_kind_or_null(cursor, members[i].kind);
      wrong_types_ = ok ? wrong_types_ & ~(1U << i) : wrong_types_ | (1U << i);
      return;
    }
    cursor.skip();
  }

  bool valid() const {
    if (wrong_types_ != 0) return false;
    switch (api_) {
      case ApiKind::kChatCompletions:
        return chat_.ok() && (tools_kind_ == JsonKind::kArray || tools_kind_ == JsonKind::kNull);
      case ApiKind::kCompletions:
        return prompt_.valid || (has_embeds_ && (prompt_.literal.empty() || prompt_.literal == "null"));
      case ApiKind::kEmbeddings:
        return prompt_.valid;
      case ApiKind::kResponses:
        return input_kind_ != JsonKind::kNull;
      default:
        return required_ok_;
    }
  }

  void fill(ParsedBody& out) {
    out.max_output_tokens = limits_[0] ? limits_[0] : limits_[1];
    out.previous_response_id = previous_response_;
    out.conversation_id = conversation_;
    out.stores_response = api_ == ApiKind::kResponses && is_kept_;
    if (!prompt_.is_text && !prompt_.token_ids.empty()) {
      std::span<TokenizedPrompt> prompts = arena_.make_filled<TokenizedPrompt>(prompt_.token_ids.size());
      for (size_t i = 0; i < prompts.size(); ++i) prompts[i].token_ids = prompt_.token_ids[i];
      out.prompts = prompts;
      return;
    }
    estimate(out);
    out.prompts_are_estimated = !out.prompts.empty();
  }

 private:
  static void take_raw(JsonCursor& cursor, std::string_view& out, JsonKind& kind) {
    kind = cursor.kind();
    cursor.raw(out);
  }
  void take_limit(JsonCursor& cursor, size_t rank) { limits_[rank] = take_token_limit(cursor); }

  // An id, or an object with one.
  static void take_state(JsonCursor& cursor, std::string_view& out) {
    out = {};
    if (cursor.kind() != JsonKind::kObject) {
      take_text_or_null(cursor, out);
      return;
    }
    for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
      if (cursor.key() == "id") {
        take_text_or_null(cursor, out);
      } else {
        cursor.skip();
      }
      if (cursor.failed()) return;
    }
  }

  void estimate(ParsedBody& out) {
    if (api_ == ApiKind::kImagesGenerations || (api_ == ApiKind::kCompletions && !prompt_.valid)) return;
    if (api_ == ApiKind::kCompletions) {
      std::span<TokenizedPrompt> prompts = arena_.make_filled<TokenizedPrompt>(prompt_.texts.size());
      for (size_t i = 0; i < prompts.size(); ++i) {
        PromptStream stream(arena_);
        stream.text(prompt_.texts[i]);
        const PromptStream* const parts[] = {&stream};
        prompts[i] = PromptStream::assemble(parts, arena_);
      }
      out.prompts = prompts;
      return;
    }
    PromptStream head(arena_);
    std::span<TokenizedPrompt> prompts = arena_.make_filled<TokenizedPrompt>(1);
    if (api_ == ApiKind::kChatCompletions) {
      if (tools_.starts_with('[') && has_elements(tools_)) head.text(tools_);
      const PromptStream* const parts[] = {&head, &chat_.stream()};
      prompts[0] = PromptStream::assemble(parts, arena_);
    } else {
      write_document(head);
      const PromptStream* const parts[] = {&head};
      prompts[0] = PromptStream::assemble(parts, arena_);
    }
    out.prompts = prompts;
  }

  // The JSON text that stands for the prompt where the API has no plain text.
  void write_document(PromptStream& stream) {
    if (api_ == ApiKind::kConversations) return stream.text(input_);
    if (api_ == ApiKind::kEmbeddings) {
      stream.text(prompt_.is_list ? R"({"Raw":"","Strings":)" : R"({"Raw":)");
      stream.text(prompt_.literal);
      return stream.text(prompt_.is_list ? R"(,"TokenIDs":null})" : R"(,"Strings":null,"TokenIDs":null})");
    }
    std::string_view separator = "[{\"";
    const auto part = [&](std::string_view name, std::string_view value, JsonKind kind) {
      if (kind == JsonKind::kNull) return;
      stream.text(separator);
      stream.text(name);
      stream.text("\":");
      stream.text(value);
      separator = "},{\"";
    };
    part("instructions", instructions_, instructions_kind_);
    part("tools", tools_, tools_kind_);
    part("input", input_, input_kind_);
    stream.text("}]");
  }

  ApiKind api_;
  std::string_view body_;
  Arena& arena_;
  ChatReader chat_;
  PromptValue prompt_;
  bool has_embeds_ = false;
  std::string_view tools_;
  JsonKind tools_kind_ = JsonKind::kNull;
  std::string_view input_;
  JsonKind input_kind_ = JsonKind::kNull;
  std::string_view instructions_;
  JsonKind instructions_kind_ = JsonKind::kNull;
  std::string_view previous_response_;
  std::string_view conversation_;
  bool is_kept_ = true;
  bool required_ok_ = false;
  unsigned wrong_types_ = 0;
  std::array<std::optional<int64_t>, 2> limits_;
};

}  // namespace

std::span<const std::string_view> OpenAiParser::path_suffixes() const {
  return kSuffixes;
}

Result<ParsedBody> OpenAiParser::parse(std::string_view path, std::span<const HeaderField> headers,
                                       const PaddedBody& body, Arena& arena) const {
  ParsedBody out;
  out.api = api_of(path);
  CommonMembers common(arena);
  OpenAiBody members(out.api, body, headers, arena);
  const Status status =
      walk_object(body, arena, common,
                  "error unmarshaling request bodyMap: ", [&](JsonCursor& cursor) { members.take(cursor); });
  if (!status.ok()) return status.error();
  if (!members.valid() || !common.salt_is_text()) return bad_request(std::string(error_text(out.api)));
  common.fill(out);
  members.fill(out);
  return out;
}

}  // namespace penstock::protocol
