#include "protocol/grpc_response.h"

#include <google/cloud/aiplatform/v1beta1/prediction_service.pb.h>
#include <gtest/gtest.h>
#include <vllm/grpc/engine/vllm_engine.pb.h>

#include "protocol/grpc_testing.h"
#include "protocol/response_reader.h"

namespace penstock::protocol {
namespace {

std::string chunk(uint32_t id, uint32_t prompt, uint32_t completion) {
  vllm::grpc::engine::GenerateResponse response;
  response.mutable_chunk()->add_token_ids(id);
  response.mutable_chunk()->set_prompt_tokens(prompt);
  response.mutable_chunk()->set_completion_tokens(completion);
  return grpc_frame(response.SerializeAsString());
}

std::string http_body(std::string_view data) {
  google::cloud::aiplatform::v1beta1::RawHttpBody body;
  body.set_data(std::string(data));
  return grpc_frame(body.SerializeAsString());
}

// Feeds `bytes` in pieces of `step` and checks that they pass unchanged.
void read(ResponseReader& reader, std::string_view bytes, size_t step) {
  reader.begin(200, "application/grpc", {});
  EXPECT_FALSE(reader.rewrites());
  std::string passed;
  std::vector<std::string_view> out;
  for (size_t at = 0; at < bytes.size(); at += step) {
    out.clear();
    reader.feed(bytes.substr(at, step), out);
    for (const std::string_view part : out) passed += part;
  }
  out.clear();
  reader.finish(out);
  for (const std::string_view part : out) passed += part;
  EXPECT_EQ(passed, bytes);
}

TEST(GrpcResponse, VllmChunksAreCountedHoweverTheyAreSplit) {
  const std::string bytes = chunk(1, 0, 0) + chunk(2, 7, 1) + chunk(3, 7, 2);
  for (const size_t step : {size_t{1}, size_t{3}, size_t{8}, bytes.size()}) {
    ResponseReader reader({.api = ApiKind::kVllmGrpcGenerate, .served_model = "a", .client_model = "b"});
    read(reader, bytes, step);
    ASSERT_NE(reader.usage(), nullptr);
    EXPECT_EQ(reader.usage()->prompt_tokens, 7U);
    EXPECT_EQ(reader.usage()->completion_tokens, 2U);
    EXPECT_EQ(reader.usage()->total_tokens, 9U);
    EXPECT_EQ(reader.usage()->cached_tokens, 0U);
    EXPECT_EQ(reader.events(), 3U);
    EXPECT_TRUE(reader.first_token_seen());
  }
}

TEST(GrpcResponse, VllmCompletionAndEmbeddingCarryUsage) {
  vllm::grpc::engine::GenerateResponse response;
  response.mutable_complete()->set_prompt_tokens(5);
  response.mutable_complete()->set_completion_tokens(6);
  response.mutable_complete()->set_cached_tokens(4);
  ResponseReader complete({.api = ApiKind::kVllmGrpcGenerate});
  read(complete, grpc_frame(response.SerializeAsString()), 100);
  ASSERT_NE(complete.usage(), nullptr);
  EXPECT_EQ(complete.usage()->cached_tokens, 4U);
  EXPECT_EQ(complete.usage()->total_tokens, 11U);
  EXPECT_EQ(complete.events(), 0U);

  vllm::grpc::engine::EmbedResponse embedding;
  embedding.set_prompt_tokens(3);
  embedding.add_embedding(0.5F);
  ResponseReader embed({.api = ApiKind::kVllmGrpcEmbed});
  read(embed, grpc_frame(embedding.SerializeAsString()), 100);
  ASSERT_NE(embed.usage(), nullptr);
  EXPECT_EQ(embed.usage()->prompt_tokens, 3U);
}

TEST(GrpcResponse, VertexAnswersAreReadAsOpenAiJsonOrEvents) {
  const std::string json =
      http_body("{\n  \"usage\": {\"prompt_tokens\": 7, \"completion_tokens\": 10, \"total_tokens\": 17}\n}");
  for (const size_t step : {size_t{1}, size_t{1000}}) {
    ResponseReader reader({.api = ApiKind::kVertexChatCompletions});
    read(reader, json, step);
    ASSERT_NE(reader.usage(), nullptr);
    EXPECT_EQ(reader.usage()->total_tokens, 17U);
    EXPECT_EQ(reader.events(), 0U);
    EXPECT_TRUE(reader.first_token_seen());
  }
  const std::string events =
      http_body("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: {\"usage\":{\"prompt_") +
      http_body("tokens\":1,\"completion_tokens\":2,\"total_tokens\":3}}\n\ndata: [DONE]\n\n");
  ResponseReader reader({.api = ApiKind::kVertexChatCompletions});
  read(reader, events, 7);
  ASSERT_NE(reader.usage(), nullptr);
  EXPECT_EQ(reader.usage()->total_tokens, 3U);
  EXPECT_EQ(reader.events(), 2U);
}

TEST(GrpcResponse, CompressedHugeAndBrokenMessagesArePassedOver) {
  std::string bytes = grpc_frame("zzzz", true) + grpc_frame("\xff\xff\xff") + grpc_frame("") +
                      grpc_frame(std::string(GrpcResponse::kMaxMessageBytes + 1, 'x')) + chunk(1, 2, 3);
  ResponseReader reader({.api = ApiKind::kVllmGrpcGenerate});
  read(reader, bytes, 64 * 1024);
  ASSERT_NE(reader.usage(), nullptr);
  EXPECT_EQ(reader.usage()->total_tokens, 5U);
}

TEST(GrpcResponse, AnAnswerThatIsNotGrpcPassesUnread) {
  ResponseReader reader({.api = ApiKind::kVllmGrpcGenerate});
  reader.begin(503, "text/plain", {});
  std::vector<std::string_view> out;
  reader.feed("upstream", out);
  EXPECT_EQ(reader.usage(), nullptr);
  EXPECT_EQ(out.size(), 1U);
}

}  // namespace
}  // namespace penstock::protocol
