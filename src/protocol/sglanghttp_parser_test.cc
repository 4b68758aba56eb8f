#include "protocol/sglanghttp_parser.h"

#include <gtest/gtest.h>

#include "protocol/testing.h"

namespace penstock::protocol {
namespace {

struct SglangHttp : testing::Test {
  SglangHttpParser parser;
  TestParse parse(std::string_view body, std::string_view path = "/generate") {
    return TestParse(parser, path, body);
  }
};

TEST_F(SglangHttp, ReadsIdsSaltLimitAndStream) {
  auto parsed = parse(
      R"({"input_ids":[1,2],"extra_key":"k","stream":true,"sampling_params":{"max_new_tokens":0},"model":"ignored"})",
      "/generate/");
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_EQ(parsed->prompts[0].token_ids.size(), 2U);
  EXPECT_EQ(parsed->cache_salt, "k");
  EXPECT_EQ(parsed->max_output_tokens, 0);
  EXPECT_TRUE(parsed->streaming);
  EXPECT_EQ(parsed->model, "");
  EXPECT_FALSE(parsed->rewritable);
}

TEST_F(SglangHttp, RefusesWhatTheReferenceRefuses) {
  EXPECT_EQ(parse("{}", "/v1/generate").error(), "unsupported path: /v1/generate");
  EXPECT_EQ(parse(R"({"text":"x"})").error(), "invalid generate request: input_ids must be provided");
  EXPECT_EQ(parse(R"({"input_ids":[[1]]})").error(),
            "invalid generate request: input_ids must be an array of uint32 integers");
  EXPECT_EQ(parse(R"({"input_ids":[]})").error(), "invalid generate request: input_ids cannot be empty");
  EXPECT_EQ(parse(R"({"input_ids":[1],"extra_key":5})").error(),
            "unsupported generate request: extra_key must be a string");
  EXPECT_FALSE(parse(R"({"input_ids":[1],"stream":"yes"})").ok());
}

}  // namespace
}  // namespace penstock::protocol
