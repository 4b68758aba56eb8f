#include "protocol/response_reader.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/random.h"
#include "base/source_path_testing.h"
#include "protocol/testing.h"

namespace penstock::protocol {
namespace {

constexpr std::string_view kSse = "text/event-stream; charset=utf-8";
constexpr std::string_view kJson = "application/json";

struct Read {
  std::string text;
  std::optional<Usage> usage;
  uint64_t events = 0;
  bool first_token = false;
  bool error = false;
  std::string id;
};

// `next_size` says how long the next piece is. Pieces are copies that vanish after each call.
template <typename NextSize>
Read read_in_pieces(std::string_view text, const ResponseReader::Options& options, std::string_view type,
                    NextSize&& next_size) {
  ResponseReader reader(options);
  reader.begin(200, type, "");
  Read out;
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const auto piece = std::make_unique<std::string>(text.substr(0, next_size()));
    text.remove_prefix(piece->size());
    pieces.clear();
    reader.feed(*piece, pieces);
    for (const std::string_view part : pieces) out.text += part;
  }
  pieces.clear();
  reader.finish(pieces);
  for (const std::string_view part : pieces) out.text += part;
  if (reader.usage() != nullptr) out.usage = *reader.usage();
  out.events = reader.events();
  out.first_token = reader.first_token_seen();
  out.error = reader.error_seen();
  out.id = reader.response_id();
  return out;
}

Read read_whole(std::string_view text, const ResponseReader::Options& options, std::string_view type) {
  return read_in_pieces(text, options, type, [] { return std::string_view::npos; });
}

// Reads the text whole, split in two at every byte, and byte by byte; all must give the same.
Read read_every_way(std::string_view text, const ResponseReader::Options& options, std::string_view type) {
  const Read whole = read_whole(text, options, type);
  const auto same = [&](const Read& other, const std::string& how) {
    EXPECT_EQ(other.text, whole.text) << how;
    EXPECT_EQ(other.events, whole.events) << how;
    EXPECT_EQ(other.first_token, whole.first_token) << how;
    EXPECT_EQ(other.id, whole.id) << how;
    EXPECT_EQ(other.usage.has_value(), whole.usage.has_value()) << how;
    if (!other.usage || !whole.usage) return;
    EXPECT_EQ(other.usage->prompt_tokens, whole.usage->prompt_tokens) << how;
    EXPECT_EQ(other.usage->completion_tokens, whole.usage->completion_tokens) << how;
    EXPECT_EQ(other.usage->total_tokens, whole.usage->total_tokens) << how;
    EXPECT_EQ(other.usage->cached_tokens, whole.usage->cached_tokens) << how;
  };
  for (size_t split = 1; split < text.size(); ++split) {
    bool first = true;
    same(read_in_pieces(text, options, type,
                        [&] { return std::exchange(first, false) ? split : std::string_view::npos; }),
         "split at " + std::to_string(split));
    if (testing::Test::HasFailure()) return whole;
  }
  same(read_in_pieces(text, options, type, [] { return size_t{1}; }), "byte by byte");
  return whole;
}

ResponseReader::Options plain(ApiKind api) {
  return {.api = api};
}
ResponseReader::Options restoring(ApiKind api, std::string_view served, std::string_view client) {
  return {.api = api, .served_model = served, .client_model = client};
}

void expect_usage(const Read& read, uint64_t prompt, uint64_t completion, uint64_t total,
                  std::optional<uint64_t> cached = std::nullopt) {
  ASSERT_TRUE(read.usage.has_value());
  EXPECT_EQ(read.usage->prompt_tokens, prompt);
  EXPECT_EQ(read.usage->completion_tokens, completion);
  EXPECT_EQ(read.usage->total_tokens, total);
  EXPECT_EQ(read.usage->cached_tokens, cached);
}

TEST(ResponseReader, ReadsUsageOfAStreamHoweverItIsSplit) {
  const std::string text =
      "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n"
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":10,\"total_tokens\":17,"
      "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";
  const Read read = read_every_way(text, plain(ApiKind::kChatCompletions), kSse);
  expect_usage(read, 7, 10, 17, 4);
  EXPECT_EQ(read.text, text);
  EXPECT_EQ(read.events, 2U);
  EXPECT_TRUE(read.first_token);
}

TEST(ResponseReader, AcceptsEveryWayToWriteAnEventStream) {
  const std::string usage = R"({"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}})";
  for (const std::string& text : {
           "data: " + usage + "\n\n",                          // no [DONE]
           "data:" + usage + "\n\ndata:[DONE]\n\n",            // no blank
           "data: " + usage + "\r\n\r\ndata: [DONE]\r\n\r\n",  // CRLF
           "data: " + usage + "\r\rdata: [DONE]\r\r",          // CR
           ": comment\n\nevent: x\nid: 5\ndata: " + usage + "\nretry: 1\n\n",
           std::string("data: {\"usage\":\ndata: {\"prompt_tokens\":7,\ndata:\"completion_tokens\":3,\n"
                       "data: \"total_tokens\":10}\ndata: }\n\n"),  // one event of several lines
           "data: " + usage,                                        // cut after the event
           "data: {\"x\": \"\\\"usage\\\"\"}\n\ndata: " + usage + "\n\n",
       }) {
    const Read read = read_every_way(text, plain(ApiKind::kChatCompletions), kSse);
    expect_usage(read, 7, 3, 10);
    EXPECT_EQ(read.text, text);
  }
}

TEST(ResponseReader, ReadsStreamsWithoutDataPrefix) {
  const std::string text =
      "{\"choices\":[],\"model\":\"B\"}\n\n{\"model\": \"B\",\"usage\":{\"prompt_tokens\":1,"
      "\"completion_tokens\":2,\"total_tokens\":3}}\n{\n  \"model\" : \"B\"\n}\n\n[DONE]";
  const Read read = read_every_way(text, plain(ApiKind::kChatCompletions), kSse);
  expect_usage(read, 1, 2, 3);
  EXPECT_EQ(read.text, text);
  const Read restored = read_every_way(text, restoring(ApiKind::kChatCompletions, "B", "A"), kSse);
  EXPECT_EQ(restored.text,
            "{\"choices\":[],\"model\":\"A\"}\n\n{\"model\": \"A\",\"usage\":{\"prompt_tokens\":1,"
            "\"completion_tokens\":2,\"total_tokens\":3}}\n{\n  \"model\" : \"A\"\n}\n\n[DONE]");
}

TEST(ResponseReader, ABrokenBareLineDoesNotSpoilTheNext) {
  const std::string text = "{\"a\":1\n{\"model\":\"x\n{\"model\":\"B\"}\n";
  EXPECT_EQ(read_every_way(text, restoring(ApiKind::kChatCompletions, "B", "A"), kSse).text,
            "{\"a\":1\n{\"model\":\"x\n{\"model\":\"A\"}\n");
}

TEST(ResponseReader, ContinuousUsageCountsOnce) {
  std::string text;
  for (int i = 0; i < 5; ++i)
    text +=
        "data: {\"choices\":[{}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":" + std::to_string(i) +
        ",\"total_tokens\":" + std::to_string(7 + i) + "}}\n\n";
  expect_usage(read_every_way(text, plain(ApiKind::kChatCompletions), kSse), 7, 4, 11);
}

TEST(ResponseReader, ReadsUsageNestedInResponsesEvents) {
  for (const char* type : {"response.completed", "response.incomplete", "response.failed"}) {
    const std::string text =
        "event: response.created\ndata: "
        "{\"type\":\"response.created\",\"response\":{\"model\":\"B\",\"usage\":null}}\n\n"
        "event: x\ndata: {\"type\":\"" +
        std::string(type) +
        "\",\"response\":{\"output\":[{\"model\":\"B\"}],\"usage\":{\"input_tokens\":31,\"input_tokens_"
        "details\":"
        "{\"cached_tokens\":16},\"output_tokens\":3,\"total_tokens\":34},\"model\":\"B\"}}\n\n";
    const Read read = read_every_way(text, restoring(ApiKind::kResponses, "B", "alias"), kSse);
    expect_usage(read, 31, 3, 34, 16);
    EXPECT_NE(read.text.find("\"response\":{\"model\":\"alias\""), std::string::npos);
    EXPECT_NE(read.text.find("\"model\":\"alias\"}}\n\n"), std::string::npos);
    EXPECT_NE(read.text.find("[{\"model\":\"B\"}]"), std::string::npos);
  }
}

TEST(ResponseReader, TellsTheIdOfAResponseWhereItIsWanted) {
  const std::string stream =
      "event: response.created\ndata: {\"type\":\"response.created\",\"item\":{\"id\":\"msg_1\"},"
      "\"response\":{\"output\":[{\"id\":\"msg_2\"}],\"id\":\"resp_1\"}}\n\n"
      "event: response.completed\ndata: {\"response\":{\"id\":\"resp_2\"}}\n\n";
  ResponseReader::Options options{.api = ApiKind::kResponses, .max_id_bytes = 6};
  EXPECT_EQ(read_every_way(stream, options, kSse).id, "resp_1");
  EXPECT_EQ(read_every_way(R"({"output":[{"id":"msg_1"}],"id":"r\u005f1","model":"m"})", options, kJson).id,
            "");
  options.max_id_bytes = 64;
  EXPECT_EQ(read_every_way(R"({"output":[{"id":"msg_1"}],"id":"r\u005f1","model":"m"})", options, kJson).id,
            "r_1");
  options.served_model = "m";
  options.client_model = "alias";
  EXPECT_EQ(read_every_way(stream, options, kSse).id, "resp_1");
  EXPECT_EQ(read_every_way(R"({"id":7,"object":"list"})", options, kJson).id, "");
  EXPECT_EQ(read_every_way(stream, plain(ApiKind::kResponses), kSse).id, "");
}

TEST(ResponseReader, MergesAnthropicUsage) {
  const std::string text =
      "event: message_start\ndata: "
      "{\"type\":\"message_start\",\"message\":{\"model\":\"B\",\"usage\":{\"input_tokens\":1000,"
      "\"cache_read_input_tokens\":800}}}\n\n"
      "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":200}}\n\n";
  const Read read = read_every_way(text, restoring(ApiKind::kMessages, "B", "A"), kSse);
  expect_usage(read, 1000, 200, 1200, 800);
  EXPECT_NE(read.text.find("\"message\":{\"model\":\"A\""), std::string::npos);
  expect_usage(
      read_every_way(
          R"({"model":"B","usage":{"input_tokens":5,"output_tokens":6,"cache_read_input_tokens":1}})",
          plain(ApiKind::kMessages), kJson),
      5, 6, 11, 1);
}

TEST(ResponseReader, ReadsUsageOfAUnaryAnswer) {
  expect_usage(
      read_every_way(
          R"({"choices":[{"text":"\"usage\":{}"}],"usage":{"prompt_tokens":"7","completion_tokens":3}})",
          plain(ApiKind::kCompletions), kJson),
      7, 3, 10);
  EXPECT_FALSE(read_whole(R"({"usage":null})", plain(ApiKind::kCompletions), kJson).usage.has_value());
  EXPECT_FALSE(
      read_whole(R"({"choices":[{"usage":{"prompt_tokens":1}}]})", plain(ApiKind::kCompletions), kJson)
          .usage.has_value());
  EXPECT_FALSE(read_whole("not json at all", plain(ApiKind::kCompletions), kJson).usage.has_value());
}

TEST(ResponseReader, ReadsSglangsMetaInfoOfTheLastChunk) {
  const std::string text =
      "data: "
      "{\"text\":\"a\",\"meta_info\":{\"prompt_tokens\":5,\"completion_tokens\":1,\"finish_reason\":null}}"
      "\n\n"
      "data: {\"text\":\"ab\",\"meta_info\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"cached_tokens\":0,"
      "\"finish_reason\":{\"type\":\"length\"}}}\n\ndata: [DONE]\n\n";
  expect_usage(read_every_way(text, plain(ApiKind::kSglangGenerate), kSse), 5, 2, 7, 0);
}

TEST(ResponseReader, RestoresTheClientsModelName) {
  const auto restore = [](std::string_view text, std::string_view served = "B",
                          std::string_view client = "A") {
    return read_every_way(text, restoring(ApiKind::kCompletions, served, client), kJson).text;
  };
  EXPECT_EQ(restore(R"({"id":"cmpl-123","model":"B","choices":[]})"),
            R"({"id":"cmpl-123","model":"A","choices":[]})");
  EXPECT_EQ(restore(R"({"model": "B"})"), R"({"model": "A"})");
  EXPECT_EQ(restore("{ \"model\"\n:\t\"B\" }"), "{ \"model\"\n:\t\"A\" }");
  EXPECT_EQ(restore(R"({"mod\u0065l":"B","model":"\u0042"})"), R"({"mod\u0065l":"A","model":"A"})");
  EXPECT_EQ(restore(R"({"model":"BB","text":"\"model\":\"B\"","x":{"model":"B"},"y":["model","B"]})"),
            R"({"model":"BB","text":"\"model\":\"B\"","x":{"model":"B"},"y":["model","B"]})");
  EXPECT_EQ(restore(R"({"model":"a\/b\"c","z":1})", "a/b\"c", "q\"\\"), R"({"model":"q\"\\","z":1})");
  EXPECT_EQ(restore(R"({"model":null,"model":5,"model":["B"],"model":"B"})"),
            R"({"model":null,"model":5,"model":["B"],"model":"A"})");
  EXPECT_EQ(restore("{\"model\":\"B"), "{\"model\":\"B");
  EXPECT_EQ(restore("{\"model\":\"" + std::string(5000, 'B') + "\"}"),
            "{\"model\":\"" + std::string(5000, 'B') + "\"}");
  EXPECT_EQ(restore("data: [DONE]\n"), "data: [DONE]\n");
  EXPECT_EQ(restore(R"([{"model":"B"},{"x":[{"model":"B"}],"model":"B"}])"),
            R"([{"model":"A"},{"x":[{"model":"B"}],"model":"A"}])");
}

TEST(ResponseReader, RewritesOnlyWhenBothNamesAreThereAndDiffer) {
  const auto rewrites = [](std::string_view served, std::string_view client, std::string_view type,
                           std::string_view encoding) {
    ResponseReader reader(restoring(ApiKind::kCompletions, served, client));
    reader.begin(200, type, encoding);
    return reader.rewrites();
  };
  EXPECT_TRUE(rewrites("B", "A", kJson, ""));
  EXPECT_TRUE(rewrites("B", "A", kSse, "identity"));
  EXPECT_FALSE(rewrites("B", "B", kJson, ""));
  EXPECT_FALSE(rewrites("", "A", kJson, ""));
  EXPECT_FALSE(rewrites("B", "", kJson, ""));
  EXPECT_FALSE(rewrites("B", "A", kJson, "gzip"));
  EXPECT_FALSE(rewrites("B", "A", "application/octet-stream", ""));
}

TEST(ResponseReader, PassesThePieceItselfWhenItDoesNotRewrite) {
  ResponseReader reader(plain(ApiKind::kChatCompletions));
  reader.begin(200, kSse, "");
  const std::string piece = "data: {\"a\":1}\n\nda";
  std::vector<std::string_view> out;
  reader.feed(piece, out);
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0].data(), piece.data());
  EXPECT_EQ(out[0].size(), piece.size());
}

TEST(ResponseReader, HoldsBackOnlyAnUnfinishedNameThatMayBeTheServedOne) {
  const auto passed = [](std::string_view piece) {
    ResponseReader reader(restoring(ApiKind::kChatCompletions, "Bigmodel", "A"));
    reader.begin(200, kSse, "");
    std::vector<std::string_view> out;
    reader.feed(piece, out);
    size_t size = 0;
    for (const std::string_view part : out) size += part.size();
    return size;
  };
  const std::string name = "data: {\"model\":\"Big";
  EXPECT_EQ(passed(name), name.size() - 4);
  for (const std::string other :
       {"data: {\"model\":\"other", "data: {\"choices\":[{\"text\":\"Big", "da", "data: {\"mod"})
    EXPECT_EQ(passed(other), other.size());
}

TEST(ResponseReader, BrokenStreamsPassUnchanged) {
  for (const std::string& text :
       {std::string("data: {\"model\":\"B\n\ndata: {\"model\":\"x\"}\n\n"), std::string("data: }}}]]\"{\n\n"),
        std::string("\x00\xFF\xFE garbage\n\r\n\r\r\n", 18),
        std::string("data: {\"usage\":{\"prompt_tokens\":\n\n"),
        std::string("data: {\"usage\":[1,2]}\n\ndata: {\"usage\":{{}}\n\n"), std::string(3000, '['),
        std::string(3000, '"')}) {
    EXPECT_EQ(read_every_way(text, restoring(ApiKind::kChatCompletions, "B", "A"), kSse).text, text);
    EXPECT_EQ(read_every_way(text, plain(ApiKind::kChatCompletions), kSse).text, text);
  }
}

TEST(ResponseReader, ToolArgumentsWithQuotesPassAtAnyPieceBorders) {
  std::string text;
  for (int i = 0; i < 200; ++i)
    text +=
        R"(data: {"model":"B","choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{\\\"a\\\": \"</\\n\\\\\""}}]}}]})"
        "\n\n";
  std::string expected = text;
  for (size_t at = 0; (at = expected.find("\"model\":\"B\"", at)) != std::string::npos;)
    expected.replace(at, 11, "\"model\":\"alias\"");
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    const Read read = read_in_pieces(text, restoring(ApiKind::kChatCompletions, "B", "alias"), kSse,
                                     [&] { return size_t{1} + random.below(300); });
    ASSERT_EQ(read.text, expected) << seed;
    EXPECT_EQ(read.events, 200U);
  }
}

TEST(ResponseReader, BrokenDocumentsAreReadAlikeInWholeAndSplitLines) {
  for (const std::string text :
       {"data: {\"a\":null\ndata: {\"id\":\"x\",\"model\":\"B\"}\n\n",
        "{\"a\":\ndata: 1,\"model\":\"B\"}\n\n", "{\"a\":\ndat\n1,\"model\":\"B\"}\n\n",
        "data:\"\n\r\r\ndata:\"\"\"\"{\"model\":\"B\"}\n", "{\"a\":\ndat\"x\",\"model\":\"B\"}\n\n",
        "data: {\"a\":\n[DONE]\nx\":{\"m\",\"model\":\"B\"}\n\n",
        "data: {\"a\":\n[DONE]\n,\"model\":\"B\"}\n\n",
        "data: {\"a\":\ndata: [DONE]\ndata: ,\"model\":\"B\"}\n\n"}) {
    read_every_way(text, restoring(ApiKind::kChatCompletions, "B", "alias"), kSse);
  }
}

TEST(ResponseReader, CompressedAnswersAreNotTouched) {
  ResponseReader reader(restoring(ApiKind::kChatCompletions, "B", "A"));
  reader.begin(200, kSse, "gzip");
  EXPECT_TRUE(reader.is_event_stream());
  std::vector<std::string_view> out;
  const std::string piece = "data: {\"model\":\"B\",\"usage\":{\"prompt_tokens\":1}}\n\n";
  reader.feed(piece, out);
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0], piece);
  EXPECT_EQ(reader.usage(), nullptr);
}

TEST(ResponseReader, TheFirstTokenIsTheFirstEventWithOutput) {
  const auto seen = [](ApiKind api, std::string_view event) {
    return read_every_way("data: " + std::string(event) + "\n\n", plain(api), kSse).first_token;
  };
  using enum ApiKind;
  EXPECT_FALSE(seen(kChatCompletions,
                    R"({"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]})"));
  EXPECT_TRUE(seen(kChatCompletions, R"({"choices":[{"delta":{"content":"x"}}]})"));
  EXPECT_TRUE(seen(kChatCompletions, R"({"choices":[{"delta":{"reasoning_content": "x"}}]})"));
  EXPECT_TRUE(seen(kChatCompletions, R"({"choices":[{"delta":{"tool_calls":[{}]}}]})"));
  EXPECT_TRUE(seen(kChatCompletions, R"({"choices":[{"delta":{},"finish_reason":"stop"}]})"));
  EXPECT_FALSE(seen(kChatCompletions, R"({"choices":[],"usage":{"prompt_tokens":1}})"));
  EXPECT_TRUE(seen(kVllmGenerate, R"({"choices":[{"token_ids":[209]}]})"));
  EXPECT_FALSE(seen(kResponses, R"({"type":"response.created","response":{}})"));
  EXPECT_TRUE(seen(kResponses, R"({"type":"response.output_text.delta","delta":"x"})"));
  EXPECT_FALSE(seen(kMessages, R"({"type":"message_start","message":{"content":[]}})"));
  EXPECT_TRUE(seen(kMessages, R"({"type":"content_block_delta","delta":{}})"));
  EXPECT_FALSE(seen(kChatCompletions, "[DONE]"));
}

TEST(ResponseReader, NoticesAnErrorInsideAStream) {
  const auto error = [](std::string_view event) {
    return read_every_way("data: " + std::string(event) + "\n\n", plain(ApiKind::kChatCompletions), kSse)
        .error;
  };
  EXPECT_TRUE(error(R"({"error":{"message":"Internal server error","code":500}})"));
  EXPECT_TRUE(error(R"({"error": {"message":"x"}})"));
  EXPECT_FALSE(error(R"({"error":null,"choices":[]})"));
  EXPECT_FALSE(error(R"({"choices":[{"error":{}}]})"));
}

TEST(ResponseReader, ReadsEveryRecordedAnswerAndRestoresItsModel) {
  size_t with_usage = 0;
  size_t restored = 0;
  const std::string root = source_path("tests/vectors/vllm-0.32.0/");
  for (const char* folder : {"http", "http-extra"}) {
    for (const auto& entry : std::filesystem::directory_iterator(root + folder)) {
      if (entry.path().extension() != ".response") continue;
      const RecordedMessage message = read_recorded(entry.path().string());
      const std::string type = message.header("content-type");
      const auto api = entry.path().string().find("messages") != std::string::npos
                           ? ApiKind::kMessages
                           : ApiKind::kChatCompletions;
      const Read read = read_every_way(message.body.substr(0, 1500), plain(api), type);
      EXPECT_EQ(read.text, message.body.substr(0, 1500)) << entry.path();
      const Read whole = read_whole(message.body, restoring(api, "tiny", "my-alias"), type);
      std::string expected = message.body;
      bool any = false;
      for (size_t at = 0; (at = expected.find("\"model\":\"tiny\"", at)) != std::string::npos; any = true)
        expected.replace(at, 14, "\"model\":\"my-alias\"");
      if (type.find("json") != std::string::npos || type.find("event-stream") != std::string::npos) {
        EXPECT_EQ(whole.text, expected) << entry.path();
        restored += any ? 1 : 0;
      }
      if (whole.usage) {
        ++with_usage;
        EXPECT_GT(whole.usage->prompt_tokens, 0U) << entry.path();
        EXPECT_EQ(whole.usage->total_tokens, whole.usage->prompt_tokens + whole.usage->completion_tokens)
            << entry.path();
      }
    }
  }
  EXPECT_GT(with_usage, 30U);
  EXPECT_GT(restored, 30U);
}

TEST(ResponseReader, TheRecordedStreamWithUsageHasItsCounts) {
  const RecordedMessage message =
      read_recorded(source_path("tests/vectors/vllm-0.32.0/http/chat_stream_usage.response"));
  size_t next = 0;
  const Read read = read_in_pieces(message.body, plain(ApiKind::kChatCompletions), kSse,
                                   [&] { return message.chunks[next++].size(); });
  expect_usage(read, 12, 6, 18, 0);
  EXPECT_EQ(read.events, 7U);
}

}  // namespace
}  // namespace penstock::protocol
