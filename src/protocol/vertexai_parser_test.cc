#include "protocol/vertexai_parser.h"

#include <gmock/gmock.h>
#include <google/cloud/aiplatform/v1beta1/prediction_service.pb.h>
#include <gtest/gtest.h>

#include "protocol/grpc_testing.h"
#include "protocol/testing.h"

namespace penstock::protocol {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace vertex = google::cloud::aiplatform::v1beta1;

const std::string kService = "/google.cloud.aiplatform.v1beta1.PredictionService/";

struct VertexAi : testing::Test {
  VertexAiParser parser;
  template <typename Message>
  TestParse parse(std::string_view json, std::string_view method) {
    Message message;
    message.mutable_http_body()->set_data(std::string(json));
    return TestParse(parser, kService + std::string(method), grpc_frame(message.SerializeAsString()));
  }
};

TEST_F(VertexAi, ChatCompletionsAreReadAsOpenAiChat) {
  auto parsed = parse<vertex::ChatCompletionsRequest>(
      R"({"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":3})",
      "ChatCompletions");
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_EQ(parsed->api, ApiKind::kVertexChatCompletions);
  EXPECT_EQ(parsed->model, "m");
  EXPECT_TRUE(parsed->streaming);
  EXPECT_EQ(parsed->max_output_tokens, 3);
  EXPECT_THAT(parsed->prompts[0].token_ids, ElementsAre(1919251317U, 26984U));
  EXPECT_FALSE(parsed->rewritable);
  EXPECT_TRUE(parsed->model_literals.empty());
}

TEST_F(VertexAi, RawPredictIsReadAsResponses) {
  constexpr std::string_view kBody = R"({"input":"hi","max_output_tokens":4})";
  auto raw = parse<vertex::RawPredictRequest>(kBody, "RawPredict");
  ASSERT_TRUE(raw.ok()) << raw.error();
  EXPECT_EQ(raw->api, ApiKind::kVertexRawPredict);
  EXPECT_EQ(raw->max_output_tokens, 4);
  auto stream = parse<vertex::StreamRawPredictRequest>(kBody, "StreamRawPredict");
  ASSERT_TRUE(stream.ok()) << stream.error();
  EXPECT_EQ(parse<vertex::RawPredictRequest>("{}", "RawPredict").error(),
            "invalid responses request: must have input field");
}

TEST_F(VertexAi, RefusesBodiesWithoutHttpBodyAndBrokenFrames) {
  const auto error = [&](std::string_view method, std::string_view body) {
    return TestParse(parser, kService + std::string(method), body).error();
  };
  EXPECT_EQ(error("ChatCompletions", grpc_frame("")), "ChatCompletionsRequest has no HttpBody");
  EXPECT_EQ(error("StreamRawPredict", grpc_frame("")), "StreamRawPredictRequest has no HttpBody");
  EXPECT_EQ(error("RawPredict", grpc_frame("")), "RawPredictRequest has no HttpBody");
  EXPECT_EQ(error("RawPredict", "abc"), "invalid gRPC frame: expected at least 5 bytes for header, got 3");
  EXPECT_EQ(error("RawPredict", grpc_frame("", true)), "compressed gRPC payload is not supported");
  EXPECT_EQ(error("RawPredict", std::string("\x00\xff\xff\xff\xff\xaa\xbb\xcc\xdd", 9)),
            "incomplete gRPC payload: header indicates 4294967295 bytes, but only 4 bytes are available");
  EXPECT_THAT(error("RawPredict", grpc_frame("\xff\xff")), HasSubstr("RawPredictRequest"));
}

TEST_F(VertexAi, OtherMethodsPassUnread) {
  TestParse parsed(parser, kService + "Predict", "whatever");
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_TRUE(parsed->skip_response);
}

TEST_F(VertexAi, TheTableFindsItWhateverThePackageVersion) {
  const RequestParser* const parsers[] = {&parser};
  const ParserTable table(parsers);
  EXPECT_EQ(table.find(kService + "RawPredict"), &parser);
  EXPECT_EQ(table.find("/google.cloud.aiplatform.v1.PredictionService/ChatCompletions"), &parser);
  EXPECT_EQ(table.find("/PredictionService/StreamRawPredict"), &parser);
  EXPECT_EQ(table.find(kService + "Predict"), nullptr);
}

}  // namespace
}  // namespace penstock::protocol
