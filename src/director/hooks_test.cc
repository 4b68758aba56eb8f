// What plugins around the decision may do: hooks, screeners, admitters, header edits.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "director/director.h"
#include "director/observer.h"
#include "director/testing.h"

namespace penstock::director {
namespace {

using namespace testing;

class NameAgent final : public RequestHook {
 public:
  Status on_request(InferenceRequest& request, Arena& arena) const override {
    if (find_header(request.headers, "x-refuse")) return Error{ErrorCode::kForbidden, "no"};
    request.agent_identity = arena.copy(find_header(request.headers, "x-agent").value_or(""));
    return {};
  }
};

// Keeps candidates whose slot is not `without`.
class Without final : public Screener {
 public:
  size_t screen(SchedulingContext& ctx, std::span<Candidate> inout) const override {
    const auto end = std::remove_if(inout.begin(), inout.end(),
                                    [&](Candidate c) { return ctx.pool.endpoints[c]->slot == without; });
    return static_cast<size_t>(end - inout.begin());
  }
  EndpointSlot without = 0;
};

class Refuser final : public Admitter {
 public:
  Status admit(SchedulingContext&) const override {
    return Error{ErrorCode::kResourceExhausted, "too much", "rejected-saturated"};
  }
};

class Marker final : public PreRequest, public ResponseHook {
 public:
  Status pre_request(SchedulingContext& ctx, const SchedulingResult& result) const override {
    ctx.edits->remove_request("x-client");
    ctx.edits->set_request("x-peer", ctx.pool.endpoints[result.primary->targets[0]]->id);
    ctx.edits->set_response("x-token", "t");
    return {};
  }
  void on_response(const ResponseEvent& event, ResponseEdits& edits) const override {
    kinds += event.kind == ResponseEvent::Kind::kHead    ? 'h'
             : event.kind == ResponseEvent::Kind::kChunk ? 'c'
             : event.natural_end                         ? 'e'
                                                         : 'x';
    status = event.status;
    number = event.request_number;
    if (event.kind == ResponseEvent::Kind::kHead)
      edits.set_header("x-served", event.served_endpoint.value_or("?"));
    if (event.kind == ResponseEvent::Kind::kEnd)
      edits.set_metadata("envoy.lb", "tokens", static_cast<double>(event.total_tokens));
  }
  mutable std::string kinds;
  mutable int status = -1;
  mutable uint64_t number = 0;
};

class HooksTest : public ::testing::Test {
 protected:
  HooksTest() {
    for (EndpointSlot i = 0; i < 3; ++i)
      pictures.add(
          make_endpoint(i, std::string(1, static_cast<char>('a' + i)), static_cast<uint16_t>(9000 + i)));
    pool.policy.publish(policy.policy);
  }
  RequestInput input() {
    constexpr std::string_view kText = R"({"model":"m","stream":true})";
    body.assign(kText);
    body.append(protocol::kBodyPadding, '\0');
    RequestInput in;
    in.request_id = "r1";
    in.method = "POST";
    in.path = "/v1/completions";
    in.headers = headers;
    in.body = {body.data(), kText.size()};
    in.received_at = clock.now();
    return in;
  }
  static std::string text(std::span<const HeaderEdits::Edit> edits) {
    std::string out;
    for (const HeaderEdits::Edit& edit : edits)
      out += std::string(edit.name) + (edit.remove ? " removed;" : "=" + std::string(edit.value) + ";");
    return out;
  }

  ManualClock clock;
  telemetry::MetricRegistry registry;
  RequestMetrics metrics{registry};
  Pool pool{"pool", "default", metrics, {1, 16}};
  TestPolicy policy;
  FixedPictures pictures;
  Director director{pool, std::make_unique<BorrowedPictures>(pictures), clock, {0, 99}};
  std::vector<HeaderField> headers;
  std::string body;
  Request request;
};

TEST_F(HooksTest, AnAgentIsTheFairnessIdOfRequestsThatNameNone) {
  policy.policy->request_hooks.push_back(policy.add<NameAgent>("agent"));
  headers = {{"x-agent", "a1"}};
  ASSERT_TRUE(director.decide(request, input()).ok());
  EXPECT_EQ(request.inference.fairness_id, "a1");
  request.reset();
  headers.push_back({"x-llm-d-inference-fairness-id", "f"});
  ASSERT_TRUE(director.decide(request, input()).ok());
  EXPECT_EQ(request.inference.fairness_id, "f");
  request.reset();
  headers = {{"x-refuse", "1"}};
  const Status refused = director.decide(request, input());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kForbidden);
}

TEST_F(HooksTest, WhatEveryScreenerKeepsRemains) {
  for (const EndpointSlot without : {EndpointSlot{0}, EndpointSlot{1}}) {
    auto* screener = policy.add<Without>("without" + std::to_string(without));
    screener->without = without;
    policy.policy->screeners.push_back(screener);
  }
  ASSERT_TRUE(director.decide(request, input()).ok());
  EXPECT_EQ(request.endpoint->id, "default/c");
  request.reset();
  auto* last = policy.add<Without>("last");
  last->without = 2;
  policy.policy->screeners.push_back(last);
  const Status status = director.decide(request, input());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kServiceUnavailable);
  EXPECT_EQ(status.error().message, "screeners eliminated all endpoint candidates");
  EXPECT_EQ(status.error().dropped_reason, "rejected-no-endpoints");
}

TEST_F(HooksTest, AnAdmittersRefusalKeepsItsCode) {
  policy.policy->admitters.push_back(policy.add<Refuser>("refuser"));
  const Status status = director.decide(request, input());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(status.error().message, "request cannot be admitted: too much");
  EXPECT_EQ(status.error().dropped_reason, "rejected-saturated");
}

TEST_F(HooksTest, HeaderEditsReachTheRequestAndOutliveItsArena) {
  auto* marker = policy.add<Marker>("marker");
  policy.policy->pre_request.push_back(marker);
  ASSERT_TRUE(director.decide(request, input()).ok());
  EXPECT_EQ(text(request.request_edits), "x-client removed;x-peer=" + request.endpoint->id + ";");
  const EndpointSlot first = request.endpoint->slot;
  const EndpointSlot excluded[] = {first};
  ASSERT_TRUE(director.decide_again(request, excluded).ok());
  EXPECT_EQ(text(request.request_edits), "x-client removed;x-peer=" + request.endpoint->id + ";");
  Arena spare(1024);
  request.settle(spare);
  spare.reset(0);
  EXPECT_EQ(text(request.response_edits), "x-token=t;");
  EXPECT_TRUE(request.request_edits.empty());
}

TEST_F(HooksTest, ResponseHooksAreToldOfTheAnswerAndAddToIt) {
  auto* marker = policy.add<Marker>("marker");
  policy.policy->pre_request.push_back(marker);
  policy.policy->response_hooks.push_back(marker);
  Observer observer;
  observer.start(pool, request, nullptr, 0);
  ASSERT_TRUE(director.decide(request, input()).ok());
  observer.head(200, "text/event-stream", "", clock.now(), {true, "10.0.0.1:8000"});
  std::vector<HeaderEdits::Edit> edits;
  observer.append_header_edits(edits);
  EXPECT_EQ(text(edits), "x-token=t;x-served=10.0.0.1:8000;");
  std::vector<std::string_view> out;
  observer.piece("data: {\"choices\":[{\"text\":\"a\"}]}\n\n", clock.now(), out);
  observer.piece("data: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1,\"total_tokens\":8}}\n\n",
                 clock.now(), out);
  observer.body_end(out);
  ASSERT_EQ(observer.metadata().size(), 1U);
  EXPECT_EQ(observer.metadata()[0].name, "tokens");
  EXPECT_EQ(observer.metadata()[0].value, 8);
  observer.end({.status = 200, .reason = "ok", .error = nullptr, .attempts = 1, .own_bytes = 0, .wall = {}},
               clock.now());
  EXPECT_EQ(marker->kinds, "hcce");
  EXPECT_EQ(marker->status, 200);
}

TEST_F(HooksTest, AnErrorAnswerIsWholeButSaysItsStatus) {
  auto* marker = policy.add<Marker>("marker");
  policy.policy->response_hooks.push_back(marker);
  Observer observer;
  observer.start(pool, request, nullptr, 0);
  ASSERT_TRUE(director.decide(request, input()).ok());
  observer.head(500, "application/json", "");
  std::vector<std::string_view> out;
  observer.piece("{}", clock.now(), out);
  observer.body_end(out);
  EXPECT_EQ(marker->kinds, "hce");
  EXPECT_EQ(marker->status, 500);
}

TEST_F(HooksTest, RequestsOfOneIdAreToldApartByTheirNumbers) {
  auto* marker = policy.add<Marker>("marker");
  policy.policy->response_hooks.push_back(marker);
  std::set<uint64_t> numbers;
  for (int i = 0; i < 2; ++i) {
    request.reset();
    Observer observer;
    observer.start(pool, request, nullptr, 0);
    ASSERT_TRUE(director.decide(request, input()).ok());
    EXPECT_TRUE(numbers.insert(request.inference.number).second);
    observer.end(
        {.status = 0, .reason = "client_gone", .error = nullptr, .attempts = 1, .own_bytes = 0, .wall = {}},
        clock.now());
    EXPECT_EQ(marker->number, request.inference.number);
  }
}

TEST_F(HooksTest, AStreamThatBreaksOffHasOneEndThatIsNotNatural) {
  auto* marker = policy.add<Marker>("marker");
  policy.policy->response_hooks.push_back(marker);
  Observer observer;
  observer.start(pool, request, nullptr, 0);
  ASSERT_TRUE(director.decide(request, input()).ok());
  observer.head(200, "text/event-stream", "");
  std::vector<std::string_view> out;
  observer.piece("data: {\"choices\":[{\"text\":\"a\"}]}\n\n", clock.now(), out);
  observer.body_end(out, false);
  observer.end(
      {.status = 200, .reason = "engine_died", .error = nullptr, .attempts = 1, .own_bytes = 0, .wall = {}},
      clock.now());
  EXPECT_EQ(marker->kinds, "hcx");
}

TEST_F(HooksTest, AnAnswerThatBreaksOffHasAnEndThatIsNotNatural) {
  auto* marker = policy.add<Marker>("marker");
  policy.policy->response_hooks.push_back(marker);
  Observer observer;
  observer.start(pool, request, nullptr, 0);
  ASSERT_TRUE(director.decide(request, input()).ok());
  observer.end(
      {.status = 0, .reason = "client_gone", .error = nullptr, .attempts = 1, .own_bytes = 0, .wall = {}},
      clock.now());
  EXPECT_EQ(marker->kinds, "x");
}

// Runs "decode", then "prefill", and picks a for the one and b for the other.
class TwoStages final : public ProfileHandler {
 public:
  std::span<const uint32_t> pick(SchedulingContext& ctx, std::span<const std::string>, std::span<bool> done,
                                 std::span<const ProfileResult* const>) const override {
    for (uint32_t i = 0; i < done.size(); ++i) {
      if (!done[i]) return ctx.arena.make_filled<uint32_t>(1, i);
    }
    return {};
  }
  Result<SchedulingResult> process(SchedulingContext& ctx, std::span<const std::string>,
                                   std::span<const ProfileResult* const> results) const override {
    auto all = ctx.arena.make_filled<const ProfileResult*>(2, results[0]);
    all[1] = results[1];
    return SchedulingResult{all, results[0], 9100};
  }
};
class PickSlot final : public Picker {
 public:
  std::span<const Candidate> pick(SchedulingContext& ctx, std::span<const Candidate>,
                                  std::span<const double>) const override {
    return ctx.arena.make_filled<Candidate>(1, slot);
  }
  Candidate slot = 0;
};

TEST_F(HooksTest, EveryStageIsReservedAndPrefillIsOverWhenTheAnswerBegins) {
  std::vector<scheduling::Profile> profiles(2);
  profiles[0].name = "decode";
  profiles[0].picker = policy.add<PickSlot>("first");
  profiles[1].name = "prefill";
  auto* second = policy.add<PickSlot>("second");
  second->slot = 1;
  profiles[1].picker = second;
  policy.policy->scheduler =
      std::make_unique<scheduling::Scheduler>(std::move(profiles), policy.add<TwoStages>("two"));
  const auto requests = [&](Candidate c) {
    return EndpointLive::requests_of(pictures.refresh(clock.now()).pool->endpoints[c]->live->load);
  };
  Observer observer;
  observer.start(pool, request, nullptr, 0);
  ASSERT_TRUE(director.decide(request, input()).ok());
  EXPECT_EQ(request.destination, "127.0.0.1:9100");
  EXPECT_EQ(requests(0), 1U);
  EXPECT_EQ(requests(1), 1U);
  observer.head(200, "text/event-stream", "");
  std::vector<std::string_view> out;
  observer.piece("data: {}\n\n", clock.now(), out);
  EXPECT_EQ(requests(0), 1U);
  EXPECT_EQ(requests(1), 0U);
  observer.end({.status = 200, .reason = "ok", .error = nullptr, .attempts = 1, .own_bytes = 0, .wall = {}},
               clock.now());
  EXPECT_EQ(requests(0), 0U);
  request.reset();
  ASSERT_TRUE(director.decide(request, input()).ok());
  request.reset();
  EXPECT_EQ(requests(0), 0U);
  EXPECT_EQ(requests(1), 0U);
}

}  // namespace
}  // namespace penstock::director
