#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "extproc/processor_testing.h"

namespace penstock::extproc {
namespace {

using namespace testing;
using ::testing::IsEmpty;

TEST_F(ProcessorTest, ABufferedBodyIsAnsweredOnceWithTheChoice) {
  for (const auto mode : {Mode::BUFFERED, Mode::BUFFERED_PARTIAL}) {
    bench.add_endpoints(1);
    rewrite_to("target");
    Stream stream(bench);
    auto answers = stream.send(with_modes(request_headers(post_fields()), mode, mode));
    ASSERT_EQ(answers.size(), 1U);
    EXPECT_FALSE(answers[0].request_headers().has_response());
    answers = stream.send(request_body(kBody, true));
    ASSERT_EQ(answers.size(), 1U);
    const auto& common = answers[0].request_body().response();
    const std::string sent = R"({"model":"target","prompt":"hello"})";
    EXPECT_EQ(common.body_mutation().body(), sent);
    EXPECT_EQ(destination(common.header_mutation()), "127.0.0.1:9000");
    EXPECT_EQ(set_headers(common.header_mutation()).at("content-length"), std::to_string(sent.size()));
    EXPECT_TRUE(common.clear_route_cache());
    EXPECT_FALSE(answers[0].dynamic_metadata().fields().empty());
    stream.send(response_headers(engine_fields()));
    answers = stream.send(response_body(R"({"model":"target"})", true));
    ASSERT_EQ(answers.size(), 1U);
    EXPECT_EQ(answers[0].response_body().response().body_mutation().body(), R"({"model":"m"})");
    expect_at_rest();
  }
  EXPECT_EQ(ends("ok"), 2);
}

TEST_F(ProcessorTest, ABufferedBodyThatStaysIsNotSentBack) {
  bench.add_endpoints(1);
  Stream stream(bench);
  stream.send(with_modes(request_headers(post_fields()), Mode::BUFFERED, Mode::BUFFERED));
  auto answers = stream.send(request_body(kBody, false));  // trailers follow
  EXPECT_FALSE(answers[0].request_body().response().has_body_mutation());
  EXPECT_FALSE(
      set_headers(answers[0].request_body().response().header_mutation()).contains("content-length"));
  answers = stream.send(request_trailers());
  EXPECT_TRUE(answers[0].has_request_trailers());
  stream.send(response_headers(engine_fields()));
  answers = stream.send(response_body("{}", true));
  EXPECT_FALSE(answers[0].response_body().has_response());
  EXPECT_EQ(ends("ok"), 1);
  expect_at_rest();
}

TEST_F(ProcessorTest, TheBeginningOfATooLargeBodyIsRoutedUnparsed) {
  bench.add_endpoints(1);
  Stream stream(bench);
  stream.send(with_modes(request_headers(post_fields()), Mode::BUFFERED_PARTIAL, Mode::NONE));
  const auto answers = stream.send(request_body("[cut", false));
  EXPECT_EQ(destination(answers[0].request_body().response().header_mutation()), "127.0.0.1:9000");
  EXPECT_EQ(bench.core->metrics.unparsed.with({"partial"}).value(), 1U);
  stream.end();
  EXPECT_EQ(ends("unobserved"), 1);
  EXPECT_EQ(bench.core->credits.load(), 1) << "its answer is on its way all the same";
  bench.part().credits.clear();
  expect_at_rest();
}

TEST_F(ProcessorTest, AReadableBodyThatIsRefusedIsNotRoutedUnparsed) {
  bench.add_endpoints(1);
  Stream stream(bench);
  stream.send(with_modes(request_headers(post_fields()), Mode::BUFFERED_PARTIAL, Mode::NONE));
  const auto answers = stream.send(request_body("{}", false));
  EXPECT_EQ(answers[0].immediate_response().status().code(), 400);
  EXPECT_EQ(bench.core->metrics.unparsed.with({"partial"}).value(), 0U);
  stream.end();
  expect_at_rest();
}

TEST_F(ProcessorTest, StreamedChunksThatDoNotWaitHaveOneAnswerEach) {
  bench.add_endpoints(1);
  rewrite_to("target");
  Stream stream(bench);
  EXPECT_THAT(stream.send(with_modes(request_headers(post_fields()), Mode::STREAMED, Mode::STREAMED, true)),
              IsEmpty());
  EXPECT_THAT(stream.send(request_body(kBody.substr(0, 10), false)), IsEmpty());
  EXPECT_THAT(stream.send(request_body(kBody.substr(10), false)), IsEmpty());
  auto answers = stream.send(request_body("", true));
  ASSERT_EQ(answers.size(), 4U);
  EXPECT_EQ(destination(header_mutation(answers[0])), "127.0.0.1:9000");
  EXPECT_EQ(answers[1].request_body().response().body_mutation().body(),
            R"({"model":"target","prompt":"hello"})");
  EXPECT_TRUE(answers[2].request_body().response().body_mutation().clear_body());
  EXPECT_TRUE(answers[3].request_body().response().body_mutation().clear_body());
  stream.send(response_headers(engine_fields()));
  std::string got;
  for (const char* piece : {"{\"mod", "el\":\"tar", "get\"}", ""}) {
    answers = stream.send(response_body(piece, *piece == '\0'));
    ASSERT_EQ(answers.size(), 1U);
    got += answers[0].response_body().response().body_mutation().body();
  }
  EXPECT_EQ(got, R"({"model":"m"})");
  EXPECT_EQ(ends("ok"), 1);
  expect_at_rest();
}

TEST_F(ProcessorTest, AStreamedBodyThatIsTooLargeToHoldBackIsRoutedUnparsed) {
  bench.add_endpoints(1);
  Stream stream(bench);
  stream.send(with_modes(request_headers(post_fields()), Mode::STREAMED, Mode::STREAMED, true));
  std::vector<pb::ProcessingResponse> answers;
  size_t sent = 0;
  while (answers.empty()) {
    answers = stream.send(request_body(std::string(100000, 'x'), false));
    ++sent;
  }
  EXPECT_EQ(sent, 6U);
  ASSERT_EQ(answers.size(), 1 + sent);
  EXPECT_EQ(destination(header_mutation(answers[0])), "127.0.0.1:9000");
  for (size_t i = 1; i < answers.size(); ++i) EXPECT_FALSE(answers[i].request_body().has_response());
  EXPECT_EQ(stream.send(request_body("y", true)).size(), 1U);
  EXPECT_EQ(bench.core->metrics.unparsed.with({"partial"}).value(), 1U);
  stream.end();
  expect_at_rest();
}

TEST_F(ProcessorTest, WithoutABodyBeforeTheAnswerTheHeadersDecide) {
  bench.add_endpoints(1);
  for (const auto mode : {Mode::STREAMED, Mode::NONE}) {
    Stream stream(bench);
    auto answers = stream.send(with_modes(request_headers(post_fields()), mode, mode));
    ASSERT_EQ(answers.size(), 1U);
    EXPECT_EQ(destination(header_mutation(answers[0])), "127.0.0.1:9000");
    if (mode == Mode::STREAMED) {
      for (const bool end : {false, true}) {
        answers = stream.send(request_body("x", end));
        ASSERT_EQ(answers.size(), 1U);
        EXPECT_FALSE(answers[0].request_body().has_response());
      }
    }
    answers = stream.send(response_headers(engine_fields()));
    EXPECT_TRUE(answers[0].has_response_headers());
    if (mode == Mode::STREAMED) {
      EXPECT_FALSE(stream.send(response_body("{}", true))[0].response_body().has_response());
    }
    stream.end();
  }
  EXPECT_EQ(ends("ok"), 2);
  EXPECT_EQ(bench.core->metrics.unparsed.with({"mode"}).value(), 2U);
  expect_at_rest();
}

TEST_F(ProcessorTest, AStreamedAnswerMayBeginWhileTheRequestStillPasses) {
  bench.add_endpoints(1);
  Stream stream(bench);
  stream.send(with_modes(request_headers(post_fields()), Mode::STREAMED, Mode::STREAMED));
  stream.send(request_body("x", false));
  stream.send(response_headers(engine_fields()));
  EXPECT_TRUE(stream.send(request_body("y", true))[0].has_request_body());
  stream.send(response_body("{}", true));
  EXPECT_EQ(ends("ok"), 1);
}

TEST_F(ProcessorTest, WithoutAProtocolConfigBodiesAreFullDuplexAndAnEmptyOneIsNone) {
  bench.add_endpoints(1);
  Stream old(bench);
  EXPECT_THAT(old.send(request_headers(post_fields())), IsEmpty());
  EXPECT_EQ(streamed(old.send(request_body(kBody, true))), kBody + "|");
  Stream none(bench);
  auto headers = request_headers(post_fields());
  headers.mutable_protocol_config();
  EXPECT_EQ(none.send(headers).size(), 1U);
}

}  // namespace
}  // namespace penstock::extproc
