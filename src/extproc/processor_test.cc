#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "extproc/processor_testing.h"

namespace penstock::extproc {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(ProcessorTest, APostIsAnsweredWhenItsBodyIsComplete) {
  bench.add_endpoints(3);
  bench.scrape(1);
  Stream stream(bench);
  const auto answers = post(stream);
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_THAT(set_headers(header_mutation(answers[0])),
              (std::map<std::string, std::string>{{"x-gateway-destination-endpoint", "127.0.0.1:9001"},
                                                  {"content-length", std::to_string(kBody.size())}}));
  EXPECT_TRUE(answers[0].request_headers().response().clear_route_cache());
  EXPECT_EQ(answers[0]
                .dynamic_metadata()
                .fields()
                .at("envoy.lb")
                .struct_value()
                .fields()
                .at("x-gateway-destination-endpoint")
                .string_value(),
            "127.0.0.1:9001");
  EXPECT_EQ(streamed(answers), kBody + "|");
  EXPECT_EQ(bench.load(1), 1U);
  EXPECT_EQ(bench.core->bodies.held(), 0) << "the body is gone once it was handed on";

  const auto headers = stream.send(response_headers(engine_fields()));
  ASSERT_EQ(headers.size(), 1U);
  EXPECT_THAT(set_headers(headers[0].response_headers().response().header_mutation()),
              (std::map<std::string, std::string>{{"x-went-into-resp-headers", "true"}}));
  EXPECT_EQ(streamed(stream.send(response_body("{\"usage\":", false))), "{\"usage\":");
  EXPECT_EQ(streamed(stream.send(response_body("{\"prompt_tokens\":7}}", false))), "{\"prompt_tokens\":7}}");
  EXPECT_EQ(bench.load(1), 1U);
  EXPECT_EQ(streamed(stream.send(response_body("", true))), "|");
  EXPECT_EQ(ends("ok"), 1);
  EXPECT_THAT(log_of("r1"), HasSubstr("\"prompt_tokens\":7"));
  expect_at_rest();
  stream.end();  // Envoy resets
  EXPECT_EQ(ends("ok"), 1);
  expect_at_rest();
}

TEST_F(ProcessorTest, HoweverTheBodyIsSplitTheAnswersAreTheSame) {
  bench.add_endpoints(1);
  std::vector<std::string> reference;
  for (size_t step = 1; step <= kBody.size(); ++step) {
    Stream stream(bench);
    stream.send(full_duplex(request_headers(post_fields())));
    std::vector<pb::ProcessingResponse> answers;
    for (size_t at = 0; at < kBody.size(); at += step) {
      answers = stream.send(request_body(kBody.substr(at, step), at + step >= kBody.size()));
    }
    std::vector<std::string> bytes;
    for (const auto& answer : answers) bytes.push_back(answer.SerializeAsString());
    if (step == 1) reference = bytes;
    EXPECT_EQ(bytes, reference) << step;
    stream.end();
  }
  expect_at_rest();
}

TEST_F(ProcessorTest, TrailersEndABodyThatNeverHadAnEnd) {
  bench.add_endpoints(1);
  Stream stream(bench);
  stream.send(full_duplex(request_headers(post_fields())));
  EXPECT_THAT(stream.send(request_body(kBody, false)), IsEmpty());
  const auto answers = stream.send(request_trailers());
  ASSERT_EQ(answers.size(), 3U);
  EXPECT_TRUE(answers[0].has_request_headers());
  EXPECT_EQ(streamed(answers), kBody) << "the trailers are the end";
  EXPECT_TRUE(answers[2].has_request_trailers());
  stream.end();
  expect_at_rest();
}

TEST_F(ProcessorTest, BodiesGoBackInPiecesWithOneEnd) {
  for (const size_t size : {size_t{61999}, size_t{62000}, size_t{62001}, size_t{220000}, size_t{1000003}}) {
    DoorBench own;
    own.add_endpoints(1);
    Stream stream(own);
    std::string body = R"({"model":"m","prompt":")";
    body += std::string(size - body.size() - 2, 'x') + "\"}";
    stream.send(full_duplex(request_headers(post_fields())));
    for (size_t at = 0; at < size; at += 65536) stream.send(request_body(body.substr(at, 65536), false));
    auto answers = stream.send(request_body("", true));
    ASSERT_EQ(answers.size(), 1 + (size + 61999) / 62000);
    EXPECT_EQ(streamed(answers), body + "|");
    stream.send(response_headers(engine_fields()));
    answers = stream.send(response_body(body, true));
    EXPECT_EQ(answers.size(), (size + 61999) / 62000);
    EXPECT_EQ(streamed(answers), body + "|");
  }
}

TEST_F(ProcessorTest, ThePieceSizeIsASetting) {
  bench.options.piece_bytes = 10;
  bench.add_endpoints(1);
  Stream stream(bench);
  EXPECT_EQ(post(stream).size(), 1 + (kBody.size() + 9) / 10);
}

TEST_F(ProcessorTest, ARequestWithoutABodyIsRoutedAtOnceWhateverItsMethod) {
  bench.add_endpoints(2);
  for (const char* method : {"GET", "HEAD", "POST", "DELETE"}) {
    Stream stream(bench);
    const auto answers =
        stream.send(full_duplex(request_headers({{":method", method}, {":path", "/v1/models"}}, true)));
    ASSERT_EQ(answers.size(), 1U) << method;
    const auto set = set_headers(header_mutation(answers[0]));
    EXPECT_THAT(set.at("x-gateway-destination-endpoint"), HasSubstr("127.0.0.1:900"));
    EXPECT_EQ(set.at("x-request-id").size(), 36U);
    EXPECT_FALSE(set.contains("content-length"));
    stream.send(response_headers(engine_fields()));
    EXPECT_EQ(streamed(stream.send(response_body("{}", true))), "{}|");
  }
  expect_at_rest();
}

TEST_F(ProcessorTest, AHeaderOnlyRequestWithNobodyThereIs503AndSubsetsHoldForIt) {
  bench.add_endpoints(2);
  Stream stream(bench);
  auto request = full_duplex(request_headers({{":method", "GET"}, {":path", "/v1/models"}}, true));
  set_subset(request, {"127.0.0.1:9001"});
  EXPECT_EQ(destination(header_mutation(stream.send(request)[0])), "127.0.0.1:9001");
  Stream nobody(bench);
  auto other = full_duplex(request_headers({{":method", "GET"}, {":path", "/v1/models"}}, true));
  set_subset(other, {"10.0.0.9:1"});
  const auto answers = nobody.send(other);
  EXPECT_EQ(answers[0].immediate_response().status().code(), 503);
}

TEST_F(ProcessorTest, SseChunksPassOneByOneAndUsageIsReadAcrossSplits) {
  bench.add_endpoints(1);
  const std::string events =
      "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,"
      "\"completion_tokens\":3}}\n\ndata: [DONE]\n\n";
  for (size_t cut = 1; cut < events.size(); cut += 5) {
    Stream stream(bench);
    Fields fields = post_fields();
    fields.back().second = "cut-" + std::to_string(cut);
    post(stream, kBody, fields);
    stream.send(response_headers(engine_fields("text/event-stream")));
    EXPECT_EQ(streamed(stream.send(response_body(events.substr(0, cut), false))), events.substr(0, cut));
    EXPECT_EQ(streamed(stream.send(response_body(events.substr(cut), false))), events.substr(cut));
    EXPECT_EQ(streamed(stream.send(response_body("", true))), "|");
    EXPECT_THAT(log_of("cut-" + std::to_string(cut)), HasSubstr("\"output_tokens\":3"));
  }
  expect_at_rest();
}

TEST_F(ProcessorTest, ARewrittenNameIsRestoredInUnaryAndStreamedAnswersAcrossSplits) {
  bench.add_endpoints(1);
  rewrite_to("target");
  for (const std::string type : {"application/json", "text/event-stream"}) {
    const bool sse = type != "application/json";
    const std::string from =
        (sse ? "data: " : "") + std::string(R"({"id":"1","model": "target","x":1})") + (sse ? "\n\n" : "");
    const std::string want =
        (sse ? "data: " : "") + std::string(R"({"id":"1","model": "m","x":1})") + (sse ? "\n\n" : "");
    for (size_t cut = 0; cut <= from.size(); ++cut) {
      Stream stream(bench);
      Fields fields = post_fields();
      fields.push_back({"accept-encoding", "gzip"});
      const auto answers = post(stream, kBody, fields);
      const std::string sent = R"({"model":"target","prompt":"hello"})";
      EXPECT_EQ(streamed(answers), sent + "|");
      EXPECT_EQ(set_headers(header_mutation(answers[0])).at("content-length"), std::to_string(sent.size()));
      EXPECT_THAT(removed(header_mutation(answers[0])), ElementsAre("accept-encoding"));
      Fields response = engine_fields(type);
      response.push_back({"content-length", std::to_string(from.size())});
      response.push_back({"etag", "x"});
      const auto headers = stream.send(response_headers(response));
      EXPECT_THAT(removed(headers[0].response_headers().response().header_mutation()),
                  ElementsAre("content-length", "etag"));
      std::string got = streamed(stream.send(response_body(from.substr(0, cut), false)));
      got += streamed(stream.send(response_body(from.substr(cut), false)));
      got += streamed(stream.send(response_body("", true)));
      EXPECT_EQ(got, want + "|") << type << " cut at " << cut;
    }
  }
  expect_at_rest();
}

TEST_F(ProcessorTest, ResponseTrailersCompleteTheAnswer) {
  bench.add_endpoints(1);
  Stream stream(bench);
  post(stream);
  stream.send(response_headers(engine_fields("application/grpc")));
  EXPECT_EQ(streamed(stream.send(response_body("frame", false))), "frame");
  const auto answers = stream.send(response_trailers());
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_TRUE(answers[0].has_response_trailers());
  EXPECT_EQ(ends("ok"), 1);
  expect_at_rest();
  // After an end, too.
  Stream ended(bench);
  post(ended);
  ended.send(response_headers(engine_fields()));
  ended.send(response_body("{}", true));
  EXPECT_TRUE(ended.send(response_trailers())[0].has_response_trailers());
  EXPECT_EQ(ends("ok"), 2);
}

TEST_F(ProcessorTest, ResponseHeadersWithAnEndCompleteTheAnswer) {
  bench.add_endpoints(1);
  Stream stream(bench);
  post(stream);
  EXPECT_EQ(stream.send(response_headers(engine_fields("text/plain", "204"), true)).size(), 1U);
  EXPECT_EQ(ends("ok"), 1);
  expect_at_rest();
}

TEST_F(ProcessorTest, ControlHeadersOfAClientAreRemovedAndOnlyWhatChangesIsSet) {
  bench.add_endpoints(1);
  Stream stream(bench);
  Fields fields = post_fields();
  for (const char* name : {"x-user-data", "x-llm-d-inference-objective", "x-gateway-destination-endpoint",
                           "x-prefiller-host-port", "x-prefiller-host-port", "x-gateway-model-name"}) {
    fields.push_back({name, "1.1.1.1:666"});
  }
  const auto answers = post(stream, kBody, fields);
  EXPECT_THAT(set_headers(header_mutation(answers[0])),
              (std::map<std::string, std::string>{{"x-gateway-destination-endpoint", "127.0.0.1:9000"},
                                                  {"content-length", std::to_string(kBody.size())}}));
  EXPECT_THAT(removed(header_mutation(answers[0])),
              ElementsAre("x-llm-d-inference-objective", "x-prefiller-host-port"));
}

TEST_F(ProcessorTest, AnAbsentEmptyOrUnusableRequestIdIsReplaced) {
  bench.add_endpoints(1);
  for (const std::string id : {"", "a b", "a\r\nb", "\x80\xff"}) {
    Stream stream(bench);
    Fields fields = post_fields();
    fields.back().second = id;
    const auto set = set_headers(header_mutation(post(stream, kBody, fields)[0]));
    ASSERT_TRUE(set.contains("x-request-id"));
    EXPECT_EQ(set.at("x-request-id").size(), 36U);
    EXPECT_NE(log_of(set.at("x-request-id")), "");
  }
}

TEST_F(ProcessorTest, NothingAClientSaysGetsIntoAHeaderValue) {
  bench.add_endpoints(1);
  rewrite_to("a\r\nb\x01");
  Stream stream(bench);
  Fields fields = post_fields();
  fields.push_back({"x-llm-d-inference-fairness-id", std::string("x\r\ny\0z", 6)});
  fields.push_back({"X-Mixed-Case", "v"});
  const auto answers = post(stream, kBody, fields);
  for (const auto& [name, value] : set_headers(header_mutation(answers[0]))) {
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz-"), std::string::npos) << name;
    for (const char c : value) EXPECT_TRUE(c >= ' ' && c <= '~') << value;
  }
}

TEST_F(ProcessorTest, ThePathMayComeFromOtherHeadersAndLosesItsQuery) {
  bench.add_endpoints(1);
  const auto path_of = [&](Fields fields) {
    Stream stream(bench);
    fields.push_back({"x-request-id", "p"});
    stream.send(full_duplex(request_headers(fields, true)));
    const std::string path(stream.processor().waits_for_request() ? "" : "decided");
    return path;
  };
  EXPECT_EQ(path_of({{"x-original-path", "/v1/x?y"}}), "decided");
  EXPECT_EQ(path_of({{"x-forwarded-path", "/v1/x"}}), "decided");
  EXPECT_EQ(path_of({}), "decided");
}

TEST_F(ProcessorTest, ScoresAreToldOnDemand) {
  bench.options.emit_scores = true;
  bench.add_endpoints(3);
  Stream stream(bench);
  const auto answers = post(stream);
  const auto& lb = answers[0].dynamic_metadata().fields().at("envoy.lb").struct_value().fields();
  const auto& scores = lb.at("x-gateway-destination-endpoint-scores").struct_value().fields();
  EXPECT_EQ(scores.size(), 3U);
  EXPECT_EQ(scores.at("127.0.0.1:9000").number_value(), 2.0);
}

TEST_F(ProcessorTest, TheSubsetOfTheLastMessageThatHasOneHolds) {
  bench.add_endpoints(3);
  Stream stream(bench);
  auto headers = full_duplex(request_headers(post_fields()));
  set_subset(headers, {"127.0.0.1:9001"});
  stream.send(headers);
  auto body = request_body(kBody, true);
  set_subset(body, {"127.0.0.1:9002"});
  EXPECT_EQ(destination(header_mutation(stream.send(body)[0])), "127.0.0.1:9002");
}

TEST_F(ProcessorTest, ASubsetOfNobodyIs503AndATextWithCommasIsAList) {
  bench.add_endpoints(3);
  const auto with = [&](const std::vector<std::string>& entries, const char* text) {
    Stream stream(bench);
    stream.send(full_duplex(request_headers(post_fields())));
    auto body = request_body(kBody, true);
    if (text == nullptr) {
      set_subset(body, entries);
    } else {
      (*(*body.mutable_metadata_context()->mutable_filter_metadata())["envoy.lb.subset_hint"]
            .mutable_fields())["x-gateway-destination-endpoint-subset"]
          .set_string_value(text);
    }
    const auto answers = stream.send(body);
    if (answers[0].has_immediate_response())
      return std::to_string(answers[0].immediate_response().status().code());
    return destination(header_mutation(answers[0]));
  };
  EXPECT_EQ(with({"192.168.1.99:8000"}, nullptr), "503");
  EXPECT_EQ(with({}, nullptr), "503");
  EXPECT_EQ(with({}, ""), "503");
  EXPECT_EQ(with({}, "10.0.0.1:1, 127.0.0.1:9002"), "127.0.0.1:9002");
  bench.options.subset_filter = false;
  EXPECT_EQ(bench.core->options.subset_filter, true) << "options are the core's";
  bench.core->options.subset_filter = false;
  EXPECT_EQ(with({"192.168.1.99:8000"}, nullptr), "127.0.0.1:9000");
}

TEST_F(ProcessorTest, AnAnswersBytesPassAsViewsOfTheMessage) {
  bench.add_endpoints(1);
  for (const char* type : {"text/event-stream", "application/json"}) {
    Processor processor(bench.part());
    Answers answers;
    for (const auto& request : {full_duplex(request_headers(post_fields())), request_body(kBody, true),
                                response_headers(engine_fields(type))}) {
      answers.clear();
      const std::string bytes = request.SerializeAsString();
      processor.message(bytes, answers);
      processor.sent();
    }
    answers.clear();
    const std::string chunk = "data: {\"choices\":[{\"text\":\"" + std::string(500, 'a') + "\"}]}\n\n";
    const std::string bytes = response_body(chunk, false).SerializeAsString();
    processor.message(bytes, answers);
    size_t viewed = 0;
    for (const auto message : answers.messages()) {
      for (const std::string_view piece : message) {
        if (piece.data() >= bytes.data() && piece.data() + piece.size() <= bytes.data() + bytes.size())
          viewed += piece.size();
      }
    }
    EXPECT_EQ(viewed, chunk.size()) << type;
    processor.sent();
    processor.ended();
  }
}

}  // namespace
}  // namespace penstock::extproc
