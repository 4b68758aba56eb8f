#include "protocol/vllmhttp_parser.h"

#include <gtest/gtest.h>

#include "protocol/testing.h"

namespace penstock::protocol {
namespace {

struct VllmHttp : testing::Test {
  VllmHttpParser parser;
  TestParse parse(std::string_view body, std::string_view path = "/inference/v1/generate") {
    return TestParse(parser, path, body);
  }
};

TEST_F(VllmHttp, ReadsTokensLimitsAndFeatures) {
  auto parsed =
      parse(R"({"model":"tiny","token_ids":[1299,1378],"stream":true,"cache_salt":"s",)"
            R"("sampling_params":{"max_tokens":4,"temperature":0},)"
            R"("features":{"mm_hashes":{"image":["aa","bb"]},"mm_placeholders":)"
            R"({"image":[{"offset":8,"length":70},{"length":3,"offset":90},{"offset":95,"length":1}]}}})");
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_EQ(parsed->api, ApiKind::kVllmGenerate);
  EXPECT_EQ(parsed->model, "tiny");
  EXPECT_TRUE(parsed->streaming);
  EXPECT_EQ(parsed->max_output_tokens, 4);
  EXPECT_FALSE(parsed->prompts_are_estimated);
  ASSERT_EQ(parsed->prompts.size(), 1U);
  EXPECT_EQ(parsed->prompts[0].token_ids[1], 1378U);
  const auto features = parsed->prompts[0].features;
  ASSERT_EQ(features.size(), 3U);
  EXPECT_EQ(features[0].hash, "aa");
  EXPECT_EQ(features[1].hash, "bb");
  EXPECT_EQ(features[1].offset_tokens, 90U);
  EXPECT_EQ(features[2].hash, "");
  EXPECT_TRUE(parse(R"({"token_ids":[1]})", "/inference/v1/generate/").ok());
}

TEST_F(VllmHttp, NamesTheFirstBadToken) {
  EXPECT_EQ(parse(R"({"token_ids":[1,-2,"x"]})").error(),
            "invalid generate request: token_ids[1]: invalid value -2");
  EXPECT_EQ(parse(R"({"token_ids":[1.5]})").error(),
            "invalid generate request: token_ids[0]: invalid value 1.5");
  for (const std::string_view body :
       {R"({})", R"({"token_ids":[]})", R"({"token_ids":null})", R"({"token_ids":"a"})"})
    EXPECT_EQ(parse(body).error(), "invalid generate request: must have non-empty token_ids field");
  EXPECT_TRUE(parse(R"({"token_ids":[1,])").error().starts_with("error unmarshaling request body: "));
  EXPECT_EQ(parse(R"({"token_ids":[1]})", "/v1/regenerate").error(), "unsupported path: /v1/regenerate");
}

}  // namespace
}  // namespace penstock::protocol
