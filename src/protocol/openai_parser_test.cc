#include "protocol/openai_parser.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/hash.h"
#include "base/source_path_testing.h"
#include "protocol/testing.h"

namespace penstock::protocol {
namespace {

using std::literals::operator""s;

constexpr std::string_view kChat = "/v1/chat/completions";
constexpr std::string_view kCompletions = "/v1/completions";

struct OpenAi : testing::Test {
  OpenAiParser parser;
  TestParse parse(std::string_view path, std::string_view body, std::vector<HeaderField> headers = {}) {
    return TestParse(parser, path, body, std::move(headers));
  }
  std::string error(std::string_view path, std::string_view body) { return parse(path, body).error(); }
};

TEST_F(OpenAi, FindsTheApiByThePathSuffix) {
  const std::string_view chat = R"({"messages":[{"role":"user"}]})";
  EXPECT_EQ(parse("/v1/chat/completions", chat)->api, ApiKind::kChatCompletions);
  EXPECT_EQ(parse("/v1/chat/completions/", chat)->api, ApiKind::kChatCompletions);
  EXPECT_EQ(parse("/v1/chat/completions/render", chat)->api, ApiKind::kChatCompletions);
  EXPECT_EQ(parse("/v1/completions", R"({"prompt":"a"})")->api, ApiKind::kCompletions);
  EXPECT_EQ(parse("/v1/completions/render", R"({"prompt":"a"})")->api, ApiKind::kCompletions);
  EXPECT_EQ(parse("/v1/embeddings", R"({"input":"a"})")->api, ApiKind::kEmbeddings);
  EXPECT_EQ(parse("/v1/responses", R"({"input":"a"})")->api, ApiKind::kResponses);
  EXPECT_EQ(parse("/v1/conversations", R"({"items":[{}]})")->api, ApiKind::kConversations);
  EXPECT_EQ(parse("/openai/v1/images/generations", R"({"prompt":"a"})")->api, ApiKind::kImagesGenerations);
}

TEST_F(OpenAi, ReadsTheMembersAllApisShare) {
  const auto parsed = parse(kChat, R"({"model":"m\u0031","stream":true,"cache_salt":"s",)"
                                   R"("messages":[{"role":"user","content":"hi"}],"max_tokens":7})");
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_EQ(parsed->model, "m1");
  EXPECT_TRUE(parsed->streaming);
  EXPECT_EQ(parsed->cache_salt, "s");
  EXPECT_EQ(parsed->max_output_tokens, 7);
  EXPECT_TRUE(parsed->prompts_are_estimated);
}

TEST_F(OpenAi, ABodyThatIsNoJsonObjectHasTheReferencesErrorPrefix) {
  for (const std::string_view body : {"no healthy upstream", "", "[1]", "\"x\"", R"({"model":"m",)", "{} {}",
                                      R"({"prompt":"a"}x)", R"({"prompt":["a","b"})", R"({"a":[1,2,})"}) {
    const auto text = error(kCompletions, body);
    EXPECT_TRUE(text.starts_with("error unmarshaling request bodyMap: ")) << body << " -> " << text;
  }
  EXPECT_EQ(error(kCompletions, "null"), "invalid completions request: must have prompt field");
}

TEST_F(OpenAi, LooksAtABoundedNumberOfPrompts) {
  for (const std::string_view prompt : {R"("a")", "[1]"}) {
    std::string body = R"({"model":"m","prompt":[)";
    for (int i = 0; i < 5000; ++i) body.append(i == 0 ? "" : ",").append(prompt);
    const auto parsed = parse(kCompletions, body + "]}");
    ASSERT_TRUE(parsed.ok()) << parsed.error();
    EXPECT_EQ(parsed->prompts.size(), 4096U);
    EXPECT_EQ(parsed->model, "m");
  }
}

TEST_F(OpenAi, RefusesAModelNameThatNobodyWouldGive) {
  const auto body = [](size_t bytes) {
    return R"({"prompt":"a","model":")" + std::string(bytes, 'm') + "\"}";
  };
  EXPECT_TRUE(parse(kCompletions, body(1024)).ok());
  EXPECT_EQ(error(kCompletions, body(1025)),
            "error unmarshaling request bodyMap: the model name is longer than 1024 bytes");
}

TEST_F(OpenAi, RefusesMoreModelsThanAnyClientSends) {
  const auto body = [](int models) {
    std::string text = R"({"prompt":"a")";
    for (int i = 0; i < models; ++i) text += R"(,"model":"m")";
    return text + "}";
  };
  const auto parsed = parse(kCompletions, body(64));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->model_literals.size(), 64U);
  EXPECT_EQ(error(kCompletions, body(65)),
            R"(error unmarshaling request bodyMap: the body has more than 64 members "model")");
}

TEST_F(OpenAi, RefusesACompletionWithoutAUsablePrompt) {
  const std::string wrong = "invalid completions request: must have prompt field";
  for (const std::string_view body :
       {R"({})", R"({"prompt":""})", R"({"prompt":null})", R"({"prompt":[]})", R"({"prompt":5})",
        R"({"prompt":[1,"a"]})", R"({"prompt":[1.5]})", R"({"prompt":[-1]})", R"({"prompt":[4294967296]})",
        R"({"prompt":[[1],2]})", R"({"prompt":[["a"]]})", R"({"prompt":{"a":1}})", R"({"prompt":[null]})",
        R"({"prompt":"a","cache_salt":5})"})
    EXPECT_EQ(error(kCompletions, body), wrong) << body;
}

TEST_F(OpenAi, ReadsEveryFormOfPrompt) {
  auto one = parse(kCompletions, R"({"prompt":"hello"})");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one.bytes(), "hello\0\0\0"s);

  auto list = parse(kCompletions, R"({"prompt":["a","bcdefgh",""]})");
  ASSERT_EQ(list->prompts.size(), 3U);
  EXPECT_EQ(list.bytes(0), "a\0\0\0"s);
  EXPECT_EQ(list.bytes(1), "bcdefgh\0"s);
  EXPECT_EQ(list.bytes(2), "");
  EXPECT_TRUE(parse(kCompletions, R"({"prompt":[""]})").ok());

  auto ids = parse(kCompletions, R"({"prompt":[151644, 8948,198,4294967295,0]})");
  ASSERT_EQ(ids->prompts.size(), 1U);
  EXPECT_FALSE(ids->prompts_are_estimated);
  EXPECT_EQ(std::vector<uint32_t>(ids->prompts[0].token_ids.begin(), ids->prompts[0].token_ids.end()),
            (std::vector<uint32_t>{151644, 8948, 198, 4294967295, 0}));

  auto nested = parse(kCompletions, R"({"prompt":[[1,2,3],[4,5,6,7]]})");
  ASSERT_EQ(nested->prompts.size(), 2U);
  EXPECT_EQ(nested->prompts[0].token_ids.size(), 3U);
  EXPECT_EQ(nested->prompts[1].token_ids[3], 7U);

  EXPECT_TRUE(parse(kCompletions, R"({"prompt_embeds":"abcd"})").ok());
}

TEST_F(OpenAi, RefusesAChatWithoutMessages) {
  const std::string wrong = "invalid chat completions request: must have valid messages field";
  for (const std::string_view body :
       {R"({})", R"({"messages":[]})", R"({"messages":null})", R"({"messages":"hi"})",
        R"({"messages":["hi"]})", R"({"messages":[{"role":5}]})", R"({"messages":[{"content":5}]})",
        R"({"messages":[{"content":{}}]})", R"({"messages":[{"content":["a"]}]})",
        R"({"messages":[{"content":[{"type":"image_url","image_url":"http://x"}]}]})",
        R"({"messages":[{"content":[{"type":"text","text":5}]}]})", R"({"messages":[{}],"tools":{}})",
        R"({"messages":[{}],"chat_template":5})", R"({"messages":[{}],"documents":"d"})",
        R"({"messages":[{}],"add_generation_prompt":"yes"})",
        R"({"messages":[{}],"chat_template_kwargs":[]})", R"({"messages":[{"tool_calls":{}}]})",
        R"({"messages":[{"role":"user"}],"messages":[]})"})
    EXPECT_EQ(error(kChat, body), wrong) << body;
}

TEST_F(OpenAi, LetsThroughWhatEnginesAccept) {
  for (
      const std::string_view body :
      {R"({"messages":[{"role":"latest_reminder","content":"x","extra":{"a":1}}]})",
       R"({"messages":[{"role":"tool","tool_call_id":null,"content":"x"}]})",
       R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"f"}}]}]})",
       R"({"messages":[{"role":"assistant","tool_calls":[]}],"stop":null})",
       R"({"messages":[{"role":"user","content":[{"type":"hologram","hologram":{"x":1}}]}]})",
       R"({"messages":[{"role":"user","content":[]}],"tools":null,"chat_template":null})",
       R"({"messages":[null]})",
       R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}]})",
       R"({"messages":[{"role":"user","content":"x"}],"vllm_xargs":{"a":[1,2]},"priority":5,"unknown":1e999})"})
    EXPECT_TRUE(parse(kChat, body).ok()) << body << error(kChat, body);
}

TEST_F(OpenAi, EstimatesAChatAsRoleAndContentBytes) {
  auto parsed = parse(kChat, R"({"messages":[{"role":"user","content":"hi"}]})");
  ASSERT_TRUE(parsed.ok());
  ASSERT_EQ(parsed->prompts.size(), 1U);
  const auto ids = parsed->prompts[0].token_ids;
  EXPECT_EQ(std::vector<uint32_t>(ids.begin(), ids.end()), (std::vector<uint32_t>{1919251317, 26984}));

  EXPECT_EQ(parse(kChat, R"({"messages":[{"content":"hi","role":"user"}]})").bytes(), "userhi\0\0"s);
  EXPECT_EQ(parse(kChat, R"({"messages":[{"role":"x","content":"a"},{"role":"y","content":"b"}]})").bytes(),
            "xayb");
  EXPECT_EQ(parse(kChat, R"({"messages":[{"role":"user","content":[{"type":"text","text":"he"},)"
                         R"({"text":"llo!","type":"text"}]}]})")
                .bytes(),
            "userhello!\0\0"s);
  EXPECT_EQ(parse(kChat, R"({"messages":[{"role":"u","content":"a\n\"b\" \u00e9\ud83d"}]})").bytes(),
            "ua\n\"b\" \xC3\xA9\xEF\xBF\xBD");
}

TEST_F(OpenAi, PutsToolsBeforeMessagesWhereverTheyStand) {
  const std::string tools = R"([{"type":"function"}])";
  const std::string expected = tools + "uabc";
  EXPECT_EQ(parse(kChat, R"({"tools":)" + tools + R"(,"messages":[{"role":"u","content":"abc"}]})").bytes(),
            expected + std::string((4 - expected.size() % 4) % 4, '\0'));
  EXPECT_EQ(parse(kChat, R"({"messages":[{"role":"u","content":"abc"}],"tools":)" + tools + "}").bytes(),
            expected + std::string((4 - expected.size() % 4) % 4, '\0'));
  EXPECT_EQ(parse(kChat, R"({"messages":[{"role":"u","content":"abc"}],"tools":[ ]})").bytes(), "uabc");
  EXPECT_EQ(parse(kChat, R"({"messages":[{"role":"u","content":"abc"}],"tools":null})").bytes(), "uabc");
}

TEST_F(OpenAi, TakesAMessageWhoseRoleIsNull) {
  EXPECT_EQ(parse(kChat, R"({"messages":[{"role":null,"content":"abcd"}]})").bytes(), "abcd");
}

TEST_F(OpenAi, GivesMediaPlaceholdersThatBeginOnATokenAndCarryTheContentHash) {
  auto parsed = parse(kChat, R"({"messages":[{"role":"user","content":[{"type":"text","text":"abc"},)"
                             R"({"type":"image_url","image_url":{"url":"http://x/a.png"}}]}]})");
  ASSERT_TRUE(parsed.ok());
  const TokenizedPrompt& prompt = parsed->prompts[0];
  ASSERT_EQ(prompt.token_ids.size(), 227U);
  EXPECT_EQ(parsed.bytes().substr(0, 8), "userabc\0"s);
  for (size_t i = 2; i < 227; ++i) EXPECT_EQ(prompt.token_ids[i], 4072142368U);
  ASSERT_EQ(prompt.features.size(), 1U);
  EXPECT_EQ(prompt.features[0].modality, "image");
  EXPECT_EQ(prompt.features[0].hash, "e0f71bc2f2b7f620");
  EXPECT_EQ(prompt.features[0].offset_tokens, 2U);
  EXPECT_EQ(prompt.features[0].length_tokens, 225U);

  auto media = parse(kChat, R"({"messages":[{"role":"","content":[)"
                            R"({"type":"video_url","video_url":{"url":"v"}},)"
                            R"({"type":"input_audio","input_audio":{"data":"abcde","format":"wav"}},)"
                            R"({"type":"image_url"},{"type":"text","text":"x"}]}]})");
  ASSERT_TRUE(media.ok());
  const auto features = media->prompts[0].features;
  ASSERT_EQ(features.size(), 3U);
  EXPECT_EQ(features[0].length_tokens, 4500U);
  EXPECT_EQ(features[1].modality, "audio");
  EXPECT_EQ(features[1].length_tokens, 2U);
  EXPECT_EQ(features[1].offset_tokens, 4500U);
  EXPECT_EQ(features[2].hash, "ef46db3751d8e999");
  EXPECT_EQ(media->prompts[0].token_ids.size(), 4500U + 2 + 225 + 1);
}

TEST_F(OpenAi, EstimatesTheOtherApisFromTheirJsonText) {
  EXPECT_TRUE(parse("/v1/responses", R"({"input":"hi","instructions":"be","model":"m"})")
                  .bytes()
                  .starts_with(R"([{"instructions":"be"},{"input":"hi"}])"));
  EXPECT_TRUE(parse("/v1/responses", R"({"input":[1], "tools":[{"a":1}]})")
                  .bytes()
                  .starts_with(R"([{"tools":[{"a":1}]},{"input":[1]}])"));
  EXPECT_TRUE(parse("/v1/conversations", R"({"items":[{"type":"message","role":"user","content":"x"}]})")
                  .bytes()
                  .starts_with(R"([{"type":"message","role":"user","content":"x"}])"));
  EXPECT_TRUE(parse("/v1/embeddings", R"({"input":"hi"})")
                  .bytes()
                  .starts_with(R"({"Raw":"hi","Strings":null,"TokenIDs":null})"));
  EXPECT_TRUE(parse("/v1/embeddings", R"({"input":["a","b"]})")
                  .bytes()
                  .starts_with(R"({"Raw":"","Strings":["a","b"],"TokenIDs":null})"));
  EXPECT_EQ(parse("/v1/embeddings", R"({"input":[[1],[2]]})")->prompts.size(), 2U);
  EXPECT_TRUE(parse("/v1/images/generations", R"({"prompt":"cat","n":1,"size":"1x1"})")->prompts.empty());
}

TEST_F(OpenAi, ChecksTheOtherApisRequiredMembers) {
  EXPECT_EQ(error("/v1/responses", R"({"input":null})"), "invalid responses request: must have input field");
  EXPECT_TRUE(parse("/v1/responses", R"({"input":""})").ok());
  EXPECT_EQ(error("/v1/conversations", R"({"items":[]})"),
            "invalid conversations request: must have items field");
  EXPECT_EQ(error("/v1/conversations", R"({"items":[{"role":5}]})"),
            "invalid conversations request: must have items field");
  EXPECT_EQ(error("/v1/embeddings", R"({"input":""})"), "invalid embeddings request: must have input field");
  EXPECT_EQ(error("/v1/images/generations", R"({"prompt":["a"]})"),
            "invalid images generations request: must have prompt field");
  EXPECT_EQ(error("/v1/images/generations", R"({"prompt":"a","n":"two"})"),
            "invalid images generations request: must have prompt field");
}

TEST_F(OpenAi, TakesTheFirstUsableTokenLimit) {
  const auto limit = [&](std::string_view members) {
    return parse(kChat, R"({"messages":[{}],)" + std::string(members) + "}")->max_output_tokens;
  };
  EXPECT_EQ(limit(R"("max_completion_tokens":-1,"max_tokens":50)"), 50);
  EXPECT_EQ(limit(R"("max_completion_tokens":"bad","max_tokens":50)"), 50);
  EXPECT_EQ(limit(R"("max_tokens":50,"max_completion_tokens":60)"), 60);
  EXPECT_EQ(limit(R"("max_tokens":0)"), 0);
  EXPECT_EQ(limit(R"("max_tokens":1.5)"), std::nullopt);
  EXPECT_EQ(parse("/v1/responses", R"({"input":"a","max_output_tokens":9})")->max_output_tokens, 9);
  EXPECT_EQ(parse("/v1/embeddings", R"({"input":"a","max_tokens":9})")->max_output_tokens, std::nullopt);
}

TEST_F(OpenAi, TheLastOfEqualKeysCounts) {
  auto parsed =
      parse(kChat,
            R"({"model":"cheap","messages":[{"role":"u","content":"no"}],"stream":true,)"
            R"("mod\u0065l":"dear","messages":[{"role":"u","content":"x","content":"yes"}],"stream":false})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->model, "dear");
  EXPECT_FALSE(parsed->streaming);
  EXPECT_EQ(parsed.bytes(), "uyes");
  EXPECT_EQ(parsed->model_literals.size(), 2U);
  EXPECT_EQ(parsed.rewritten("T"),
            R"({"model":"T","messages":[{"role":"u","content":"no"}],"stream":true,)"
            R"("mod\u0065l":"T","messages":[{"role":"u","content":"x","content":"yes"}],"stream":false})");
}

TEST_F(OpenAi, RewritingReplacesNothingButTheModel) {
  auto parsed = parse(kCompletions,
                      R"({"max_tokens":100,"model":"sql-lora-sheddable","prompt":"test6","temperature":0})");
  EXPECT_EQ(parsed.rewritten("T"), R"({"max_tokens":100,"model":"T","prompt":"test6","temperature":0})");
  auto big = parse(kCompletions,
                   "{ \"seed\":12345678901234567890 ,\n\"model\" : \"m\" ,\"prompt\":\"<\\ud83d\xFF>\"} ");
  EXPECT_EQ(big.rewritten("a\"b"),
            "{ \"seed\":12345678901234567890 ,\n\"model\" : \"a\\\"b\" ,\"prompt\":\"<\\ud83d\xFF>\"} ");
  auto absent = parse(kCompletions, R"( {"prompt":"x"})");
  EXPECT_EQ(absent.rewritten("T"), R"( {"model":"T","prompt":"x"})");
  EXPECT_EQ(absent->model, "");
  auto not_text = parse(kCompletions, R"({"prompt":"x","model":[1]})");
  EXPECT_EQ(not_text->model, "");
  EXPECT_EQ(not_text.rewritten("T"), R"({"prompt":"x","model":"T"})");
}

TEST_F(OpenAi, OnlyTopLevelModelsAreModels) {
  auto parsed = parse(kChat, R"({"messages":[{"role":"u","model":"x"}],"metadata":{"model":"y"}})");
  EXPECT_EQ(parsed->model, "");
  EXPECT_TRUE(parsed->model_literals.empty());
}

TEST_F(OpenAi, NamesTheReplicaState) {
  EXPECT_EQ(parse("/v1/responses", R"({"input":"a","previous_response_id":"resp_1"})")->previous_response_id,
            "resp_1");
  EXPECT_EQ(parse("/v1/responses", R"({"input":"a","conversation":{"id":"conv_1"}})")->conversation_id,
            "conv_1");
  EXPECT_EQ(parse("/v1/responses", R"({"input":"a","previous_response_id":null})")->previous_response_id, "");
}

TEST_F(OpenAi, AResponseIsStoredUnlessTheClientSaysNo) {
  EXPECT_TRUE(parse("/v1/responses", R"({"input":"a"})")->stores_response);
  EXPECT_TRUE(parse("/v1/responses", R"({"input":"a","store":null})")->stores_response);
  EXPECT_TRUE(parse("/v1/responses", R"({"input":"a","store":false,"store":true})")->stores_response);
  EXPECT_FALSE(parse("/v1/responses", R"({"input":"a","store": false })")->stores_response);
  EXPECT_FALSE(parse(kChat, R"({"messages":[{"role":"u"}],"store":true})")->stores_response);
}

TEST_F(OpenAi, ReadsEveryRecordedRequestThatTheEngineAccepted) {
  const std::string root = source_path("tests/vectors/vllm-0.32.0/");
  size_t read = 0;
  for (const char* folder : {"http", "http-extra"}) {
    for (const auto& entry : std::filesystem::directory_iterator(root + folder)) {
      if (entry.path().extension() != ".request") continue;
      const RecordedMessage request = read_recorded(entry.path().string());
      auto response_path = entry.path();
      const RecordedMessage response = read_recorded(response_path.replace_extension(".response").string());
      const std::string path = request.start_line.substr(5, request.start_line.rfind(' ') - 5);
      const bool ours = path.ends_with("/completions") || path.ends_with("/embeddings") ||
                        path.ends_with("/responses") || path.ends_with("/completions/render");
      if (!request.start_line.starts_with("POST ") || !ours) continue;
      auto parsed = parse(path, request.body);
      if (response.start_line.find(" 200 ") != std::string::npos) {
        ASSERT_TRUE(parsed.ok()) << entry.path() << parsed.error();
        EXPECT_FALSE(parsed->prompts.empty()) << entry.path();
        // The render routes never stream.
        if (!path.ends_with("/render")) {
          EXPECT_EQ(parsed->streaming, response.header("content-type").starts_with("text/event-stream"));
        }
        ++read;
      }
    }
  }
  EXPECT_GT(read, 50U);
}

}  // namespace
}  // namespace penstock::protocol
