#include "protocol/parser.h"

#include <gtest/gtest.h>

#include "config/node.h"
#include "protocol/anthropic_parser.h"
#include "protocol/openai_parser.h"
#include "protocol/passthrough_parser.h"
#include "protocol/sglanghttp_parser.h"
#include "protocol/testing.h"
#include "protocol/vllmhttp_parser.h"

namespace penstock::protocol {
namespace {

struct Table : testing::Test {
  SglangHttpParser sglang;
  OpenAiParser openai;
  AnthropicParser anthropic;
  VllmHttpParser vllm;
  PassthroughParser passthrough;
};

TEST_F(Table, TheLongestSuffixWins) {
  const RequestParser* const parsers[] = {&sglang, &openai, &anthropic, &vllm, &passthrough};
  const ParserTable table(parsers);
  EXPECT_EQ(table.find("/v1/chat/completions/"), &openai);
  EXPECT_EQ(table.find("/inference/v1/generate"), &vllm);
  EXPECT_EQ(table.find("/inference/v1/generate/"), &vllm);
  EXPECT_EQ(table.find("/generate"), &sglang);
  EXPECT_EQ(table.find("/openai/v1/images/generations"), &openai);
  EXPECT_EQ(table.find("/v1/messages"), &anthropic);
  EXPECT_EQ(table.find("/v1/messages/count_tokens"), &anthropic);
  EXPECT_EQ(table.find("/unknown/path"), &passthrough);
  EXPECT_TRUE(table.claims("/v1/completions"));
  EXPECT_FALSE(table.claims("/unknown/path"));
}

TEST_F(Table, ASuffixMatchesWholeSegmentsOnly) {
  const RequestParser* const parsers[] = {&sglang, &openai, &anthropic};
  const ParserTable table(parsers);
  EXPECT_EQ(table.find("/foo/regenerate"), nullptr);
  EXPECT_EQ(table.find("/v1/foomessages"), nullptr);
  EXPECT_EQ(table.find("completions"), &openai);
  EXPECT_EQ(table.find(""), nullptr);
  EXPECT_EQ(table.find("/"), nullptr);
}

TEST_F(Table, TheFallbackEndsTheList) {
  const RequestParser* const parsers[] = {&openai, &passthrough, &anthropic};
  const ParserTable table(parsers);
  EXPECT_EQ(table.find("/v1/messages"), &passthrough);
}

TEST_F(Table, PassthroughReadsNothing) {
  TestParse parsed(passthrough, "/any", "passthrough-parser");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->api, ApiKind::kNone);
  EXPECT_FALSE(parsed->rewritable);
  EXPECT_TRUE(parsed->prompts.empty());
}

TEST(FindModel, ReadsTheLastTopLevelModelOfAnyJsonBody) {
  const auto find = [](std::string_view text) {
    PaddedCopy body(text);
    Arena arena;
    return std::string(find_model(body.padded(), arena));
  };
  EXPECT_EQ(find(R"({"query":"q","model":"a","documents":["model"],"model":"b"})"), "b");
  EXPECT_EQ(find(R"({"model":5})"), "");
  EXPECT_EQ(find(R"({"model":"a")"), "");
  EXPECT_EQ(find("--boundary"), "");
}

}  // namespace
}  // namespace penstock::protocol
