#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "extproc/processor_testing.h"

namespace penstock::extproc {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Next = Processor::Next;

TEST_F(ProcessorTest, RefusalsAreTheReferencesTextsAndReasons) {
  struct Row {
    const char* body;
    size_t endpoints;
    int status;
    const char* text;
    const char* reason;
  };
  const Row rows[] = {
      {"no healthy upstream", 1, 400,
       "inference error: BadRequest - error unmarshaling request bodyMap: not an object", ""},
      {"", 1, 400, "inference error: BadRequest - error unmarshaling request bodyMap: not an object", ""},
      {R"({"prompt":"hello world"})", 0, 400, "inference error: BadRequest - model not found in request body",
       ""},
      {R"({"model":"m"})", 0, 503,
       "inference error: ServiceUnavailable - failed to find endpoint candidates for serving the request",
       "rejected-no-endpoints"},
  };
  for (const Row& row : rows) {
    DoorBench own;
    own.add_endpoints(row.endpoints);
    Stream stream(own);
    stream.send(full_duplex(request_headers(post_fields())));
    const auto answers = stream.send(request_body(row.body, true));
    ASSERT_EQ(answers.size(), 1U);
    const auto& refusal = answers[0].immediate_response();
    EXPECT_EQ(refusal.status().code(), row.status);
    EXPECT_EQ(refusal.body(), row.text);
    EXPECT_EQ(refusal.headers().set_headers_size(), *row.reason == '\0' ? 0 : 1);
    if (*row.reason != '\0') {
      EXPECT_EQ(refusal.headers().set_headers(0).header().raw_value(), row.reason);
    }
    EXPECT_EQ(stream.next, Next::kClose);
    EXPECT_EQ(own.core->active.load(), 0);
    EXPECT_EQ(own.all_load(), 0U);
  }
}

TEST_F(ProcessorTest, RefusalsMayBeJsonInTheClientsShape) {
  bench.options.json_errors = true;
  Stream stream(bench);
  stream.send(full_duplex(request_headers(post_fields())));
  const auto answers = stream.send(request_body(R"({"model":"m"})", true));
  const auto& refusal = answers[0].immediate_response();
  EXPECT_THAT(refusal.body(), HasSubstr("\"type\":\"service_unavailable_error\""));
  EXPECT_THAT(refusal.body(), HasSubstr("\"request_id\":\"r1\""));
  const auto set = set_headers(refusal.headers());
  EXPECT_EQ(set.at("content-type"), "application/json");
  EXPECT_EQ(set.at("x-llm-d-request-dropped-reason"), "rejected-no-endpoints");
}

TEST_F(ProcessorTest, BodiesHeadersAndTheirSumHaveLimits) {
  bench.options.body_bytes = 100;
  bench.options.header_bytes = 300;
  bench.options.buffered_bytes = 150;
  bench.add_endpoints(1);
  {
    Stream stream(bench);
    stream.send(full_duplex(request_headers(post_fields())));
    EXPECT_THAT(stream.send(request_body(std::string(100, 'x'), false)), IsEmpty());
    const auto answers = stream.send(request_body("x", false));
    EXPECT_EQ(answers[0].immediate_response().status().code(), 413);
    EXPECT_THAT(answers[0].immediate_response().body(), HasSubstr("limits.bodyBytes"));
    EXPECT_EQ(stream.next, Next::kClose);
  }
  expect_at_rest();
  {
    Stream first(bench);
    first.send(full_duplex(request_headers(post_fields())));
    first.send(request_body(std::string(100, 'x'), false));
    Stream second(bench);
    second.send(full_duplex(request_headers(post_fields())));
    const auto answers = second.send(request_body(std::string(60, 'x'), false));
    EXPECT_EQ(answers[0].immediate_response().status().code(), 503);
    EXPECT_THAT(answers[0].immediate_response().body(), HasSubstr("bufferedBytes"));
  }
  expect_at_rest();
  {
    Stream stream(bench);
    Fields fields = post_fields();
    fields.push_back({"cookie", std::string(300, 'c')});
    const auto answers = stream.send(full_duplex(request_headers(fields)));
    EXPECT_EQ(answers[0].immediate_response().status().code(), 431);
  }
  expect_at_rest();
}

TEST_F(ProcessorTest, MoreStreamsThanTheLimitAreRefused) {
  bench.options.streams = 0;
  bench.add_endpoints(1);
  bench.part();
  bench.core->open = 1;
  Stream stream(bench);
  const auto answers = stream.send(full_duplex(request_headers(post_fields())));
  EXPECT_EQ(answers[0].immediate_response().status().code(), 503);
}

TEST_F(ProcessorTest, ABodyThatDoesNotComeIsA408OfOurOwn) {
  bench.add_endpoints(1);
  Stream stream(bench);
  stream.send(full_duplex(request_headers(post_fields())));
  stream.send(request_body("{", false));
  EXPECT_TRUE(stream.processor().waits_for_request());
  bench.clock.advance(std::chrono::seconds(61));
  const auto answers = stream.overdue();
  EXPECT_EQ(answers[0].immediate_response().status().code(), 408);
  EXPECT_EQ(stream.next, Next::kClose);
  EXPECT_EQ(bench.metrics.fallbacks.with({"pool", "over_time"}).value(), 1U);
  EXPECT_THAT(log_of("r1"), HasSubstr("over_time"));
  stream.end();
  expect_at_rest();
  Stream silent(bench);
  EXPECT_THAT(silent.overdue(), IsEmpty());
  EXPECT_EQ(silent.next, Next::kFail);
  EXPECT_EQ(silent.processor().failure().code, io::GrpcCode::kDeadlineExceeded);
}

TEST_F(ProcessorTest, ABodyThatDripsHasADeadlineForTheWhole) {
  bench.options.body_timeout = std::chrono::seconds(60);
  bench.options.body_total_timeout = std::chrono::seconds(100);
  bench.add_endpoints(1);
  Stream waited(bench);
  EXPECT_EQ(waited.processor().patience(), std::chrono::seconds(60));
  waited.send(full_duplex(request_headers(post_fields())));
  bench.clock.advance(std::chrono::seconds(50));
  waited.send(request_body("{", false));
  EXPECT_EQ(waited.processor().patience(), std::chrono::seconds(50));
  bench.clock.advance(std::chrono::seconds(50));
  EXPECT_EQ(waited.overdue()[0].immediate_response().status().code(), 408);
  EXPECT_THAT(log_of("r1"), HasSubstr("over_time"));
  waited.end();
  // One that is always there is never waited for.
  Stream busy(bench);
  busy.send(full_duplex(request_headers(post_fields())));
  bench.clock.advance(std::chrono::seconds(100));
  EXPECT_EQ(busy.send(request_body("{", false))[0].immediate_response().status().code(), 408);
  busy.end();
  expect_at_rest();
  // Decided: nothing is owed any more.
  Stream decided(bench);
  post(decided);
  EXPECT_EQ(decided.processor().patience(), Duration::zero());
  decided.end();
}

TEST_F(ProcessorTest, MessagesOutOfOrderEndTheStreamWithAStatus) {
  using Message = pb::ProcessingRequest;
  const Message headers = full_duplex(request_headers(post_fields()));
  const Message body = request_body(kBody, true);
  const Message response = response_headers(engine_fields());
  const Message chunk = response_body("{}", true);
  const std::vector<std::vector<Message>> scripts{
      {headers, headers},
      {headers, body, headers},
      {request_body(kBody, true)},
      {request_trailers()},
      {headers, body, body},
      {headers, request_trailers(), request_trailers()},
      {response_body("x", false)},
      {response_trailers()},
      {headers, body, response, response},
      {headers, body, chunk},
      {headers, body, response, chunk, chunk},
      {headers, response_body("x", false)},
      {response, headers},
  };
  for (size_t i = 0; i < scripts.size(); ++i) {
    bench.add_endpoints(bench.endpoints.empty() ? 1 : 0);
    Stream stream(bench);
    for (size_t at = 0; at < scripts[i].size() && stream.next == Next::kRead; ++at) {
      stream.send(scripts[i][at]);
      // Trailers without a body are refused by the parser before the second ones come.
      if (stream.next == Next::kClose) break;
      EXPECT_EQ(stream.next == Next::kFail, at + 1 == scripts[i].size())
          << "script " << i << " message " << at;
    }
    if (stream.next == Next::kFail) {
      EXPECT_EQ(stream.processor().failure().code, io::GrpcCode::kInvalidArgument) << i;
    }
    stream.end();
    expect_at_rest();
  }
}

TEST_F(ProcessorTest, WhatIsNoProtobufOrSaysNothingHasADefinedEnd) {
  bench.add_endpoints(1);
  for (const std::string& bytes :
       {std::string("garbage"), std::string("\x12\x05xx"), std::string(1, '\0'),
        std::string("\x12\x03\x0a\x01\xff", 5), std::string("\x22\x02\x0a\x09", 4)}) {
    Stream stream(bench);
    stream.send_bytes(bytes);
    EXPECT_EQ(stream.next, Next::kFail);
    EXPECT_EQ(stream.processor().failure().code, io::GrpcCode::kInvalidArgument);
    stream.end();
  }
  Stream quiet(bench);
  EXPECT_THAT(quiet.send_bytes(""), IsEmpty());
  EXPECT_EQ(quiet.next, Next::kRead);
  EXPECT_EQ(post(quiet).size(), 2U);
  quiet.end();
  expect_at_rest();
}

TEST_F(ProcessorTest, ObservationAndUnknownModesAreRefusedInWords) {
  bench.add_endpoints(1);
  Stream watching(bench);
  auto headers = full_duplex(request_headers(post_fields()));
  headers.set_observability_mode(true);
  EXPECT_THAT(watching.send(headers), IsEmpty());
  EXPECT_EQ(watching.processor().failure().code, io::GrpcCode::kFailedPrecondition);
  Stream grpc(bench);
  headers = request_headers(post_fields());
  headers.mutable_protocol_config()->set_request_body_mode(static_cast<Mode::BodySendMode>(5));
  grpc.send(headers);
  EXPECT_EQ(grpc.processor().failure().code, io::GrpcCode::kUnimplemented);
  EXPECT_THAT(grpc.processor().failure().message, HasSubstr("(5, 0)"));
}

TEST_F(ProcessorTest, TenThousandExchangesLeaveNothingBehind) {
  bench.add_endpoints(3);
  for (int i = 0; i < 10000; ++i) {
    Stream stream(bench);
    stream.send(full_duplex(request_headers(post_fields())));
    stream.send(request_body(kBody, i % 3 != 0));
    if (i % 3 == 0) stream.send(request_trailers());
    if (i % 5 == 0) continue;  // gone
    stream.send(response_headers(engine_fields()));
    stream.send(response_body("{}", i % 2 == 0));
  }
  expect_at_rest();
  EXPECT_LE(bench.part().part.deciding.free.size(), 64U);
}

}  // namespace
}  // namespace penstock::extproc
