#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "extproc/processor_testing.h"

namespace penstock::extproc {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Next = Processor::Next;

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

}  // namespace
}  // namespace penstock::extproc
