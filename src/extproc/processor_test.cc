#include "extproc/processor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "extproc/testing.h"

namespace penstock::extproc {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Next = Processor::Next;

const std::string kBody = R"({"model":"m","prompt":"hello"})";

std::string destination(const pb::HeaderMutation& mutation) {
  for (const auto& option : mutation.set_headers()) {
    if (option.header().key() == "x-gateway-destination-endpoint") return option.header().raw_value();
  }
  return "";
}
std::map<std::string, std::string> set_headers(const pb::HeaderMutation& mutation) {
  std::map<std::string, std::string> out;
  for (const auto& option : mutation.set_headers()) {
    EXPECT_FALSE(option.has_append());
    EXPECT_TRUE(option.header().value().empty());
    out[option.header().key()] = option.header().raw_value();
  }
  return out;
}
std::vector<std::string> removed(const pb::HeaderMutation& mutation) {
  return {mutation.remove_headers().begin(), mutation.remove_headers().end()};
}
const pb::HeaderMutation& header_mutation(const pb::ProcessingResponse& response) {
  return response.request_headers().response().header_mutation();
}
// The streamed pieces of one side joined, the end flag written as '|'.
std::string streamed(const std::vector<pb::ProcessingResponse>& answers) {
  std::string out;
  for (const auto& answer : answers) {
    const auto& body = answer.has_request_body() ? answer.request_body() : answer.response_body();
    if (!answer.has_request_body() && !answer.has_response_body()) continue;
    const auto& piece = body.response().body_mutation().streamed_response();
    out += piece.body();
    if (piece.end_of_stream()) out += '|';
  }
  return out;
}

class ProcessorTest : public ::testing::Test {
 protected:
  void rewrite_to(const std::string& target) {
    director::RewriteObject object;
    object.name = "rewrite";
    object.rules.push_back({{}, true, {{target, {}}}});
    auto rules = std::make_shared<director::PoolRules>();
    rules->rewrites = director::RewriteTable({object});
    bench.pool.rules.publish(rules);
  }
  // Headers and a whole body, as an HTTP/1.1 client's come.
  std::vector<pb::ProcessingResponse> post(Stream& stream, const std::string& body = kBody,
                                           Fields fields = post_fields()) {
    EXPECT_THAT(stream.send(full_duplex(request_headers(fields))), IsEmpty());
    if (!body.empty()) {
      EXPECT_THAT(stream.send(request_body(body, false)), IsEmpty());
    }
    return stream.send(request_body("", true));
  }
  double ends(std::string_view reason) {
    return static_cast<double>(bench.core->metrics.ends.with({reason}).value());
  }
  // Nothing is held any more.
  void expect_at_rest() {
    EXPECT_EQ(bench.all_load(), 0U);
    EXPECT_EQ(bench.core->bodies.held(), 0);
    EXPECT_EQ(bench.core->active.load(), 0);
    EXPECT_EQ(bench.core->undecided.load(), 0);
  }
  std::string log_of(const std::string& id) { return bench.pool.log.find_json(id).value_or(""); }

  DoorBench bench;
};

// --- full duplex ---

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

// --- headers ---

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

// --- subset ---

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

// --- refusals ---

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

// --- how streams end ---

TEST_F(ProcessorTest, CompletionIsReadFromTheAnswerNotFromTheStreamsEnd) {
  bench.add_endpoints(1);
  {
    Stream before(bench);
    before.send(full_duplex(request_headers(post_fields())));
    before.send(request_body("{", false));
    before.end();
    EXPECT_EQ(ends("client_disconnect"), 1);
    expect_at_rest();
  }
  {
    Stream decided(bench);
    post(decided);
    EXPECT_EQ(bench.all_load(), 1U);
    decided.end();
    EXPECT_EQ(ends("client_disconnect"), 2);
    expect_at_rest();
  }
  {
    Stream answering(bench);
    post(answering);
    answering.send(response_headers(engine_fields()));
    answering.send(response_body("{", false));
    answering.end();
    EXPECT_EQ(ends("client_disconnect"), 3);
    EXPECT_THAT(log_of("r1"), HasSubstr("\"status\":200"));
    expect_at_rest();
  }
  bench.core->stopping = true;
  Stream stopped(bench);
  post(stopped);
  stopped.end();
  Stream cut(bench);
  post(cut);
  cut.end(Error{ErrorCode::kIo, "lost"});
  EXPECT_EQ(ends("shutdown"), 2);
  expect_at_rest();
}

TEST_F(ProcessorTest, AStreamThatBreaksByTheDataPlanesFaultIsNoDisconnect) {
  bench.add_endpoints(1);
  bench.part();
  struct Row {
    ErrorCode code;
    const char* reason;
  };
  for (const Row& row :
       {Row{ErrorCode::kInternal, "protocol_error"}, Row{ErrorCode::kPayloadTooLarge, "limit_message"},
        Row{ErrorCode::kRequestTimeout, "deadline"}, Row{ErrorCode::kIo, "connection_lost"},
        Row{ErrorCode::kCancelled, "client_disconnect"},
        Row{ErrorCode::kClientClosed, "client_disconnect"}}) {
    const double before = ends(row.reason);
    Stream undecided(bench);
    undecided.send(full_duplex(request_headers(post_fields())));
    undecided.end(Error{row.code, "broken"});
    Stream decided(bench);
    post(decided);
    decided.end(Error{row.code, "broken"});
    EXPECT_EQ(ends(row.reason), before + 2) << row.reason;
    expect_at_rest();
  }
}

TEST_F(ProcessorTest, TheDataPlanesOwnRepliesToGrpcClientsAreNotBookedOnTheEngine) {
  bench.watch_health();
  bench.add_endpoints(1);
  const Fields local{{":status", "200"},
                     {"content-type", "application/grpc"},
                     {"grpc-status", "14"},
                     {"grpc-message", "no healthy upstream"}};
  Fields late = local;
  late[2].second = "4";
  for (const Fields& fields : {local, late}) {
    Stream stream(bench);
    post(stream);
    EXPECT_EQ(stream.send(response_headers(fields, true)).size(), 1U);
  }
  EXPECT_EQ(ends("envoy_reply"), 2);
  EXPECT_EQ(bench.core->metrics.local_replies.with({"200"}).value(), 2U);
  // An answer that goes on, and one with what a server adds, are the engine's.
  Fields served = local;
  served.push_back({"server", "grpc"});
  for (const auto& headers : {response_headers(local, false), response_headers(served, true)}) {
    Stream stream(bench);
    post(stream);
    stream.send(headers);
    stream.end();
  }
  EXPECT_EQ(ends("envoy_reply"), 2);
  expect_at_rest();
}

TEST_F(ProcessorTest, TheDataPlanesOwnErrorRepliesAreNotBookedOnTheEngine) {
  bench.watch_health();
  bench.add_endpoints(1);
  for (int i = 0; i < 5; ++i) {
    Stream stream(bench);
    post(stream);
    const Fields local{{":status", "503"}, {"content-length", "19"}, {"content-type", "text/plain"}};
    EXPECT_EQ(stream.send(response_headers(local)).size(), 1U);
    EXPECT_EQ(streamed(stream.send(response_body("no healthy upstream", true))), "no healthy upstream|");
    EXPECT_EQ(ends("envoy_reply"), i + 1);
    expect_at_rest();
  }
  EXPECT_EQ(bench.core->metrics.local_replies.with({"503"}).value(), 5U);
  EXPECT_EQ(bench.metrics.errors.with({"m", "m", "default-flow", "0", "503"}).value(), 0U);
  EXPECT_EQ(bench.endpoints[0]->live->consecutive_failures.load(), 0U);
  // One without a body, such as a route that is gone after the decision.
  Stream bare(bench);
  post(bare);
  EXPECT_EQ(bare.send(response_headers({{":status", "404"}}, true)).size(), 1U);
  EXPECT_EQ(bench.core->metrics.local_replies.with({"404"}).value(), 1U);
  EXPECT_EQ(bench.metrics.errors.with({"m", "m", "default-flow", "0", "404"}).value(), 0U);
  // An engine's own 503 has what a server adds, or goes on after its headers.
  for (int i = 0; i < 3; ++i) {
    Stream stream(bench);
    post(stream);
    stream.send(response_headers(i == 0 ? Fields{{":status", "503"}} : engine_fields("text/plain", "503")));
    stream.send(response_body("busy", true));
  }
  EXPECT_EQ(bench.metrics.errors.with({"m", "m", "default-flow", "0", "503"}).value(), 3U);
  EXPECT_NE(bench.endpoints[0]->live->ejected_until_ns.load(), 0);
  EXPECT_EQ(bench.metrics.ejections.with({"pool", "status"}).value(), 1U);
}

TEST_F(ProcessorTest, AReplyBeforeTheRequestIsCompleteLeavesItUndecided) {
  bench.add_endpoints(1);
  Stream stream(bench);
  stream.send(full_duplex(request_headers(post_fields())));
  stream.send(request_body("{", false));
  const Fields local{{":status", "408"}, {"content-type", "text/plain"}};
  EXPECT_EQ(stream.send(response_headers(local)).size(), 1U);
  EXPECT_FALSE(stream.processor().waits_for_request());
  EXPECT_THAT(stream.send(request_body("}", true)), IsEmpty());
  EXPECT_EQ(streamed(stream.send(response_body("stream timeout", true))), "stream timeout|");
  EXPECT_EQ(ends("envoy_reply"), 1);
  stream.end();
  expect_at_rest();
}

TEST_F(ProcessorTest, AStreamOfResponsesOnlyIsAnsweredAndNothingIsCounted) {
  bench.add_endpoints(1);
  Stream stream(bench);
  EXPECT_EQ(stream.send(full_duplex(response_headers(engine_fields()))).size(), 1U);
  EXPECT_EQ(streamed(stream.send(response_body("x", true))), "x|");
  stream.end();
  EXPECT_EQ(ends("ok"), 0);
  expect_at_rest();
}

TEST_F(ProcessorTest, WhoServedIsToldByTheDataPlane) {
  bench.add_endpoints(1);
  const auto serve = [&](const std::string& by) {
    Stream stream(bench);
    post(stream);
    auto headers = response_headers(engine_fields());
    (*(*headers.mutable_metadata_context()->mutable_filter_metadata())["envoy.lb"]
          .mutable_fields())["x-gateway-destination-endpoint-served"]
        .set_string_value(by);
    stream.send(headers);
  };
  serve("127.0.0.1:9000");
  EXPECT_EQ(bench.core->metrics.served_elsewhere.value(), 0U);
  serve("127.0.0.1:9999");
  EXPECT_EQ(bench.core->metrics.served_elsewhere.value(), 1U);
}

TEST_F(ProcessorTest, WhatAnotherEndpointAnswersIsNotBookedOnTheOneThatWasPicked) {
  bench.watch_health();
  bench.add_endpoints(1);
  EndpointLive& live = *bench.endpoints[0]->live;
  const auto serve = [&](const std::string& by, const std::string& status, Mode::BodySendMode mode) {
    Stream stream(bench);
    stream.send(with_modes(request_headers(post_fields()), Mode::FULL_DUPLEX_STREAMED, mode));
    stream.send(request_body(kBody, true));
    auto headers = response_headers(engine_fields("application/json", status));
    (*(*headers.mutable_metadata_context()->mutable_filter_metadata())["envoy.lb"]
          .mutable_fields())["x-gateway-destination-endpoint-served"]
        .set_string_value(by);
    stream.send(headers);
    if (mode != Mode::NONE) stream.send(response_body("{}", true));
    stream.end();
  };
  for (const Mode::BodySendMode mode : {Mode::NONE, Mode::FULL_DUPLEX_STREAMED}) {
    for (int i = 0; i < 3; ++i) serve("127.0.0.1:9999", "502", mode);
    EXPECT_EQ(live.ejected_until_ns, 0);
    for (int i = 0; i < 3; ++i) serve("127.0.0.1:9000", "502", mode);
    EXPECT_NE(live.ejected_until_ns, 0);
    bench.clock.advance(std::chrono::seconds(5));
    serve("127.0.0.1:9999", "200", mode);
    EXPECT_NE(live.ejected_until_ns, 0);
    EXPECT_FALSE(live.on_trial);  // the next request is one
    serve("127.0.0.1:9000", "200", mode);
    EXPECT_EQ(live.ejected_until_ns, 0);
    bench.clock.advance(std::chrono::seconds(200));
  }
  expect_at_rest();
}

TEST_F(ProcessorTest, SilenceSaysNothingWhereOutputIsNotShownAsItComes) {
  bench.watch_health();
  bench.add_endpoints(1);
  const auto stalls = [&](Mode::BodySendMode mode) {
    std::vector<std::unique_ptr<Stream>> streams;
    for (int i = 0; i < 3; ++i) {
      Stream& stream = *streams.emplace_back(std::make_unique<Stream>(bench));
      stream.send(with_modes(request_headers(post_fields()), Mode::FULL_DUPLEX_STREAMED, mode));
      stream.send(request_body(R"({"model":"m","stream":true})", true));
    }
    bench.clock.advance(std::chrono::seconds(600));
    for (const auto& stream : streams) stream->end();
    return bench.metrics.endpoint_failures.with({"pool", "stall"}).value();
  };
  for (const Mode::BodySendMode mode : {Mode::NONE, Mode::BUFFERED, Mode::BUFFERED_PARTIAL}) {
    EXPECT_EQ(stalls(mode), 0U) << mode;
  }
  EXPECT_EQ(stalls(Mode::STREAMED), 3U);
}

// Writes into requests and answers.
class Marker final : public PreRequest, public ResponseHook {
 public:
  Status pre_request(SchedulingContext& ctx, const SchedulingResult&) const override {
    ctx.edits->set_request("x-prefiller-host-port", "10.0.0.2:8000");
    ctx.edits->set_request("x-broken", "a\r\nb");
    ctx.edits->remove_request("x-user-data");
    ctx.edits->set_response("x-session-token", "abc");
    return {};
  }
  void on_response(const ResponseEvent& event, ResponseEdits& edits) const override {
    if (event.kind == ResponseEvent::Kind::kHead) {
      edits.set_header("x-served", event.served_endpoint ? *event.served_endpoint : "unknown");
    } else if (event.kind == ResponseEvent::Kind::kEnd) {
      edits.set_metadata("envoy.lb", "tokens", static_cast<double>(event.completion_tokens));
    }
  }
};

TEST_F(ProcessorTest, WhatPluginsSayGoesIntoHeadersAndMetadata) {
  auto* marker = bench.policy.add<Marker>("marker");
  bench.policy.policy->pre_request.push_back(marker);
  bench.policy.policy->response_hooks.push_back(marker);
  bench.options.response_phase = ResponsePhase::kAuto;
  bench.options.response_metrics = false;
  bench.policy.policy->load_estimator = nullptr;
  bench.add_endpoints(1);
  Stream stream(bench);
  Fields fields = post_fields();
  fields.push_back({"x-prefiller-host-port", "evil:1"});
  fields.push_back({"x-user-data", "x"});
  auto answers = post(stream, kBody, fields);
  EXPECT_EQ(stream.next, Next::kRead) << "a hook needs the answer";
  const auto set = set_headers(header_mutation(answers[0]));
  EXPECT_EQ(set.at("x-prefiller-host-port"), "10.0.0.2:8000");
  EXPECT_FALSE(set.contains("x-broken"));
  EXPECT_THAT(removed(header_mutation(answers[0])), ElementsAre("x-user-data"));
  answers = stream.send(response_headers(engine_fields()));
  const auto response = set_headers(answers[0].response_headers().response().header_mutation());
  EXPECT_EQ(response.at("x-session-token"), "abc");
  EXPECT_EQ(response.at("x-served"), "unknown");
  answers = stream.send(response_body(R"({"usage":{"completion_tokens":3}})", true));
  EXPECT_EQ(answers.back()
                .dynamic_metadata()
                .fields()
                .at("envoy.lb")
                .struct_value()
                .fields()
                .at("tokens")
                .number_value(),
            3);
}

// --- thrift ---

TEST_F(ProcessorTest, LeavingTheResponsePhaseTurnsTheReservationIntoACredit) {
  bench.options.response_phase = ResponsePhase::kNever;
  bench.add_endpoints(1);
  Stream stream(bench);
  EXPECT_EQ(post(stream).size(), 2U);
  EXPECT_EQ(stream.next, Next::kClose);
  EXPECT_EQ(ends("left_response_phase"), 1);
  stream.end();
  EXPECT_EQ(bench.load(0), 1U);
  EXPECT_EQ(bench.core->credits.load(), 1);
  bench.part().credits.sweep();
  EXPECT_EQ(bench.load(0), 1U) << "nobody has looked since";
  bench.clock.advance(std::chrono::milliseconds(50));
  bench.scrape();
  bench.part().credits.sweep();
  EXPECT_EQ(bench.core->credits.load(), 0);
  expect_at_rest();
}

TEST_F(ProcessorTest, ACreditEndsByAgeWhereNoScrapeComes) {
  bench.options.response_phase = ResponsePhase::kNever;
  bench.add_endpoints(1);
  Stream stream(bench);
  post(stream);
  bench.clock.advance(std::chrono::seconds(2));
  bench.part().credits.sweep();
  EXPECT_EQ(bench.load(0), 1U);
  bench.clock.advance(std::chrono::seconds(2));
  bench.part().credits.sweep();
  EXPECT_EQ(bench.load(0), 0U);
  EXPECT_EQ(bench.core->metrics.credits_expired.value(), 1U);
}

TEST_F(ProcessorTest, AutoLeavesOnlyWhereNothingNeedsTheAnswer) {
  const auto leaves = [](bool consumer, bool metrics, bool outliers, bool renamed, bool queued = false) {
    DoorOptions options;
    options.response_phase = ResponsePhase::kAuto;
    options.response_metrics = metrics;
    DoorBench own(options);
    if (outliers) own.watch_health();
    if (!consumer) own.policy.policy->load_estimator = nullptr;
    own.policy.policy->flow_control = queued;
    own.add_endpoints(1);
    if (renamed) {
      director::RewriteObject object;
      object.rules.push_back({{}, true, {{"other", {}}}});
      auto rules = std::make_shared<director::PoolRules>();
      rules->rewrites = director::RewriteTable({object});
      own.pool.rules.publish(rules);
    }
    Stream stream(own);
    stream.send(full_duplex(request_headers(post_fields())));
    stream.send(request_body(kBody, true));
    const bool left = stream.next == Next::kClose;
    stream.end();
    return left;
  };
  EXPECT_TRUE(leaves(false, false, false, false));
  EXPECT_FALSE(leaves(true, false, false, false));
  EXPECT_FALSE(leaves(false, true, false, false));
  EXPECT_FALSE(leaves(false, false, true, false));
  EXPECT_FALSE(leaves(false, false, false, true));
  EXPECT_FALSE(leaves(false, false, false, false, true));
}

TEST_F(ProcessorTest, AutoStaysForAnAnswerThatIsAStoredResponse) {
  for (const bool stores : {false, true}) {
    DoorOptions options;
    options.response_phase = ResponsePhase::kAuto;
    options.response_metrics = false;
    DoorBench own(options);
    own.policy.policy->load_estimator = nullptr;
    own.policy.parser->api = ApiKind::kResponses;
    own.policy.parser->stores = stores;
    own.add_endpoints(1);
    Stream stream(own);
    stream.send(full_duplex(request_headers(post_fields("/v1/responses"))));
    stream.send(request_body(kBody, true));
    EXPECT_EQ(stream.next == Next::kClose, !stores);
    stream.end();
  }
}

TEST_F(ProcessorTest, AStoredResponseIsLearnedFromItsAnswerAndAskedForWhereItIs) {
  bench.policy.parser->api = ApiKind::kResponses;
  bench.add_endpoints(3);
  const auto made = [&](const std::string& id, const std::string& by) {
    Stream stream(bench);
    post(stream, kBody, post_fields("/v1/responses"));
    auto headers = response_headers(engine_fields());
    (*(*headers.mutable_metadata_context()->mutable_filter_metadata())["envoy.lb"]
          .mutable_fields())["x-gateway-destination-endpoint-served"]
        .set_string_value(by);
    stream.send(headers);
    stream.send(response_body(R"({"id":")" + id, false));
    stream.send(response_body(R"("})", true));
  };
  made("resp_a", "127.0.0.1:9000");
  made("resp_c", "127.0.0.1:9002");    // the data plane fell back on another one
  made("resp_lost", "10.0.0.9:8000");  // on one that the pool has not
  bench.scrape(1);
  const auto asked = [&](const std::string& id) {
    Stream stream(bench);
    const auto answers = stream.send(full_duplex(
        request_headers({{":method", "GET"}, {":path", "/v1/responses/" + id + "?stream=false"}}, true)));
    std::string where = answers[0].has_immediate_response()
                            ? std::to_string(answers[0].immediate_response().status().code())
                            : destination(header_mutation(answers[0]));
    stream.end();
    return where;
  };
  EXPECT_EQ(asked("resp_a"), "127.0.0.1:9000");
  EXPECT_EQ(asked("resp_c"), "127.0.0.1:9002");
  EXPECT_EQ(asked("resp_lost"), "404");
}

// --- the other body modes ---

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

// --- messages that should not be ---

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
