#include "protocol/vllmgrpc_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vllm/grpc/engine/vllm_engine.pb.h>

#include "protocol/grpc_testing.h"
#include "protocol/testing.h"

namespace penstock::protocol {
namespace {

using ::testing::ElementsAre;

constexpr std::string_view kGenerate = "/vllm.grpc.engine.VllmEngine/Generate";
constexpr std::string_view kEmbed = "/vllm.grpc.engine.VllmEngine/Embed";

struct VllmGrpc : testing::Test {
  VllmGrpcParser parser;
  vllm::grpc::engine::GenerateRequest generate;
  TestParse parse(std::string_view body, std::string_view path = kGenerate) {
    return TestParse(parser, path, body);
  }
  TestParse parse_generate() { return parse(grpc_frame(generate.SerializeAsString())); }
};

TEST_F(VllmGrpc, ReadsTokenIdsLimitStreamAndImages) {
  for (const uint32_t id : {7U, 8U, 9U}) generate.mutable_tokenized()->add_input_ids(id);
  generate.mutable_sampling_params()->set_max_tokens(0);
  generate.set_stream(true);
  auto* images = generate.mutable_mm_inputs();
  images->add_mm_hashes("aa");
  for (const uint32_t offset : {1U, 2U}) {
    auto* range = images->add_mm_placeholders();
    range->set_offset(offset);
    range->set_length(1);
  }
  auto parsed = parse_generate();
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_EQ(parsed->api, ApiKind::kVllmGrpcGenerate);
  ASSERT_EQ(parsed->prompts.size(), 1U);
  EXPECT_THAT(parsed->prompts[0].token_ids, ElementsAre(7, 8, 9));
  EXPECT_FALSE(parsed->prompts_are_estimated);
  EXPECT_EQ(parsed->max_output_tokens, 0);
  EXPECT_TRUE(parsed->streaming);
  EXPECT_FALSE(parsed->rewritable);
  EXPECT_EQ(parsed->model, "");
  const auto features = parsed->prompts[0].features;
  ASSERT_EQ(features.size(), 2U);
  EXPECT_EQ(features[0].modality, "image");
  EXPECT_EQ(features[0].hash, "aa");
  EXPECT_EQ(features[0].offset_tokens, 1U);
  EXPECT_EQ(features[1].hash, "");
}

TEST_F(VllmGrpc, ATextIsEstimatedLikeACompletionsPrompt) {
  generate.set_text("userhi");
  auto parsed = parse_generate();
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_THAT(parsed->prompts[0].token_ids, ElementsAre(1919251317U, 26984U));
  EXPECT_TRUE(parsed->prompts_are_estimated);
  EXPECT_FALSE(parsed->max_output_tokens.has_value());
}

TEST_F(VllmGrpc, EmbedNeedsTokens) {
  vllm::grpc::engine::EmbedRequest embed;
  EXPECT_EQ(parse(grpc_frame(embed.SerializeAsString()), kEmbed).error(),
            "missing tokenized input in EmbedRequest");
  embed.mutable_tokenized()->add_input_ids(5);
  auto parsed = parse(grpc_frame(embed.SerializeAsString()), kEmbed);
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_EQ(parsed->api, ApiKind::kVllmGrpcEmbed);
  EXPECT_THAT(parsed->prompts[0].token_ids, ElementsAre(5));
}

TEST_F(VllmGrpc, OnlyTheFirstMessageIsRead) {
  generate.mutable_tokenized()->add_input_ids(1);
  auto parsed = parse(grpc_frame(generate.SerializeAsString()) + "rest");
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_THAT(parsed->prompts[0].token_ids, ElementsAre(1));
}

TEST_F(VllmGrpc, RefusesWhatItCannotRead) {
  constexpr std::string_view kBroken = "invalid or unsupported gRPC payload";
  EXPECT_EQ(parse("").error(), kBroken);
  EXPECT_EQ(parse(std::string("\x00\xff\xff\xff\xff\xaa\xbb\xcc\xdd", 9)).error(), kBroken);
  EXPECT_EQ(parse(grpc_frame("", true)).error(), kBroken);
  EXPECT_EQ(parse(grpc_frame("\xff\xff\xff")).error(), kBroken);
  EXPECT_EQ(parse(grpc_frame("")).error(), "not supported request inputType");
}

TEST_F(VllmGrpc, OtherMethodsPassUnread) {
  for (const std::string_view path :
       {"/vllm.grpc.engine.VllmEngine/HealthCheck", "/vllm.grpc.engine.VllmEngine/Generate?x=1"}) {
    auto parsed = parse("whatever", path);
    ASSERT_TRUE(parsed.ok()) << parsed.error();
    EXPECT_TRUE(parsed->skip_response);
    EXPECT_TRUE(parsed->prompts.empty());
  }
}

}  // namespace
}  // namespace penstock::protocol
