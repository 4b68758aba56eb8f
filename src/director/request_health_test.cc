#include "director/request_health.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "director/director.h"
#include "director/observer.h"
#include "director/testing.h"

namespace penstock::director {
namespace {

using namespace testing;
using std::chrono::seconds;

// Keeps the endpoints whose names begin with a letter.
class NameFilter final : public Filter {
 public:
  size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const override {
    const auto end = std::remove_if(inout.begin(), inout.end(), [&](Candidate c) {
      return ctx.pool.endpoints[c]->name.front() != letter;
    });
    return static_cast<size_t>(end - inout.begin());
  }
  char letter = 'd';
};

// Decode, then prefill where there is anybody for it; decode is primary.
class DecodeThenPrefill final : public ProfileHandler {
 public:
  std::span<const uint32_t> pick(SchedulingContext& ctx, std::span<const std::string>, std::span<bool> done,
                                 std::span<const ProfileResult* const>) const override {
    for (uint32_t i = 0; i < 2; ++i) {
      if (!done[i]) return ctx.arena.make_filled<uint32_t>(1, i);
    }
    return {};
  }
  Result<SchedulingResult> process(SchedulingContext& ctx, std::span<const std::string>,
                                   std::span<const ProfileResult* const> results) const override {
    if (results[0] == nullptr) return Error{ErrorCode::kInternal, "no decode endpoint"};
    auto all = ctx.arena.make_filled<const ProfileResult*>(results[1] == nullptr ? 1 : 2, results[0]);
    if (results[1] != nullptr) all[1] = results[1];
    return SchedulingResult{all, results[0]};
  }
};

// d1 and d2 decode, p1 and p2 prefill; the best of each stage has the shortest queue.
class SplitRequestTest : public ::testing::Test {
 protected:
  SplitRequestTest() {
    for (const char* name : {"d1", "d2", "p1", "p2"}) {
      const auto slot = static_cast<EndpointSlot>(endpoints.size());
      endpoints.push_back(make_endpoint(slot, name, static_cast<uint16_t>(9000 + slot)));
      pictures.add(endpoints.back());
    }
    prefer("d1", "p1");
    std::vector<scheduling::Profile> profiles(2);
    for (size_t i = 0; i < 2; ++i) {
      auto* filter = policy.add<NameFilter>(i == 0 ? "decoders" : "prefillers");
      filter->letter = i == 0 ? 'd' : 'p';
      profiles[i].name = i == 0 ? "decode" : "prefill";
      profiles[i].filters.push_back(filter);
      profiles[i].scorers.push_back({policy.add<WaitingScorer>("waiting" + std::to_string(i)), 1.0});
      profiles[i].picker = policy.add<BestPicker>("best" + std::to_string(i));
    }
    policy.policy->scheduler =
        std::make_unique<scheduling::Scheduler>(std::move(profiles), policy.add<DecodeThenPrefill>("split"));
    pool.policy.publish(policy.policy);
    config::OutlierDetectionSettings settings;
    settings.enabled = true;
    settings.max_ejected_percent = 100;
    pool.health.configure(settings);
    body.append(protocol::kBodyPadding, '\0');
  }
  void prefer(std::string_view decode, std::string_view prefill) {
    for (Candidate c = 0; c < endpoints.size(); ++c) {
      const bool best = endpoints[c]->name == decode || endpoints[c]->name == prefill;
      for (const Signal s : {Signal::kWaitingRequests, Signal::kRunningRequests, Signal::kKvUsage})
        pictures.set(s, c, s == Signal::kWaitingRequests && !best ? 5 : 0, clock.now());
    }
  }
  EndpointLive& live(std::string_view name) {
    for (const auto& endpoint : endpoints) {
      if (endpoint->name == name) return *endpoint->live;
    }
    return *endpoints[0]->live;
  }
  bool out(std::string_view name) { return live(name).ejected_until_ns != 0; }
  RequestInput input() {
    RequestInput in;
    in.request_id = "r1";
    in.method = "POST";
    in.path = "/v1/completions";
    in.body = {body.data(), body.size() - protocol::kBodyPadding};
    in.received_at = clock.now();
    return in;
  }
  // A request that ends with `outcome`; where it went, "d1+p1".
  template <typename Outcome>
  std::string ask(Outcome&& outcome) {
    Request request;
    if (!director.decide(request, input()).ok()) return "";
    std::string went = request.endpoint->name;
    for (const auto& endpoint : endpoints) {
      if (endpoint->name.front() == 'p' && endpoint->live->load != 0) went += "+" + endpoint->name;
    }
    outcome(request.health);
    return went;
  }
  std::string serve() {
    return ask([&](RequestHealth& health) {
      health.output(clock.now());
      health.succeed(clock.now());
    });
  }
  std::string answer(int status, bool empty = false) {
    return ask([&](RequestHealth& health) { health.fail_status(status, empty, clock.now()); });
  }
  std::string fail(FailureKind kind) {
    return ask([&](RequestHealth& health) { health.fail(kind, clock.now()); });
  }

  ManualClock clock;
  telemetry::MetricRegistry registry;
  RequestMetrics metrics{registry};
  Pool pool{"pool", "default", metrics, {1, 16}};
  TestPolicy policy;
  FixedPictures pictures;
  Director director{pool, std::make_unique<BorrowedPictures>(pictures), clock, {0, 99}};
  std::vector<std::shared_ptr<Endpoint>> endpoints;
  std::string body = R"({"model":"m"})";
};

TEST_F(SplitRequestTest, ASidecarsEmpty502IsThePrefillTargetsFailure) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(answer(502, true), "d1+p1");
  EXPECT_TRUE(out("p1"));
  EXPECT_EQ(live("d1").consecutive_failures, 0U);
  EXPECT_EQ(metrics.ejections.with({"pool", "reset"}).value(), 1U);
  EXPECT_EQ(serve(), "d1+p2");
}

TEST_F(SplitRequestTest, AnEmpty502SaysNothingWhereAnEncoderTakesPart) {
  for (int i = 0; i < 5; ++i) {
    ask([&](RequestHealth& health) {
      health.set_encodes();
      health.fail_status(502, true, clock.now());
    });
  }
  EXPECT_EQ(pool.health.out(), 0U);
}

TEST_F(SplitRequestTest, OfTwoThatMayHaveFailedTheOneIsEjectedThatFailsWithOthersToo) {
  for (const char* partner : {"d1", "d2", "d1"}) {
    prefer(partner, "p1");
    answer(500);
    prefer(partner, "p2");
    serve();
  }
  EXPECT_TRUE(out("p1"));
  EXPECT_EQ(pool.health.out(), 1U);
}

TEST_F(SplitRequestTest, ADeadDecodeEngineDoesNotTakeThePrefillEnginesWithIt) {
  for (const char* partner : {"p1", "p2", "p1", "p2"}) {
    prefer("d1", partner);
    answer(503);
  }
  EXPECT_TRUE(out("d1"));
  EXPECT_EQ(pool.health.out(), 1U);
}

TEST_F(SplitRequestTest, OfTwoThatAlwaysFailTogetherThePrefillEngineIsEjectedFirst) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(answer(500), "d1+p1");
  EXPECT_TRUE(out("p1"));
  EXPECT_EQ(pool.health.out(), 1U);
  // It was that one: the other is cleared by what it serves next.
  EXPECT_EQ(serve(), "d1+p2");
  EXPECT_EQ(live("d1").consecutive_failures, 0U);
}

TEST_F(SplitRequestTest, WhoFailsOnWithoutThePrefillEngineThatWasEjectedForItIsEjectedToo) {
  for (int i = 0; i < 3; ++i) answer(500);
  ASSERT_TRUE(out("p1"));
  EXPECT_EQ(answer(500), "d1+p2");
  EXPECT_TRUE(out("d1"));
  EXPECT_FALSE(out("p2"));
  EXPECT_EQ(live("p2").consecutive_failures, 0U);
}

TEST_F(SplitRequestTest, OfTwoOnTrialThePrefillEngineFailsItAndTheOtherHasAnother) {
  for (int i = 0; i < 3; ++i) answer(500);
  answer(500);
  ASSERT_EQ(pool.health.out(), 2U);
  clock.advance(seconds(5));
  EXPECT_EQ(answer(500), "d1+p1");
  EXPECT_GT(live("p1").ejected_until_ns, clock.now().time_since_epoch().count());
  EXPECT_EQ(serve(), "d1+p2");
  EXPECT_FALSE(out("d1"));
}

TEST_F(SplitRequestTest, WhoIsOnTrialIsToBlame) {
  for (int i = 0; i < 3; ++i) answer(502, true);
  ASSERT_TRUE(out("p1"));
  live("d1").consecutive_failures = 2;
  clock.advance(seconds(5));
  EXPECT_EQ(answer(500), "d1+p1");
  EXPECT_GT(live("p1").ejected_until_ns, clock.now().time_since_epoch().count());
  EXPECT_EQ(live("d1").consecutive_failures, 2U);
}

TEST_F(SplitRequestTest, APrefillTargetOnTrialGetsOneRequestAndIsBackWithItsOutput) {
  for (int i = 0; i < 3; ++i) answer(502, true);
  clock.advance(seconds(5));
  Request trial;
  ASSERT_TRUE(director.decide(trial, input()).ok());
  EXPECT_TRUE(trial.health.prefill().on_trial());
  EXPECT_FALSE(trial.health.target().on_trial());
  EXPECT_EQ(serve().substr(0, 2), "d1");
  EXPECT_TRUE(out("p1"));  // the other one went past it
  trial.health.output(clock.now());
  EXPECT_FALSE(out("p1"));
  EXPECT_FALSE(trial.health.prefill().open());
  EXPECT_TRUE(trial.health.target().open());
}

TEST_F(SplitRequestTest, ATrialWhoseClientLeavesIsGivenBackByBoth) {
  for (int i = 0; i < 3; ++i) answer(502, true);
  clock.advance(seconds(5));
  ask([&](RequestHealth& health) { health.drop(clock.now()); });
  EXPECT_FALSE(live("p1").on_trial);
  EXPECT_TRUE(out("p1"));
}

TEST_F(SplitRequestTest, WhatBreaksBetweenUsAndTheTargetIsTheTargets) {
  fail(FailureKind::kConnect);
  EXPECT_TRUE(out("d1"));
  EXPECT_FALSE(out("p1"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(fail(FailureKind::kReset), "d2+p1");
  EXPECT_TRUE(out("d2"));
  EXPECT_EQ(live("p1").consecutive_failures, 0U);
}

TEST_F(SplitRequestTest, AfterTheFirstOutputThePrefillTargetHasNoPartInIt) {
  for (int i = 0; i < 3; ++i) {
    ask([&](RequestHealth& health) {
      health.output(clock.now());
      health.fail(FailureKind::kTimeout, clock.now());
    });
  }
  EXPECT_TRUE(out("d1"));
  EXPECT_EQ(live("p1").consecutive_failures, 0U);
}

TEST_F(SplitRequestTest, ASilentPrefillEngineIsStalledWhileItsPartnerServesOthers) {
  body.insert(1, R"("stream":true,)");
  Request waiting[3];
  for (Request& request : waiting) ASSERT_TRUE(director.decide(request, input()).ok());
  clock.advance(seconds(60));
  prefer("d1", "p2");
  Request other;
  live("d1").last_output_ns = clock.now().time_since_epoch().count();
  ASSERT_TRUE(director.decide(other, input()).ok());
  EXPECT_TRUE(out("p1"));
  EXPECT_FALSE(out("d1"));
}

TEST_F(SplitRequestTest, WithoutAPrefillEngineRequestsAreDecodedOnly) {
  for (int i = 0; i < 3; ++i) answer(502, true);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(answer(502, true), "d1+p2");
  EXPECT_EQ(pool.health.out(), 2U);
  EXPECT_EQ(serve(), "d1");
}

TEST_F(SplitRequestTest, WhereAStageHasOnlyEjectedEndpointsOneOfThemGetsTheRequest) {
  fail(FailureKind::kConnect);
  fail(FailureKind::kConnect);
  ASSERT_EQ(pool.health.out(), 2U);
  Request request;
  ASSERT_TRUE(director.decide(request, input()).ok());
  EXPECT_EQ(request.endpoint->name, "d1");
  EXPECT_EQ(request.record.picked_as, PickedAs::kLastResort);
  EXPECT_EQ(request.record.fallback, FallbackState::kAllEjected);
  const EndpointSlot lost = 0;
  ASSERT_TRUE(director.decide_again(request, {&lost, 1}).ok());
  EXPECT_EQ(request.endpoint->name, "d2");
}

TEST_F(SplitRequestTest, AWholeAnswerClearsBoth) {
  live("d1").consecutive_failures = 2;
  live("p1").consecutive_failures = 2;
  Observer observer;
  Request request;
  std::vector<std::string_view> out;
  observer.start(pool, request, nullptr, 0);
  ASSERT_TRUE(director.decide(request, input()).ok());
  observer.head(200, "application/json", "");
  observer.piece("{}", clock.now(), out);
  EXPECT_EQ(live("p1").consecutive_failures, 0U);
  observer.body_end(out);
  observer.end({.status = 200, .reason = "ok", .attempts = 1}, clock.now());
  EXPECT_EQ(live("d1").consecutive_failures, 0U);
}

}  // namespace
}  // namespace penstock::director
