#include "director/stored_response.h"

#include <gtest/gtest.h>

#include "director/director.h"
#include "director/observer.h"
#include "director/testing.h"

namespace penstock::director {
namespace {

using namespace testing;

TEST(StoredResponse, ThePathNamesTheResponse) {
  EXPECT_EQ(stored_response_id("GET", "/v1/responses/resp_1"), "resp_1");
  EXPECT_EQ(stored_response_id("GET", "/team/v1/responses/resp_1/"), "resp_1");
  EXPECT_EQ(stored_response_id("DELETE", "/v1/responses/resp_1"), "resp_1");
  EXPECT_EQ(stored_response_id("GET", "/v1/responses/resp_1/input_items"), "resp_1");
  EXPECT_EQ(stored_response_id("POST", "/v1/responses/resp_1/cancel"), "resp_1");
  EXPECT_EQ(stored_response_id("POST", "/v1/responses"), "");
  EXPECT_EQ(stored_response_id("POST", "/v1/responses/render"), "");
  EXPECT_EQ(stored_response_id("POST", "/v1/responses/resp_1/other"), "");
  EXPECT_EQ(stored_response_id("GET", "/v1/responses/"), "");
  EXPECT_EQ(stored_response_id("GET", "/v1/responses//input_items"), "");
  EXPECT_EQ(stored_response_id("DELETE", "/v1/responses/resp_1/cancel"), "");
  EXPECT_EQ(stored_response_id("GET", "/v1/models/m"), "");
}

// Takes what the test's parser takes, as a body of the Responses API.
class StoredResponseTest : public ::testing::Test {
 protected:
  StoredResponseTest() {
    for (EndpointSlot i = 0; i < 3; ++i) {
      endpoints.push_back(
          make_endpoint(i, std::string(1, static_cast<char>('a' + i)), static_cast<uint16_t>(9000 + i)));
      pictures.add(endpoints.back());
    }
    for (Candidate c = 0; c < 3; ++c) {
      for (const Signal s : {Signal::kWaitingRequests, Signal::kRunningRequests, Signal::kKvUsage})
        pictures.set(s, c, s == Signal::kWaitingRequests ? c : 0, clock.now());
    }
    policy.parser->api = ApiKind::kResponses;
    pool.policy.publish(policy.policy);
  }
  RequestInput input(std::string_view method, std::string_view path, std::string_view text) {
    body.assign(text);
    body.append(protocol::kBodyPadding, '\0');
    RequestInput in;
    in.request_id = "r1";
    in.method = method;
    in.path = path;
    in.body = {body.data(), text.size()};
    in.bodyless = text.empty();
    in.received_at = clock.now();
    return in;
  }
  // The endpoint, or the error's message.
  std::string ask(std::string_view method, std::string_view path, std::string_view text = {}) {
    request.reset();
    const Status status = director.decide(request, input(method, path, text));
    return status.ok() ? request.endpoint->name : status.error().message;
  }
  std::string go_on(std::string_view id) {
    return ask("POST", "/v1/responses",
               R"({"model":"m","previous_response_id":")" + std::string(id) + R"("})");
  }
  // An answer that an endpoint gave to `text`, in two pieces; what was learned is in the pool.
  void answered(std::string_view text, int status, std::string_view type, std::string_view answer,
                std::string_view method = "POST", std::string_view path = "/v1/responses") {
    Observer observer;
    std::vector<std::string_view> out;
    request.reset();
    observer.start(pool, request, nullptr, 0);
    ASSERT_TRUE(director.decide(request, input(method, path, text)).ok());
    observer.head(status, type, "");
    observer.piece(answer.substr(0, answer.size() / 2), clock.now(), out);
    observer.piece(answer.substr(answer.size() / 2), clock.now(), out);
    observer.body_end(out);
    observer.end({.status = status, .reason = "ok", .attempts = 1}, clock.now());
  }

  ManualClock clock;
  telemetry::MetricRegistry registry;
  RequestMetrics metrics{registry};
  Pool pool{"pool", "default", metrics, {1, 16}};
  TestPolicy policy;
  FixedPictures pictures;
  Director director{pool, std::make_unique<BorrowedPictures>(pictures), clock, {0, 99}};
  std::vector<std::shared_ptr<Endpoint>> endpoints;
  std::string body;
  Request request;
};

TEST_F(StoredResponseTest, GoesBackToTheEndpointThatHoldsIt) {
  pool.responses.note("resp_c", *endpoints[2], clock.now());
  EXPECT_EQ(ask("POST", "/v1/responses", R"({"model":"m"})"), "a");
  EXPECT_EQ(go_on("resp_c"), "c");
  EXPECT_EQ(request.record.picked_as, PickedAs::kHolder);
  EXPECT_EQ(ask("GET", "/v1/responses/resp_c"), "c");
  EXPECT_EQ(ask("DELETE", "/v1/responses/resp_c"), "c");
  EXPECT_EQ(ask("POST", "/v1/responses/resp_c/cancel", "{}"), "c");
  EXPECT_EQ(request.inference.api, ApiKind::kResponses);
  const auto json = pool.log.find_json("r1");
  ASSERT_TRUE(json);
  EXPECT_NE(json->find(R"("picked_as":"holder")"), std::string::npos) << *json;
}

TEST_F(StoredResponseTest, NobodyElseGetsItWhateverTheStateOfItsHolder) {
  pool.responses.note("resp_c", *endpoints[2], clock.now());
  config::OutlierDetectionSettings settings;
  settings.enabled = true;
  pool.health.configure(settings);
  pool.health.failed(*endpoints[2], settings, FailureKind::kConnect, 0, false, {3}, clock.now());
  EXPECT_EQ(go_on("resp_c"), "c");
  EXPECT_EQ(request.record.fallback, FallbackState::kNone);
  const EndpointSlot lost = 2;
  const Status again = director.decide_again(request, {&lost, 1});
  EXPECT_EQ(again.error().code, ErrorCode::kServiceUnavailable);
  EXPECT_EQ(again.error().message,
            "the one endpoint that holds response 'resp_c' cannot be used for this request");
  const SubsetEntry others[] = {parse_subset_entry("127.0.0.1:9000")};
  RequestInput in = input("GET", "/v1/responses/resp_c", "");
  in.subset = others;
  request.reset();
  EXPECT_EQ(director.decide(request, in).error().code, ErrorCode::kServiceUnavailable);
}

TEST_F(StoredResponseTest, ADrainingHolderKeepsItAndASleepingOneShowsItButGeneratesNothing) {
  pool.responses.note("resp_c", *endpoints[2], clock.now());
  endpoints[2]->draining = true;
  EXPECT_EQ(go_on("resp_c"), "c");
  endpoints[2]->live->asleep = true;
  EXPECT_EQ(go_on("resp_c"), "the engine that holds response 'resp_c' sleeps");
  EXPECT_EQ(ask("GET", "/v1/responses/resp_c"), "c");
}

TEST_F(StoredResponseTest, WhatNobodyIsKnownToHoldIsNotFound) {
  EXPECT_EQ(
      go_on("resp_1"),
      "Response with id 'resp_1' not found: no endpoint of the pool is known to hold it; send the whole "
      "input instead");
  EXPECT_EQ(director.decide(request, input("GET", "/v1/responses/resp_1", "")).error().code,
            ErrorCode::kNotFound);
  pool.responses.note("resp_1", *make_endpoint(9, "left", 9009), clock.now());
  EXPECT_EQ(
      go_on("resp_1"),
      "Response with id 'resp_1' not found: the endpoint that held it has left the pool; send the whole "
      "input instead");
}

TEST_F(StoredResponseTest, AnIdMayBeAsLongAsABodyTheMessageIsNot) {
  const std::string huge(1 << 20, 'r');
  EXPECT_LT(go_on(huge).size(), 256U);
  EXPECT_LT(ask("POST", "/v1/responses", R"({"model":"m","conversation":")" + huge + R"("})").size(), 256U);
  EXPECT_LT(ask("GET", "/v1/responses/" + huge).size(), 256U);
}

TEST_F(StoredResponseTest, ASingleEndpointAnswersForItself) {
  FixedPictures one;
  one.add(endpoints[0]);
  Director small{pool, std::make_unique<BorrowedPictures>(one), clock, {0, 99}};
  ASSERT_TRUE(small.decide(request, input("GET", "/v1/responses/resp_1", "")).ok());
  EXPECT_EQ(request.endpoint->name, "a");
}

TEST_F(StoredResponseTest, AConversationIsRefusedWhereThereAreSeveral) {
  EXPECT_EQ(
      ask("POST", "/v1/responses", R"({"model":"m","conversation":"conv_1"})"),
      "the request continues state that only the replica which made it has (conv_1); send the whole input "
      "instead of conversation");
}

TEST_F(StoredResponseTest, IdsAreLearnedFromWholeAnswersAndFromStreams) {
  answered(R"({"model":"m"})", 200, "application/json", R"({"id":"resp_1","object":"response"})");
  EXPECT_EQ(go_on("resp_1"), "a");
  EXPECT_EQ(request.record.picked_as, PickedAs::kHolder);
  answered(R"({"model":"m"})", 200, "text/event-stream",
           "event: response.created\ndata: {\"response\":{\"id\":\"resp_2\"}}\n\n");
  EXPECT_EQ(ask("GET", "/v1/responses/resp_2"), "a");
  EXPECT_EQ(pool.responses.size(), 2U);
}

TEST_F(StoredResponseTest, WhatIsNotStoredIsNotLearned) {
  answered(R"({"model":"m"})", 400, "application/json", R"({"id":"resp_1"})");
  answered(R"({"model":"m"})", 200, "application/json", R"({"object":"response"})");
  policy.parser->stores = false;
  answered(R"({"model":"m","store":false})", 200, "application/json", R"({"id":"resp_2"})");
  policy.parser->stores = true;
  pool.responses.configure({.entries = 0});
  answered(R"({"model":"m"})", 200, "application/json", R"({"id":"resp_3"})");
  EXPECT_EQ(pool.responses.size(), 0U);
}

TEST_F(StoredResponseTest, ADeletedResponseIsForgotten) {
  pool.responses.note("resp_c", *endpoints[2], clock.now());
  answered("", 404, "application/json", "{}", "DELETE", "/v1/responses/resp_c");
  EXPECT_EQ(pool.responses.size(), 1U);
  answered("", 200, "application/json", "{}", "DELETE", "/v1/responses/resp_c");
  EXPECT_EQ(pool.responses.size(), 0U);
}

TEST_F(StoredResponseTest, AnAnswerOfSomebodyElseIsLearnedAsTheirs) {
  for (const auto& maker : {endpoints[2], std::shared_ptr<Endpoint>()}) {
    Observer observer;
    std::vector<std::string_view> out;
    request.reset();
    observer.start(pool, request, nullptr, 0);
    ASSERT_TRUE(director.decide(request, input("POST", "/v1/responses", R"({"model":"m"})")).ok());
    observer.head(200, "application/json", "");
    observer.made_by(maker);
    observer.piece(maker == nullptr ? R"({"id":"resp_2"})" : R"({"id":"resp_1"})", clock.now(), out);
    observer.end({.status = 200, .reason = "ok", .attempts = 1}, clock.now());
  }
  EXPECT_EQ(go_on("resp_1"), "c");
  EXPECT_EQ(pool.responses.size(), 1U);
}

TEST_F(StoredResponseTest, ExplainingCountsNoLookUp) {
  pool.responses.note("resp_c", *endpoints[2], clock.now());
  const std::string json = director.explain(request, input("GET", "/v1/responses/resp_c", ""));
  EXPECT_NE(json.find(R"("picked_as":"holder")"), std::string::npos) << json;
  EXPECT_EQ(metrics.response_lookups.with({"pool", "found"}).value(), 0U);
}

}  // namespace
}  // namespace penstock::director
