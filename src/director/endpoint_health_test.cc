#include "director/endpoint_health.h"

#include <gtest/gtest.h>

#include <thread>

#include "director/director.h"
#include "director/observer.h"
#include "director/testing.h"
#include "inference/session_holder.h"

namespace penstock::director {
namespace {

using namespace testing;
using std::chrono::milliseconds;
using std::chrono::seconds;

class EndpointHealthTest : public ::testing::Test {
 protected:
  EndpointHealthTest() {
    settings.enabled = true;
    for (EndpointSlot i = 0; i < 4; ++i) {
      endpoints.push_back(
          make_endpoint(i, std::string(1, static_cast<char>('a' + i)), static_cast<uint16_t>(9000 + i)));
    }
    configure();
    watch.set_size({endpoints.size()});
  }
  void configure() {
    health.configure(settings);
    watch.begin(clock.now());
  }
  const std::shared_ptr<const Endpoint> of(size_t i) { return endpoints[i]; }
  EndpointLive& live(size_t i) { return *endpoints[i]->live; }
  HealthState state(size_t i) { return health_state(live(i), clock.now()); }
  // As a decision does: false where the endpoint may not be picked.
  bool send(HealthTicket& ticket, size_t i) {
    watch.begin(clock.now());
    bool on_trial = false;
    if (live(i).ejected_until_ns != 0) {
      const HealthWatch::Entry entry = watch.admit(live(i), clock.now(), true);
      if (entry == HealthWatch::Entry::kEjected || entry == HealthWatch::Entry::kOnTrial) return false;
      on_trial = entry == HealthWatch::Entry::kTrial;
    }
    watch.open(ticket, of(i), on_trial, true, clock.now());
    return true;
  }
  void fail(size_t i, FailureKind kind = FailureKind::kStatus) {
    HealthTicket ticket;
    ASSERT_TRUE(send(ticket, i));
    ticket.fail(kind, clock.now());
  }
  void serve(size_t i) {
    HealthTicket ticket;
    ASSERT_TRUE(send(ticket, i));
    ticket.output(clock.now());
    ticket.succeed(clock.now());
  }
  void eject(size_t i) {
    for (int n = 0; n < settings.consecutive_failures; ++n) fail(i);
    ASSERT_EQ(state(i), HealthState::kEjected);
  }
  // How long it still is ejected.
  Duration left(size_t i) {
    return Duration(live(i).ejected_until_ns - clock.now().time_since_epoch().count());
  }
  uint64_t ejections(std::string_view reason) { return metrics.ejections.with({"pool", reason}).value(); }

  ManualClock clock;
  telemetry::MetricRegistry registry;
  RequestMetrics metrics{registry};
  EndpointHealth health{"pool", metrics};
  HealthWatch watch{health};
  config::OutlierDetectionSettings settings;
  std::vector<std::shared_ptr<Endpoint>> endpoints;
};

TEST_F(EndpointHealthTest, ThreeFailuresInARowEjectAndASuccessBetweenThemDoesNot) {
  fail(0);
  fail(0);
  serve(0);
  fail(0);
  fail(0);
  EXPECT_EQ(state(0), HealthState::kHealthy);
  fail(0);
  EXPECT_EQ(state(0), HealthState::kEjected);
  EXPECT_EQ(left(0), seconds(5));
  EXPECT_EQ(health.out(), 1U);
  EXPECT_EQ(ejections("status"), 1U);
  EXPECT_EQ(metrics.endpoint_failures.with({"pool", "status"}).value(), 5U);
}

TEST_F(EndpointHealthTest, OneFailedConnectIsEnough) {
  fail(0, FailureKind::kConnect);
  EXPECT_EQ(state(0), HealthState::kEjected);
  EXPECT_EQ(ejections("connect"), 1U);
  settings.connect_failures = 0;
  configure();
  fail(1, FailureKind::kConnect);
  fail(1, FailureKind::kConnect);
  EXPECT_EQ(state(1), HealthState::kHealthy);
  fail(1, FailureKind::kConnect);
  EXPECT_EQ(state(1), HealthState::kEjected);
}

TEST_F(EndpointHealthTest, AShareOfFailuresEjectsOnceThereAreEnoughAnswersInTheWindow) {
  for (int i = 0; i < 9; ++i) {
    fail(0);
    serve(0);
  }
  EXPECT_EQ(state(0), HealthState::kHealthy);  // 9 of 18
  serve(0);
  fail(0);
  EXPECT_EQ(state(0), HealthState::kEjected);  // 10 of 20
  EXPECT_EQ(ejections("failure_ratio"), 1U);
}

TEST_F(EndpointHealthTest, WhatIsOlderThanTheWindowDoesNotCount) {
  for (int i = 0; i < 9; ++i) {
    fail(0);
    serve(0);
  }
  clock.advance(settings.window + settings.window / 10);
  for (int i = 0; i < 2; ++i) {
    fail(0);
    serve(0);
  }
  EXPECT_EQ(state(0), HealthState::kHealthy);
  std::string json;
  health.append_json(json, *of(0), clock.now());
  EXPECT_EQ(json, R"("health":"healthy","answers":4,"failures":2)");
}

TEST_F(EndpointHealthTest, OneRequestAtATimeDecidesWhetherAnEjectedEndpointComesBack) {
  eject(0);
  HealthTicket early;
  clock.advance(seconds(5) - milliseconds(1));
  EXPECT_FALSE(send(early, 0));
  clock.advance(milliseconds(1));
  EXPECT_EQ(state(0), HealthState::kHalfOpen);
  HealthTicket trial;
  HealthTicket second;
  ASSERT_TRUE(send(trial, 0));
  EXPECT_TRUE(trial.on_trial());
  EXPECT_FALSE(send(second, 0));
  trial.output(clock.now());
  EXPECT_EQ(state(0), HealthState::kHealthy);
  EXPECT_EQ(health.out(), 0U);
  EXPECT_TRUE(send(second, 0));
  EXPECT_FALSE(second.on_trial());
  EXPECT_EQ(metrics.endpoint_returns.with({"pool"}).value(), 1U);
}

TEST_F(EndpointHealthTest, AFailedTrialMeansALongerEjectionUpToTheBound) {
  eject(0);
  for (const int expected : {10, 20, 40, 80, 120, 120}) {
    clock.advance(left(0));
    fail(0);
    EXPECT_EQ(left(0), seconds(expected));
  }
  EXPECT_EQ(health.out(), 1U);
  // Healthy for as long as the bound: the next ejection is a first one again.
  clock.advance(left(0));
  serve(0);
  clock.advance(settings.max_ejection);
  eject(0);
  EXPECT_EQ(left(0), seconds(5));
}

TEST_F(EndpointHealthTest, WhoIsBackIsOnProbationUntilAnAnswerIsComplete) {
  eject(0);
  clock.advance(left(0));
  HealthTicket trial;
  ASSERT_TRUE(send(trial, 0));
  trial.output(clock.now());
  trial.fail(FailureKind::kReset, clock.now());
  EXPECT_EQ(state(0), HealthState::kEjected);
  EXPECT_EQ(left(0), seconds(10));
  clock.advance(left(0));
  serve(0);
  fail(0);
  EXPECT_EQ(state(0), HealthState::kHealthy);
}

TEST_F(EndpointHealthTest, ATrialWhoseClientLeavesSaysNothingAndTheNextRequestIsOne) {
  eject(0);
  clock.advance(left(0));
  {
    HealthTicket trial;
    ASSERT_TRUE(send(trial, 0));
    trial.drop(clock.now());
  }
  EXPECT_EQ(state(0), HealthState::kHalfOpen);
  {
    HealthTicket torn_down;
    ASSERT_TRUE(send(torn_down, 0));
    EXPECT_TRUE(torn_down.on_trial());
  }
  HealthTicket next;
  EXPECT_TRUE(send(next, 0));
}

TEST_F(EndpointHealthTest, RequestsSentBeforeAChangeOfStateChangeNothing) {
  HealthTicket before[4];
  for (HealthTicket& ticket : before) ASSERT_TRUE(send(ticket, 0));
  eject(0);
  before[0].fail(FailureKind::kReset, clock.now());
  before[1].succeed(clock.now());
  EXPECT_EQ(state(0), HealthState::kEjected);
  EXPECT_EQ(left(0), seconds(5));
  clock.advance(left(0));
  serve(0);
  before[2].fail(FailureKind::kReset, clock.now());
  before[3].fail(FailureKind::kReset, clock.now());
  EXPECT_EQ(live(0).consecutive_failures, 0U);
  EXPECT_EQ(metrics.endpoint_failures.with({"pool", "reset"}).value(), 3U);
}

TEST_F(EndpointHealthTest, NoMoreOfThePoolIsOutThanMayBe) {
  eject(0);
  eject(1);
  for (int i = 0; i < 6; ++i) fail(2);
  EXPECT_EQ(state(2), HealthState::kHealthy);  // 3 of 4 would be 75 %
  EXPECT_EQ(health.out(), 2U);
  EXPECT_EQ(metrics.ejections_refused.with({"pool"}).value(), 4U);
  // Nobody can connect: no capacity is lost.
  fail(3, FailureKind::kConnect);
  EXPECT_EQ(state(3), HealthState::kEjected);
  // Once another one is back there is room again.
  clock.advance(left(0));
  serve(0);
  serve(1);
  serve(3);
  fail(2);
  EXPECT_EQ(state(2), HealthState::kEjected);
}

TEST_F(EndpointHealthTest, AnEndpointThatLeavesMakesRoom) {
  eject(0);
  eject(1);
  health.removed(*of(0));
  health.removed(*of(0));
  EXPECT_EQ(health.out(), 1U);
  // What is still on its way there is nobody's business any more.
  HealthTicket late;
  clock.advance(seconds(5));
  ASSERT_TRUE(send(late, 0));
  late.fail(FailureKind::kConnect, clock.now());
  EXPECT_EQ(health.out(), 1U);
}

TEST_F(EndpointHealthTest, WhoIsOutAndAsleepTakesNobodysPlace) {
  eject(0);
  eject(1);
  // Of the two that are left none may be out with these two, but one may without them.
  watch.set_size({2, 2});
  for (int n = 0; n < settings.consecutive_failures; ++n) fail(2);
  EXPECT_EQ(state(2), HealthState::kEjected);
  EXPECT_EQ(metrics.ejections_refused.with({"pool"}).value(), 0U);
  for (int n = 0; n < settings.consecutive_failures; ++n) fail(3);
  EXPECT_EQ(state(3), HealthState::kHealthy);
}

TEST_F(EndpointHealthTest, AnEndpointThatLeftIsNotSaidToBeBack) {
  eject(0);
  clock.advance(left(0));
  HealthTicket late;
  ASSERT_TRUE(send(late, 0));
  health.removed(*of(0));
  late.output(clock.now());
  EXPECT_EQ(metrics.endpoint_returns.with({"pool"}).value(), 0U);
  EXPECT_EQ(health.out(), 0U);
}

TEST_F(EndpointHealthTest, ThereIsNoProbationWhereFailuresInARowDoNotEject) {
  settings.consecutive_failures = 0;
  settings.failure_ratio = 0;
  configure();
  fail(0, FailureKind::kConnect);
  ASSERT_EQ(state(0), HealthState::kEjected);
  clock.advance(left(0));
  HealthTicket trial;
  ASSERT_TRUE(send(trial, 0));
  trial.output(clock.now());
  trial.fail(FailureKind::kReset, clock.now());
  EXPECT_EQ(state(0), HealthState::kHealthy);
}

TEST_F(EndpointHealthTest, ATicketMayOutliveItsLoopsWatch) {
  auto gone = std::make_unique<HealthWatch>(health);
  gone->begin(clock.now());
  HealthTicket streaming;
  HealthTicket whole;
  gone->open(streaming, of(0), false, true, clock.now());
  gone->open(whole, of(0), false, false, clock.now());
  gone.reset();
  clock.advance(settings.first_token_stall);
  streaming.drop(clock.now());
  whole.drop(clock.now());
  EXPECT_FALSE(whole.open());
  EXPECT_EQ(live(0).consecutive_failures, 0U);
}

TEST_F(EndpointHealthTest, WhoeverWaitsTooLongAtASilentEndpointIsAFailureOfIts) {
  HealthTicket waiting[3];
  for (HealthTicket& ticket : waiting) ASSERT_TRUE(send(ticket, 0));
  clock.advance(settings.first_token_stall - milliseconds(1));
  watch.begin(clock.now());
  EXPECT_TRUE(waiting[0].open());
  clock.advance(milliseconds(1));
  watch.begin(clock.now());
  EXPECT_EQ(state(0), HealthState::kEjected);
  EXPECT_EQ(ejections("stall"), 1U);
  // Each was counted once; what becomes of them says no more.
  for (HealthTicket& ticket : waiting) {
    EXPECT_FALSE(ticket.open());
    ticket.fail(FailureKind::kTimeout, clock.now());
  }
  EXPECT_EQ(metrics.endpoint_failures.with({"pool", "timeout"}).value(), 0U);
}

TEST_F(EndpointHealthTest, ABusyEndpointThatServesOthersIsNotStalled) {
  HealthTicket served;
  ASSERT_TRUE(send(served, 0));
  HealthTicket queued[3];
  for (HealthTicket& ticket : queued) ASSERT_TRUE(send(ticket, 0));
  for (int i = 0; i < 30; ++i) {
    clock.advance(seconds(10));
    served.output(clock.now());
    watch.begin(clock.now());
  }
  EXPECT_EQ(live(0).consecutive_failures, 0U);
  clock.advance(settings.first_token_stall * 2);
  watch.begin(clock.now());
  EXPECT_EQ(state(0), HealthState::kEjected);
}

TEST_F(EndpointHealthTest, AClientThatGivesUpAfterAStallTellsOfIt) {
  for (int i = 0; i < 3; ++i) {
    HealthTicket impatient;
    ASSERT_TRUE(send(impatient, 0));
    clock.advance(seconds(59));
    impatient.drop(clock.now());
  }
  EXPECT_EQ(state(0), HealthState::kHealthy);
  HealthTicket patient[3];
  for (HealthTicket& ticket : patient) ASSERT_TRUE(send(ticket, 0));
  clock.advance(seconds(60));
  for (HealthTicket& ticket : patient) ticket.drop(clock.now());
  EXPECT_EQ(state(0), HealthState::kEjected);
}

TEST_F(EndpointHealthTest, SwitchedOffEverybodyMayBePickedAndNothingIsCounted) {
  eject(0);
  settings.enabled = false;
  configure();
  EXPECT_EQ(watch.admit(live(0), clock.now(), true), HealthWatch::Entry::kIn);
  HealthTicket ticket;
  watch.open(ticket, of(1), false, true, clock.now());
  EXPECT_FALSE(ticket.open());
  std::string json;
  health.append_json(json, *of(0), clock.now());
  EXPECT_TRUE(json.starts_with(R"("health":"healthy")")) << json;
}

TEST_F(EndpointHealthTest, TellsWhyAndForHowLongAnEndpointIsOut) {
  eject(0);
  clock.advance(seconds(1));
  std::string json;
  health.append_json(json, *of(0), clock.now());
  EXPECT_EQ(
      json,
      R"("health":"ejected","reason":"status","ejected_ms":4000,"ejections":1,"answers":3,"failures":3)");
}

TEST_F(EndpointHealthTest, LoopsThatRaceForATrialShareOne) {
  for (int round = 0; round < 20; ++round) {
    eject(0);
    clock.advance(left(0));
    std::atomic<int> trials{0};
    std::vector<std::thread> loops;
    for (int i = 0; i < 4; ++i) {
      loops.emplace_back([&] {
        if (watch.admit(live(0), clock.now(), true) == HealthWatch::Entry::kTrial) ++trials;
      });
    }
    for (std::thread& loop : loops) loop.join();
    EXPECT_EQ(trials, 1);
    HealthWatch::give_back(live(0));
    serve(0);
    clock.advance(settings.max_ejection);
  }
}

TEST_F(EndpointHealthTest, ConcurrentFailuresEjectOnce) {
  const config::OutlierDetectionSettings now = settings;
  std::vector<std::thread> loops;
  for (int i = 0; i < 4; ++i) {
    loops.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) {
        health.failed(*endpoints[0], now, FailureKind::kReset, 0, false, {4}, clock.now());
        health.succeeded(*endpoints[1], now, 0, clock.now());
      }
    });
  }
  for (std::thread& loop : loops) loop.join();
  EXPECT_EQ(ejections("reset"), 1U);
  EXPECT_EQ(health.out(), 1U);
  EXPECT_EQ(state(1), HealthState::kHealthy);
}

// --- as decisions see it ---

class FixedSession final : public SessionHolder {
 public:
  std::string_view bound_endpoint(const SchedulingContext&) const override { return bound; }
  std::string bound;
};

class HealthDecisionTest : public EndpointHealthTest {
 protected:
  HealthDecisionTest() {
    pool.policy.publish(policy.policy);
    pool.health.configure(settings);
    for (size_t i = 0; i < 3; ++i) pictures.add(endpoints[i]);
    for (Candidate c = 0; c < 3; ++c) {
      for (const Signal s : {Signal::kWaitingRequests, Signal::kRunningRequests, Signal::kKvUsage})
        pictures.set(s, c, s == Signal::kWaitingRequests ? c : 0, clock.now());
    }
    body.append(protocol::kBodyPadding, '\0');
  }
  RequestInput input() {
    RequestInput in;
    in.request_id = "r1";
    in.method = "POST";
    in.path = "/v1/completions";
    in.body = {body.data(), body.size() - protocol::kBodyPadding};
    in.received_at = clock.now();
    return in;
  }
  // Where a request goes that ends with `outcome`.
  template <typename Outcome>
  std::string ask(Outcome&& outcome) {
    Request request;
    if (!director.decide(request, input()).ok()) return "";
    outcome(request.health);
    return request.endpoint->name;
  }
  std::string ask_failing() {
    return ask([&](RequestHealth& health) { health.fail(FailureKind::kStatus, clock.now()); });
  }
  std::string ask_served() {
    return ask([&](RequestHealth& health) { health.succeed(clock.now()); });
  }

  Pool pool{"pool", "default", metrics, {1, 16}};
  TestPolicy policy;
  FixedPictures pictures;
  Director director{pool, std::make_unique<BorrowedPictures>(pictures), clock, {0, 99}};
  std::string body = R"({"model":"m"})";
};

TEST_F(HealthDecisionTest, AnEjectedEndpointIsNoCandidateAndTheRecordSaysSo) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask_failing(), "a");
  Request request;
  ASSERT_TRUE(director.decide(request, input()).ok());
  EXPECT_EQ(request.endpoint->name, "b");
  EXPECT_EQ(request.record.left_out.ejected, 1U);
  EXPECT_EQ(request.record.picked_as, PickedAs::kHealthy);
  const auto json = pool.log.find_json("r1");
  ASSERT_TRUE(json);
  EXPECT_NE(json->find(R"("left_out":{"ejected":1})"), std::string::npos) << *json;
}

TEST_F(HealthDecisionTest, OneDecisionIsTheTrialAndOthersGoElsewhereMeanwhile) {
  for (int i = 0; i < 3; ++i) ask_failing();
  clock.advance(seconds(5));
  Request trial;
  ASSERT_TRUE(director.decide(trial, input()).ok());
  EXPECT_EQ(trial.endpoint->name, "a");
  EXPECT_EQ(trial.record.picked_as, PickedAs::kTrial);
  const auto json = pool.log.find_json("r1");
  ASSERT_TRUE(json);
  EXPECT_NE(json->find(R"("picked_as":"trial")"), std::string::npos) << *json;
  Request other;
  ASSERT_TRUE(director.decide(other, input()).ok());
  EXPECT_EQ(other.endpoint->name, "b");
  EXPECT_EQ(other.record.left_out.on_trial, 1U);
  trial.health.output(clock.now());
  EXPECT_EQ(ask_served(), "a");
}

TEST_F(HealthDecisionTest, ATrialThatIsNotPickedIsFreeAgain) {
  for (int i = 0; i < 3; ++i) ask_failing();
  clock.advance(seconds(5));
  for (Candidate c = 0; c < 3; ++c) pictures.set(Signal::kWaitingRequests, c, c == 1 ? 0 : 9, clock.now());
  Request request;
  ASSERT_TRUE(director.decide(request, input()).ok());
  EXPECT_EQ(request.endpoint->name, "b");
  EXPECT_FALSE(live(0).on_trial);
}

TEST_F(HealthDecisionTest, ExplainingClaimsNoTrial) {
  for (int i = 0; i < 3; ++i) ask_failing();
  clock.advance(seconds(5));
  Request request;
  const std::string json = director.explain(request, input());
  EXPECT_NE(json.find(R"("picked_as":"trial")"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("health":[{"endpoint":"default/a","health":"half_open","reason":"status")"),
            std::string::npos)
      << json;
  EXPECT_FALSE(live(0).on_trial);
}

TEST_F(HealthDecisionTest, WhenEverybodyIsEjectedSomebodyGetsTheRequestAndMayProveItself) {
  settings.max_ejected_percent = 100;
  pool.health.configure(settings);
  for (int i = 0; i < 9; ++i) ask_failing();
  EXPECT_EQ(pool.health.out(), 3U);
  Request request;
  ASSERT_TRUE(director.decide(request, input()).ok());
  EXPECT_EQ(request.record.fallback, FallbackState::kAllEjected);
  EXPECT_EQ(request.record.picked_as, PickedAs::kLastResort);
  EXPECT_EQ(metrics.fallbacks.with({"pool", "all_ejected"}).value(), 1U);
  request.health.output(clock.now());
  EXPECT_EQ(pool.health.out(), 2U);
}

TEST_F(HealthDecisionTest, AllEjectedIsOneStateThroughTrialsAndSubsets) {
  settings.max_ejected_percent = 100;
  pool.health.configure(settings);
  for (int i = 0; i < 9; ++i) ask_failing();
  const auto transitions = [&](const char* state) {
    return metrics.fallback_transitions.with({"pool", state}).value();
  };
  const SubsetEntry first[] = {parse_subset_entry("127.0.0.1:9000")};
  const SubsetEntry everybody[] = {parse_subset_entry("127.0.0.1")};
  const auto state_with = [&](std::optional<std::span<const SubsetEntry>> subset) {
    RequestInput in = input();
    in.subset = subset;
    Request request;
    EXPECT_TRUE(director.decide(request, in).ok());
    return request.record.fallback;
  };
  // What a request may have of the pool says nothing of the rest, unless it is all of it.
  EXPECT_EQ(pool.fallback, FallbackState::kNone);
  EXPECT_EQ(state_with(first), FallbackState::kAllEjected);
  EXPECT_EQ(pool.fallback, FallbackState::kNone);
  EXPECT_EQ(state_with(everybody), FallbackState::kAllEjected);
  EXPECT_EQ(pool.fallback, FallbackState::kAllEjected);
  EXPECT_EQ(state_with(first), FallbackState::kAllEjected);
  EXPECT_EQ(state_with(std::nullopt), FallbackState::kAllEjected);
  // Trials are last chances too.
  clock.advance(seconds(5));
  Request trial;
  ASSERT_TRUE(director.decide(trial, input()).ok());
  EXPECT_EQ(trial.record.picked_as, PickedAs::kTrial);
  EXPECT_EQ(trial.record.fallback, FallbackState::kAllEjected);
  EXPECT_EQ(transitions("all_ejected"), 1U);
  trial.health.output(clock.now());
  EXPECT_EQ(ask_served(), "a");
  EXPECT_EQ(pool.fallback, FallbackState::kNone);
  // A subset of ejected ones, while the pool has a healthy one.
  const SubsetEntry last[] = {parse_subset_entry("127.0.0.1:9002")};
  EXPECT_EQ(state_with(last), FallbackState::kAllEjected);
  EXPECT_EQ(pool.fallback, FallbackState::kNone);
  EXPECT_EQ(transitions("none"), 1U);
}

TEST_F(HealthDecisionTest, SleepingEndpointsThatAreOutLeaveRoomForOtherEjections) {
  // Two of three may be out.
  for (int i = 0; i < 6; ++i) ask_failing();
  EXPECT_EQ(pool.health.out(), 2U);
  live(0).asleep = true;
  live(1).asleep = true;
  settings.max_ejected_percent = 100;
  pool.health.configure(settings);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask_failing(), "c");
  EXPECT_EQ(pool.health.out(), 3U);
}

TEST_F(HealthDecisionTest, AStallIsFoundByTheNextDecisionAndIsAStreams) {
  Request whole[3];
  for (Request& request : whole) ASSERT_TRUE(director.decide(request, input()).ok());
  clock.advance(seconds(600));
  EXPECT_EQ(ask_served(), "a");
  body.insert(1, R"("stream":true,)");
  Request waiting[3];
  for (Request& request : waiting) {
    ASSERT_TRUE(director.decide(request, input()).ok());
    EXPECT_EQ(request.endpoint->name, "a");
  }
  clock.advance(seconds(60));
  EXPECT_EQ(ask_served(), "b");
}

TEST_F(HealthDecisionTest, TheObserverTellsWhatAnAnswerSays) {
  Observer observer;
  std::vector<std::string_view> out;
  const auto answer = [&](int status, bool whole) {
    Request request;
    observer.start(pool, request, nullptr, 0);
    ASSERT_TRUE(director.decide(request, input()).ok());
    observer.head(status, "application/json", "");
    observer.piece("{}", clock.now(), out);
    if (whole) observer.body_end(out);
    observer.end({.status = status, .reason = "ok", .attempts = 1}, clock.now());
    EXPECT_FALSE(request.health.open());
  };
  live(0).consecutive_failures = 2;
  answer(200, false);  // the client left
  EXPECT_EQ(live(0).consecutive_failures, 2U);
  answer(404, true);
  EXPECT_EQ(live(0).consecutive_failures, 0U);
}

TEST_F(HealthDecisionTest, ASleepingEngineGetsNothingAndAWokenOneIsBack) {
  live(0).asleep = true;
  Request request;
  ASSERT_TRUE(director.decide(request, input()).ok());
  EXPECT_EQ(request.endpoint->name, "b");
  EXPECT_EQ(request.record.left_out.asleep, 1U);
  live(0).asleep = false;
  EXPECT_EQ(ask_served(), "a");
}

TEST_F(HealthDecisionTest, WhenEveryEngineSleepsTheAnswerSaysSo) {
  for (size_t i = 0; i < 3; ++i) live(i).asleep = true;
  Request request;
  const Status status = director.decide(request, input());
  EXPECT_EQ(status.error().code, ErrorCode::kServiceUnavailable);
  EXPECT_EQ(status.error().message, "every engine of the pool that could be asked sleeps");
  EXPECT_EQ(request.record.fallback, FallbackState::kAllAsleep);
}

TEST_F(HealthDecisionTest, ADrainingEndpointGetsNothingButTheSessionsThatAreBoundToIt) {
  auto* sessions = policy.add<FixedSession>("sessions");
  policy.policy->session_holders.push_back(sessions);
  endpoints[0]->draining = true;
  EXPECT_EQ(ask_served(), "b");
  sessions->bound = "default/c";
  EXPECT_EQ(ask_served(), "b");  // a candidate like others
  sessions->bound = "default/a";
  Request request;
  ASSERT_TRUE(director.decide(request, input()).ok());
  EXPECT_EQ(request.endpoint->name, "a");
  EXPECT_EQ(request.record.picked_as, PickedAs::kSession);
  EXPECT_EQ(request.record.left_out.draining, 1U);
  const EndpointSlot tried = 0;
  ASSERT_TRUE(director.decide_again(request, {&tried, 1}).ok());
  EXPECT_EQ(request.endpoint->name, "b");
  // Who fails or sleeps keeps no session.
  live(0).asleep = true;
  EXPECT_EQ(ask_served(), "b");
  live(0).asleep = false;
  pool.health.failed(*endpoints[0], settings, FailureKind::kConnect, 0, false, {3}, clock.now());
  EXPECT_EQ(ask_served(), "b");
}

TEST_F(HealthDecisionTest, ASessionGoesOnInAPoolThatDrainsAsAWhole) {
  auto* sessions = policy.add<FixedSession>("sessions");
  policy.policy->session_holders.push_back(sessions);
  for (size_t i = 0; i < 3; ++i) endpoints[i]->draining = true;
  EXPECT_EQ(ask_served(), "");
  sessions->bound = "default/b";
  EXPECT_EQ(ask_served(), "b");
}

}  // namespace
}  // namespace penstock::director
