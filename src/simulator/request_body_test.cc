#include "simulator/request_body.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "simulator/recorded_exchange.h"
#include "simulator/response_text.h"
#include "simulator/tokenizer.h"

namespace penstock::simulator {
namespace {

struct Read {
  explicit Read(EngineApi api, std::string body) : text(std::move(body)) {
    const size_t size = text.size();
    text.append(RequestReader::kPadding, '\0');
    error = reader.read(api, std::string_view(text).substr(0, size), request);
  }
  std::string prompt(size_t i = 0) const {
    std::string out;
    for (const uint32_t token : request.prompts[i]) detokenize(token, out);
    return out;
  }
  std::string text;
  RequestReader reader;
  EngineRequest request;
  std::optional<ApiError> error;
};

struct RecordedError {
  const char* name;
  EngineApi api;
};

class Refusals : public testing::TestWithParam<RecordedError> {};

TEST_P(Refusals, HaveTheRealEnginesBody) {
  const recorded::Exchange exchange = recorded::load(std::string("http/") + GetParam().name);
  Read read(GetParam().api, exchange.request_body);
  ASSERT_TRUE(read.error.has_value());
  std::string body;
  append_error(body, GetParam().api, *read.error);
  EXPECT_EQ(read.error->status, exchange.status);
  EXPECT_EQ(body, exchange.body);
}

INSTANTIATE_TEST_SUITE_P(Recorded, Refusals,
                         testing::Values(RecordedError{"error_bad_type", EngineApi::kChat},
                                         RecordedError{"error_empty_body", EngineApi::kChat},
                                         RecordedError{"error_not_an_object", EngineApi::kChat},
                                         RecordedError{"error_empty_messages", EngineApi::kChat},
                                         RecordedError{"error_no_messages", EngineApi::kChat},
                                         RecordedError{"error_negative_max_tokens", EngineApi::kChat},
                                         RecordedError{"error_stream_options_without_stream",
                                                       EngineApi::kChat},
                                         RecordedError{"error_bad_temperature", EngineApi::kChat},
                                         RecordedError{"cache_salt_empty", EngineApi::kChat}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(RequestReader, BrokenJsonNamesWhereItBroke) {
  Read read(EngineApi::kChat, "{\"model\": \"tiny\", ");
  ASSERT_TRUE(read.error);
  EXPECT_EQ(read.error->status, 400);
  EXPECT_EQ(read.error->param, "body.18");
  EXPECT_TRUE(Read(EngineApi::kChat, R"({"messages":[]} trailing)").error);
  EXPECT_TRUE(Read(EngineApi::kChat, std::string(3000, '[')).error);
}

TEST(RequestReader, EveryFormOfPromptBecomesTokens) {
  EXPECT_EQ(Read(EngineApi::kCompletions, R"({"prompt":"hello world"})").prompt(), "hello world");
  Read list(EngineApi::kCompletions, R"({"prompt":["one","two"]})");
  ASSERT_EQ(list.request.prompt_count, 2U);
  EXPECT_EQ(list.prompt(1), "two");
  Read ids(EngineApi::kCompletions, R"({"prompt":[1299,1378]})");
  EXPECT_EQ(ids.request.prompts[0], (std::vector<uint32_t>{1299, 1378}));
  Read lists(EngineApi::kCompletions, R"({"prompt":[[1,2],[3]]})");
  ASSERT_EQ(lists.request.prompt_count, 2U);
  EXPECT_EQ(lists.request.prompts[1], (std::vector<uint32_t>{3}));
  EXPECT_EQ(Read(EngineApi::kCompletions, R"({"prompt":[4000000000]})").error->message,
            "Token id 4000000000 is out of vocabulary");
  EXPECT_TRUE(Read(EngineApi::kCompletions, "{}").error);
}

TEST(RequestReader, AConversationIsWrittenAsTheChatTemplateDoes) {
  Read read(EngineApi::kChat,
            R"({"messages":[{"role":"system","content":"Be brief."},)"
            R"({"role":"user","content":[{"type":"text","text":"hi "},{"type":"text","text":"there"}]}]})");
  ASSERT_FALSE(read.error);
  EXPECT_EQ(read.prompt(),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi "
            "there<|im_end|>\n<|im_start|>assistant\n");
}

TEST(RequestReader, TheSecondTurnBeginsWithTheTokensOfTheFirst) {
  Read first(EngineApi::kChat, R"({"messages":[{"role":"user","content":"hello"}]})");
  std::vector<uint32_t> history = first.request.prompts[0];
  std::string answer;
  for (uint32_t i = 0; i < 9; ++i) {
    history.push_back(answer_token(5, i));
    detokenize(history.back(), answer);
  }
  Read second(EngineApi::kChat,
              R"({"messages":[{"role":"user","content":"hello"},{"role":"assistant","content":")" + answer +
                  R"("},{"role":"user","content":"more"}]})");
  const std::vector<uint32_t>& tokens = second.request.prompts[0];
  ASSERT_GT(tokens.size(), history.size());
  EXPECT_TRUE(std::equal(history.begin(), history.end(), tokens.begin()));
}

TEST(RequestReader, TheLastOfDuplicateKeysCounts) {
  Read read(EngineApi::kCompletions,
            R"({"model":"a","prompt":"x","model":"b","prompt":"y","max_tokens":1,"max_tokens":2})");
  EXPECT_EQ(read.request.model, "b");
  EXPECT_EQ(read.prompt(), "y");
  EXPECT_EQ(read.request.max_tokens, 2);
}

TEST(RequestReader, MaxCompletionTokensWinsInChat) {
  Read read(EngineApi::kChat,
            R"({"messages":[{"role":"user","content":"x"}],"max_completion_tokens":3,"max_tokens":9})");
  EXPECT_EQ(read.request.max_tokens, 3);
}

TEST(RequestReader, UnknownFieldsAndRolesAreAccepted) {
  EXPECT_FALSE(
      Read(EngineApi::kChat, R"({"messages":[{"role":"alien","content":"x"}],"penstock":{"x":1}})").error);
}

TEST(RequestReader, EmptyStreamOptionsAskForNoUsage) {
  Read read(EngineApi::kChat,
            R"({"messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{}})");
  EXPECT_FALSE(read.error);
  EXPECT_FALSE(read.request.include_usage);
}

TEST(RequestReader, SamplingParamsOfGenerateAreReadFromTheirOwnObject) {
  Read read(EngineApi::kGenerate, R"({"token_ids":[1,2],"sampling_params":{"max_tokens":4},"max_tokens":9})");
  EXPECT_EQ(read.request.max_tokens, 4);
  EXPECT_TRUE(Read(EngineApi::kGenerate, R"({"token_ids":[1,2]})").error);
}

}  // namespace
}  // namespace penstock::simulator
