#include "director/director.h"

#include <gtest/gtest.h>

#include <set>

#include "director/observer.h"
#include "director/testing.h"

namespace penstock::director {
namespace {

using namespace testing;

class DirectorTest : public ::testing::Test {
 protected:
  DirectorTest() {
    for (EndpointSlot i = 0; i < 3; ++i) {
      endpoints.push_back(
          make_endpoint(i, std::string(1, static_cast<char>('a' + i)), static_cast<uint16_t>(9000 + i)));
    }
    pool.policy.publish(policy.policy);
  }
  void use_endpoints(size_t count) {
    for (size_t i = 0; i < count; ++i) pictures.add(endpoints[i]);
  }
  // Endpoint `best` has an empty queue, the others wait.
  void favour(Candidate best) {
    for (Candidate c = 0; c < pictures.refresh(clock.now()).pool->endpoints.size(); ++c) {
      for (const Signal s : {Signal::kWaitingRequests, Signal::kRunningRequests, Signal::kKvUsage}) {
        pictures.set(s, c, s == Signal::kWaitingRequests && c != best ? 5 : 0, clock.now());
      }
    }
  }
  RequestInput input(std::string_view text) {
    body.assign(text);
    body.append(protocol::kBodyPadding, '\0');
    RequestInput in;
    in.request_id = "r1";
    in.method = "POST";
    in.path = "/v1/completions";
    in.headers = headers;
    in.body = {body.data(), text.size()};
    in.received_at = clock.now();
    return in;
  }
  std::string sent_body() {
    if (request.rewritten.pieces.empty()) return std::string(request.body.view());
    std::string out;
    for (const std::string_view piece : request.rewritten.pieces) out += piece;
    EXPECT_EQ(out.size(), request.rewritten.size);
    return out;
  }
  void set_rewrites(std::vector<RewriteObject> objects) {
    auto rules = std::make_shared<PoolRules>();
    rules->rewrites = RewriteTable(std::move(objects));
    rules->objective_priorities = {{"batch", -1}, {"gold", 5}};
    pool.rules.publish(rules);
  }

  ManualClock clock;
  telemetry::MetricRegistry registry;
  RequestMetrics metrics{registry};
  Pool pool{"pool", "default", metrics, {1, 16}};
  TestPolicy policy;
  FixedPictures pictures;
  Director director{pool, std::make_unique<BorrowedPictures>(pictures), clock, {0, 99}};
  std::vector<std::shared_ptr<Endpoint>> endpoints;
  std::vector<HeaderField> headers;
  std::string body;
  Request request;
};

TEST_F(DirectorTest, TheRequestGoesWhereTheScoresSayAndItsLoadIsReservedThere) {
  use_endpoints(3);
  favour(1);
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  EXPECT_EQ(request.endpoint->id, "default/b");
  EXPECT_EQ(request.destination, "127.0.0.1:9001");
  EXPECT_EQ(EndpointLive::requests_of(endpoints[1]->live->load), 1U);
  EXPECT_EQ(EndpointLive::tokens_of(endpoints[1]->live->load), 100U);
  EXPECT_EQ(request.record.winner, "default/b");
  EXPECT_EQ(request.record.policy_epoch, 3U);
  EXPECT_EQ(request.record.membership_epoch, 7U);
  EXPECT_TRUE(request.rewritten.pieces.empty());
  request.reset();
  EXPECT_EQ(endpoints[1]->live->load, 0U);
}

TEST_F(DirectorTest, ASignalThatNobodyEverSawMakesTheRecordsAgeUnknownAndNotZero) {
  class QueueScorer final : public Scorer {
   public:
    void score(SchedulingContext&, std::span<const Candidate>, std::span<double> scores) const override {
      std::fill(scores.begin(), scores.end(), 1.0);
    }
    void declare_data(DataDeclaration& declaration) const override {
      declaration.require<SignalValue>(data_keys::kWaitingQueueSize);
    }
    void explain(const SchedulingContext&, Candidate, std::string&) const override {}
  };
  TestPolicy own;
  std::vector<scheduling::Profile> profiles(1);
  profiles[0].name = "default";
  profiles[0].scorers.push_back({own.add<QueueScorer>("queue"), 1.0});
  profiles[0].picker = own.add<BestPicker>("best");
  own.policy->scheduler =
      std::make_unique<scheduling::Scheduler>(std::move(profiles), own.add<OneProfile>("one"));
  pool.policy.publish(own.policy);
  use_endpoints(1);
  const auto age = [&] {
    request.reset();
    EXPECT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
    const std::string json = pool.log.find_json("r1").value_or("");
    const size_t at = json.find(R"("oldest_signal_age_ms":)") + 23;
    return json.substr(at, json.find(',', at) - at);
  };
  EXPECT_EQ(age(), "null");
  pictures.set(Signal::kWaitingRequests, 0, 1, clock.now());
  clock.advance(std::chrono::milliseconds(40));
  EXPECT_EQ(age(), "40");
}

TEST_F(DirectorTest, ParsingAndRewritingComeBeforeTheLookForEndpoints) {
  const Status broken = director.decide(request, input("no healthy upstream"));
  EXPECT_EQ(broken.error().code, ErrorCode::kBadRequest);
  request.reset();
  const Status no_model = director.decide(request, input(R"({"prompt":"hello world"})"));
  EXPECT_EQ(no_model.error().code, ErrorCode::kBadRequest);
  EXPECT_EQ(no_model.error().message, "model not found in request body");
}

TEST_F(DirectorTest, AnEmptyPoolIsA503EvenForSheddableRequests) {
  set_rewrites({});
  headers = {{"x-llm-d-inference-objective", "batch"}};
  policy.saturation->value = 1.0;
  const Status status = director.decide(request, input(R"({"model":"m"})"));
  EXPECT_EQ(status.error().code, ErrorCode::kServiceUnavailable);
  EXPECT_EQ(status.error().message, "failed to find endpoint candidates for serving the request");
  EXPECT_EQ(status.error().dropped_reason, "rejected-no-endpoints");
  EXPECT_EQ(request.record.fallback, FallbackState::kNoEndpoint);
}

TEST_F(DirectorTest, ASaturatedPoolShedsNegativePrioritiesOnly) {
  use_endpoints(2);
  favour(0);
  set_rewrites({});
  policy.saturation->value = 1.0;
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  request.reset();
  headers = {{"x-gateway-inference-objective", "batch"}};
  const Status shed = director.decide(request, input(R"({"model":"m"})"));
  EXPECT_EQ(shed.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(shed.error().message, "system saturated, sheddable request dropped");
  EXPECT_EQ(endpoints[0]->live->load, 0U);
}

TEST_F(DirectorTest, TheCurrentHeaderNameHidesItsAlias) {
  use_endpoints(1);
  set_rewrites({});
  headers = {{"x-gateway-inference-objective", "batch"}, {"x-llm-d-inference-objective", "gold"}};
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  EXPECT_EQ(request.inference.priority, 5);
  EXPECT_EQ(request.inference.fairness_id, "default-flow");
}

TEST_F(DirectorTest, ARewriteReplacesEveryModelLiteralAndNothingElse) {
  use_endpoints(1);
  set_rewrites({{"r", 1, {{{"b"}, false, {{"served \"x\"", std::nullopt}}}}}});
  ASSERT_TRUE(director.decide(request, input(R"({"model":"a", "n":1.0, "model":"b"})")).ok());
  EXPECT_EQ(sent_body(), R"({"model":"served \"x\"", "n":1.0, "model":"served \"x\""})");
  EXPECT_EQ(request.inference.incoming_model, "b");
  EXPECT_EQ(request.inference.target_model, "served \"x\"");
  EXPECT_TRUE(request.restore_model);
}

TEST_F(DirectorTest, ARuleOverridesTheRewriteHeaderAndTheHeaderTheBody) {
  use_endpoints(1);
  headers = {{"x-llm-d-model-name-rewrite", "T"}};
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  EXPECT_EQ(sent_body(), R"({"model":"T"})");
  request.reset();
  set_rewrites({{"r", 1, {{{"m"}, false, {{"R", std::nullopt}}}}}});
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  EXPECT_EQ(sent_body(), R"({"model":"R"})");
}

TEST_F(DirectorTest, AMissingModelIsPutInWhereAHeaderNamesIt) {
  use_endpoints(1);
  headers = {{"x-llm-d-model-name-rewrite", "T"}};
  ASSERT_TRUE(director.decide(request, input("{\"prompt\":\"p\"}\n")).ok());
  EXPECT_EQ(sent_body(), "{\"model\":\"T\",\"prompt\":\"p\"}\n");
  EXPECT_FALSE(request.restore_model);
  request.reset();
  ASSERT_TRUE(director.decide(request, input("{}")).ok());
  EXPECT_EQ(sent_body(), R"({"model":"T"})");
}

TEST_F(DirectorTest, AParserThatCannotRewriteLeavesTheBodyAlone) {
  use_endpoints(1);
  policy.parser->rewrites = false;
  headers = {{"x-llm-d-model-name-rewrite", "T"}};
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  EXPECT_TRUE(request.rewritten.pieces.empty());
  EXPECT_EQ(request.inference.target_model, "T");
}

TEST_F(DirectorTest, ABodyThatIsNoObjectNeedsNoModelAndGoesOutAsItCame) {
  use_endpoints(1);
  policy.parser->rewritable = false;
  set_rewrites({{"r", 1, {{{}, true, {{"R", std::nullopt}}}}}});
  ASSERT_TRUE(director.decide(request, input("{\"prompt\":\"p\"}")).ok());
  EXPECT_EQ(sent_body(), "{\"prompt\":\"p\"}");
  EXPECT_FALSE(request.restore_model);
}

TEST_F(DirectorTest, AStateOfThePoolIsCountedOnceARequestAndLosingEveryEngineIsNoneOfIt) {
  use_endpoints(2);
  policy.policy->sources.emplace_back();  // signals are wanted, and there are none
  for (int i = 0; i < 3; ++i) {
    request.reset();
    ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
    const std::array<EndpointSlot, 2> tried{0, 1};
    ASSERT_TRUE(director.decide_again(request, std::span(tried).first(1)).ok());
    EXPECT_FALSE(director.decide_again(request, tried).ok());
    EXPECT_EQ(request.record.fallback, FallbackState::kNoFreshSignals);
    EXPECT_EQ(pool.fallback, FallbackState::kNoFreshSignals);
  }
  EXPECT_EQ(metrics.fallbacks.with({"pool", "no_fresh_signals"}).value(), 3U);
  EXPECT_EQ(metrics.fallbacks.with({"pool", "no_endpoint"}).value(), 0U);
}

// Needs what it reads, as the real ones say.
class DeclaredScorer final : public Scorer {
 public:
  void declare_data(DataDeclaration& declaration) const override {
    declaration.require<SignalValue>(data_keys::kWaitingQueueSize);
  }
  void score(SchedulingContext&, std::span<const Candidate>, std::span<double> scores) const override {
    for (double& score : scores) score = 1.0;
  }
  void explain(const SchedulingContext&, Candidate, std::string& out) const override { out += "declared"; }
};

TEST_F(DirectorTest, AFallbackForLackOfFreshSignalsIsAStateInRecordExplanationMetricsAndOnceInTheLog) {
  use_endpoints(2);
  favour(0);
  std::vector<scheduling::Profile> profiles(1);
  profiles[0].name = "default";
  profiles[0].scorers.push_back({policy.add<DeclaredScorer>("declared"), 1.0});
  profiles[0].picker = policy.add<BestPicker>("best-again");
  policy.policy->scheduler =
      std::make_unique<scheduling::Scheduler>(std::move(profiles), policy.add<OneProfile>("one-again"));
  policy.policy->strict = true;
  policy.policy->freshness.emplace();
  pool.policy.publish(policy.policy);
  const auto gauge = [&](const char* state) { return metrics.fallback_state.with({"pool", state}).value(); };
  const auto entered = [&](const char* state) {
    return metrics.fallback_transitions.with({"pool", state}).value();
  };
  const auto decide = [&] {
    request.reset();
    ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  };
  decide();
  EXPECT_EQ(request.record.fallback, FallbackState::kNone);
  EXPECT_EQ(gauge("none"), 1);

  clock.advance(std::chrono::seconds(3));
  request.reset();
  const std::string explained = director.explain(request, input(R"({"model":"m"})"));
  for (const char* part :
       {R"("fallback":"too_few_fresh_signals")", R"("decided_by":"least-in-flight")",
        R"("fresh_candidates":0)", R"("scorer":"least-in-flight","text":"0 requests in flight")",
        R"("age_ms":3000.000,"influence":0.875,"sent_since":0)"}) {
    EXPECT_NE(explained.find(part), std::string::npos) << part << " in " << explained;
  }
  EXPECT_EQ(gauge("none"), 1) << "explaining is no decision";
  for (int i = 0; i < 3; ++i) decide();
  EXPECT_EQ(request.record.fallback, FallbackState::kTooFewFreshSignals);
  EXPECT_EQ(metrics.fallbacks.with({"pool", "too_few_fresh_signals"}).value(), 3U);
  EXPECT_EQ(entered("too_few_fresh_signals"), 1U);
  EXPECT_EQ(gauge("too_few_fresh_signals"), 1);
  EXPECT_EQ(gauge("none"), 0);

  favour(0);  // scraped again
  decide();
  EXPECT_EQ(request.record.fallback, FallbackState::kNone);
  EXPECT_EQ(entered("none"), 1U);
  EXPECT_EQ(gauge("too_few_fresh_signals"), 0);
  EXPECT_EQ(gauge("none"), 1);
}

TEST_F(DirectorTest, StrictModeShedsOnlyWhereEveryEndpointIsFullAndUsesThoseWithRoom) {
  class ByEndpoint final : public SaturationDetector {
   public:
    double saturation(const PoolSnapshot&, const SignalView&, std::span<const Candidate> candidates,
                      TimePoint) const override {
      double sum = 0;
      for (const Candidate c : candidates) sum += full[c] ? 2.0 : 0.0;
      return sum / static_cast<double>(candidates.size());
    }
    std::vector<bool> full{true, true, false};
  };
  use_endpoints(3);
  favour(0);
  set_rewrites({});
  auto* detector = policy.add<ByEndpoint>("by-endpoint");
  policy.policy->saturation = detector;
  headers = {{"x-gateway-inference-objective", "batch"}};
  EXPECT_FALSE(director.decide(request, input(R"({"model":"m"})")).ok()) << "compatible: the mean is 4/3";
  policy.policy->strict = true;
  request.reset();
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  EXPECT_EQ(request.endpoint, endpoints[2]) << "the only one with room, though its queue is longer";
  detector->full[2] = true;
  request.reset();
  EXPECT_EQ(director.decide(request, input(R"({"model":"m"})")).error().code, ErrorCode::kResourceExhausted);
  headers.clear();
  request.reset();
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok()) << "nothing sheddable, nothing gated";
  EXPECT_EQ(request.endpoint, endpoints[0]);
}

TEST_F(DirectorTest, AProducersFailureIsCountedAndDoesNotChangeThePoolsState) {
  use_endpoints(1);
  policy.policy->producers.push_back(policy.add<FailingProducer>("failing"));
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  EXPECT_EQ(request.record.fallback, FallbackState::kProducerFailed);
  EXPECT_EQ(metrics.fallbacks.with({"pool", "producer_failed"}).value(), 1U);
  EXPECT_EQ(pool.fallback, FallbackState::kNone);
}

class TestQuestion final : public Question {
 public:
  std::string text = "no answer yet";
  void answer(std::string with) {
    text = std::move(with);
    end();
  }
};

// Asks about every candidate, and fails with what the question says.
class Asker final : public DataProducer, public AskingProducer {
 public:
  bool asks() const override { return true; }
  std::shared_ptr<Question> ask(SchedulingContext& ctx) const override {
    EXPECT_TRUE(ctx.explain);
    asked_of = ctx.candidates.size();
    draw = ctx.random.next_u64();
    question = std::make_shared<TestQuestion>();
    return question;
  }
  Status produce(SchedulingContext& ctx) const override {
    if (ctx.explain) return {};
    drawn_again = ctx.random.next_u64() == draw;
    for (const AskedQuestion& asked : ctx.questions) {
      if (asked.by == this) seen = static_cast<const TestQuestion&>(*asked.question).text;
    }
    if (seen == "fine") return {};
    return Error{ErrorCode::kBadGateway, seen};
  }
  mutable std::shared_ptr<TestQuestion> question;
  mutable size_t asked_of = 0;
  mutable uint64_t draw = 0;
  mutable bool drawn_again = false;
  mutable std::string seen = "was not asked";
};

TEST_F(DirectorTest, WhatIsAskedOutsideIsAskedBeforeTheDecisionAndAnsweredInIt) {
  use_endpoints(3);
  favour(1);
  RequestInput in = input(R"({"model":"m"})");
  EXPECT_FALSE(director.ask(request, in)) << "no producer asks";
  auto* asker = policy.add<Asker>("asker");
  policy.policy->producers.push_back(asker);
  policy.policy->asking.push_back(asker);
  ASSERT_TRUE(director.ask(request, in));
  EXPECT_EQ(asker->asked_of, 3U);
  EXPECT_TRUE(request.record.profiles.empty());
  EXPECT_EQ(endpoints[1]->live->load.load(), 0U) << "asking reserves nothing";
  asker->question->answer("fine");
  ASSERT_TRUE(director.decide(request, in).ok());
  EXPECT_EQ(asker->seen, "fine");
  EXPECT_EQ(policy.parser->parses, 1U) << "the body is read once";
  EXPECT_TRUE(asker->drawn_again) << "with the decision's own randomness";
  EXPECT_EQ(request.record.fallback, FallbackState::kNone);
  request.reset();
  EXPECT_TRUE(request.questions.empty());

  ASSERT_TRUE(director.ask(request, in));
  asker->question->answer("timed out");
  ASSERT_TRUE(director.decide(request, in).ok()) << "the request goes on";
  EXPECT_EQ(request.record.fallback, FallbackState::kProducerFailed);
  EXPECT_EQ(metrics.fallbacks.with({pool.name, "producer_failed"}).value(), 1U);
}

TEST_F(DirectorTest, ExplainCountsNothing) {
  set_rewrites({{"r", 1, {{{"m"}, false, {{"R", std::nullopt}}}}}});
  const std::string before = registry.render();
  director.explain(request, input(R"({"model":"m"})"));  // nobody is there
  use_endpoints(2);
  EXPECT_NE(director.explain(request, input(R"({"model":"m"})")).find(R"("target_model":"R")"),
            std::string::npos);
  EXPECT_EQ(registry.render(), before);
  EXPECT_EQ(pool.fallback, FallbackState::kNone);
  // Nor do the names asked about use up what metrics have for names.
  for (int i = 0; i < 1001; ++i) {
    request.reset();
    director.explain(request, input(R"({"model":"m)" + std::to_string(i) + "\"}"));
  }
  EXPECT_EQ(metrics.models.admit("fresh"), "fresh");
}

TEST_F(DirectorTest, ProducersAreTimedButForExplanations) {
  use_endpoints(1);
  policy.policy->producers.push_back(policy.add<FailingProducer>("failing"));
  const auto& seconds = metrics.plugin_seconds.with({"DataProducer", "failing", "failing"});
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  EXPECT_EQ(seconds.count(), 1U);
  request.reset();
  director.explain(request, input(R"({"model":"m"})"));
  EXPECT_EQ(seconds.count(), 1U);
}

TEST_F(DirectorTest, TheFirstTokenOfAStreamIsTheFirstEventWithOutput) {
  use_endpoints(1);
  Observer observer;
  observer.start(pool, request, nullptr, 0);
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m","stream":true})")).ok());
  observer.head(200, "text/event-stream", "");
  EXPECT_TRUE(observer.takes_events());
  std::vector<std::string_view> out;
  clock.advance(std::chrono::seconds(1));
  observer.piece("data: {\"choices\":[{\"text\":\"\"}]}\n\n", clock.now(), out);
  clock.advance(std::chrono::seconds(1));
  observer.piece("data: {\"choices\":[{\"text\":\"a\"}]}\n\n", clock.now(), out);
  clock.advance(std::chrono::seconds(1));
  observer.piece("data: [DONE]\n\n", clock.now(), out);
  observer.body_end(out);
  observer.end({.status = 200, .reason = "ok", .attempts = 1}, clock.now());
  EXPECT_EQ(request.series->ttft_streaming->sum(), 2);
  EXPECT_EQ(request.series->ttft_unary->count(), 0U);
  EXPECT_EQ(request.series->itl->sum(), 1);
}

TEST_F(DirectorTest, DrainingEndpointsGetNothingAndEjectedOnesOnlyWhenNobodyElseIsThere) {
  config::OutlierDetectionSettings health;
  health.enabled = true;
  pool.health.configure(health);
  endpoints[0]->draining = true;
  use_endpoints(3);
  favour(0);
  endpoints[1]->live->ejected_until_ns = (clock.now() + std::chrono::seconds(1)).time_since_epoch().count();
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  EXPECT_EQ(request.endpoint->id, "default/c");
  request.reset();
  endpoints[2]->live->ejected_until_ns = (clock.now() + std::chrono::seconds(1)).time_since_epoch().count();
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  EXPECT_NE(request.endpoint->id, "default/a");
  EXPECT_EQ(request.record.fallback, FallbackState::kAllEjected);
  EXPECT_EQ(request.record.picked_as, PickedAs::kLastResort);
}

TEST_F(DirectorTest, DecidingAgainMovesTheReservationToAnotherEndpoint) {
  use_endpoints(2);
  favour(0);
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  const std::array<EndpointSlot, 2> tried{0, 1};
  ASSERT_TRUE(director.decide_again(request, std::span(tried).first(1)).ok());
  EXPECT_EQ(request.endpoint->id, "default/b");
  EXPECT_EQ(endpoints[0]->live->load, 0U);
  EXPECT_EQ(EndpointLive::requests_of(endpoints[1]->live->load), 1U);
  EXPECT_EQ(director.decide_again(request, tried).error().code, ErrorCode::kServiceUnavailable);
  EXPECT_EQ(endpoints[1]->live->load, 0U);
}

TEST_F(DirectorTest, ACachedOnlyRequestWithoutAMatchIsA412) {
  use_endpoints(1);
  headers = {{"prefer", "return=minimal, IF-Available;wait=5"}};
  EXPECT_EQ(director.decide(request, input(R"({"model":"m"})")).error().code, ErrorCode::kPreconditionFailed);
  request.reset();
  headers = {{"prefer", "return=minimal"}};
  EXPECT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
}

TEST_F(DirectorTest, ARecordedRequestReplaysToTheSameRecordBitForBit) {
  use_endpoints(3);
  favour(7);  // nobody: all are equal, the pick is random
  const auto json = [&](std::optional<uint64_t> seed) {
    request.reset();
    RequestInput in = input(R"({"model":"m"})");
    in.seed = seed;
    EXPECT_TRUE(director.decide(request, in).ok());
    std::string out;
    append_record_json(out, request.record, {}, std::nullopt, true);
    return out;
  };
  std::vector<std::pair<uint64_t, std::string>> recorded;
  for (int i = 0; i < 50; ++i) {
    std::string first = json(std::nullopt);
    recorded.emplace_back(request.record.seed, std::move(first));
  }
  std::set<std::string> winners;
  for (const auto& [seed, first] : recorded) {
    EXPECT_EQ(json(seed), first);
    winners.insert(std::string(request.record.winner));
  }
  EXPECT_EQ(winners.size(), 3U);
}

TEST_F(DirectorTest, ExplainShowsEveryCandidateAndReservesNothing) {
  use_endpoints(3);
  favour(2);
  const std::string json = director.explain(request, input(R"({"model":"m"})"));
  EXPECT_NE(json.find(R"("endpoint":"default/c")"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("scorer":"waiting","text":"waiting 5")"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("signal":"waiting_requests","value":5)"), std::string::npos) << json;
  for (const auto& endpoint : endpoints) EXPECT_EQ(endpoint->live->load, 0U);
  EXPECT_EQ(pool.log.list_json(10), "[]");
}

TEST_F(DirectorTest, TheEndOfARequestIsCountedOnceAndReturnsItsLoad) {
  use_endpoints(1);
  favour(0);
  Observer observer;
  observer.start(pool, request, nullptr, 0);
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  EXPECT_EQ(request.series->running->value(), 1);
  clock.advance(std::chrono::seconds(1));
  observer.head(200, "application/json", "");
  std::vector<std::string_view> out;
  observer.piece(R"({"usage":{"prompt_tokens":7,"completion_tokens":4,"total_tokens":11}})", clock.now(),
                 out);
  EXPECT_EQ(EndpointLive::tokens_of(endpoints[0]->live->load), 0U);
  observer.body_end(out);
  clock.advance(std::chrono::seconds(1));
  observer.end({.status = 200, .reason = "ok", .attempts = 1}, clock.now());
  observer.end({.status = 200, .reason = "ok", .attempts = 1}, clock.now());
  EXPECT_EQ(endpoints[0]->live->load, 0U);
  EXPECT_EQ(request.series->running->value(), 0);
  EXPECT_EQ(request.series->duration->count(), 1U);
  EXPECT_EQ(request.series->input_tokens->sum(), 7);
  EXPECT_EQ(request.series->ntpot->sum(), 0.5);
  const std::string text = registry.render();
  EXPECT_NE(text.find(R"(llm_d_epp_request_total{model_name="m",target_model_name="m",)"), std::string::npos);
  EXPECT_NE(pool.log.find_json("r1")->find(R"("status":200)"), std::string::npos);
}

TEST_F(DirectorTest, OnlyEndpointsOfTheSubsetAreCandidates) {
  use_endpoints(3);
  favour(1);
  RequestInput in = input(R"({"model":"m"})");
  const SubsetEntry other[] = {parse_subset_entry("127.0.0.1:9002")};
  in.subset = other;
  ASSERT_TRUE(director.decide(request, in).ok());
  EXPECT_EQ(request.endpoint->id, "default/c");
  request.reset();
  // A port that nobody has means the address, as the reference reads it.
  const SubsetEntry address[] = {parse_subset_entry("127.0.0.1:80")};
  in.subset = address;
  ASSERT_TRUE(director.decide(request, in).ok());
  EXPECT_EQ(request.endpoint->id, "default/b");
  for (const std::string_view nobody : {"192.168.1.99:8000", ""}) {
    request.reset();
    const SubsetEntry entries[] = {parse_subset_entry(nobody)};
    in.subset = std::span(entries).first(nobody.empty() ? 0 : 1);
    const Status status = director.decide(request, in);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kServiceUnavailable);
    EXPECT_EQ(status.error().dropped_reason, "rejected-no-endpoints");
  }
  // The pool itself is well.
  EXPECT_EQ(pool.fallback.load(), FallbackState::kNone);
}

TEST_F(DirectorTest, EachEntryOfALargeSubsetMeansItsEndpointOrItsAddress) {
  use_endpoints(3);
  favour(1);
  RequestInput in = input(R"({"model":"m"})");
  std::vector<std::string> texts;
  for (int i = 0; i < 5000; ++i)
    texts.push_back("10.0.0." + std::to_string(i % 250) + ":" + std::to_string(i));
  texts.push_back("127.0.0.1:9002");
  texts.push_back("127.0.0.1:9002");
  std::vector<SubsetEntry> entries;
  for (const std::string& text : texts) entries.push_back(parse_subset_entry(text));
  in.subset = entries;
  ASSERT_TRUE(director.decide(request, in).ok());
  EXPECT_EQ(request.endpoint->id, "default/c");
  // One entry means its endpoint, another one the whole address.
  for (const std::string_view whole : {"127.0.0.1", "127.0.0.1:1"}) {
    request.reset();
    entries.back() = parse_subset_entry(whole);
    in.subset = entries;
    ASSERT_TRUE(director.decide(request, in).ok());
    EXPECT_EQ(request.endpoint->id, "default/b");
  }
  request.reset();
  entries.resize(kMaxSubsetEntries + 1);
  in.subset = entries;
  const Status status = director.decide(request, in);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kBadRequest);
  EXPECT_NE(status.error().message.find("16384 entries"), std::string::npos) << status.error().message;
}

TEST(Subset, AnEntryIsAnAddressWithOrWithoutAPort) {
  const auto entry = [](std::string_view text) {
    const SubsetEntry e = parse_subset_entry(text);
    return std::string(e.address) + " " + std::to_string(e.port);
  };
  EXPECT_EQ(entry("10.0.0.1:8000"), "10.0.0.1 8000");
  EXPECT_EQ(entry(" 10.0.0.1 "), "10.0.0.1 0");
  EXPECT_EQ(entry("[fd00::1]:8000"), "fd00::1 8000");
  EXPECT_EQ(entry("[fd00::1]"), "fd00::1 0");
  EXPECT_EQ(entry("fd00::1"), "fd00::1 0");
  EXPECT_EQ(entry("10.0.0.1:99999"), "10.0.0.1 0");
}

TEST_F(DirectorTest, ScoresOfThePrimaryProfileAreKeptOnDemand) {
  use_endpoints(3);
  favour(1);
  RequestInput in = input(R"({"model":"m"})");
  ASSERT_TRUE(director.decide(request, in).ok());
  EXPECT_TRUE(request.scores.empty());
  request.reset();
  in.keep_scores = true;
  ASSERT_TRUE(director.decide(request, in).ok());
  ASSERT_EQ(request.scores.size(), 3U);
  EXPECT_EQ(request.scores[1].host_port, "127.0.0.1:9001");
  EXPECT_EQ(request.scores[1].total, 2.0);
}

TEST_F(DirectorTest, AMessageWithoutABodyIsNotParsedWhateverItsMethod) {
  use_endpoints(1);
  RequestInput in = input("");
  in.bodyless = true;
  ASSERT_TRUE(director.decide(request, in).ok());
  EXPECT_EQ(request.inference.api, ApiKind::kNone);
}

TEST_F(DirectorTest, ASettledRequestKeepsWhatItsAnswerNeedsWithoutTheArena) {
  use_endpoints(1);
  Observer observer;
  observer.start(pool, request, nullptr, 0);
  ASSERT_TRUE(director.decide(request, input(R"({"model":"m"})")).ok());
  Arena spare(1024);
  request.settle(spare);
  spare.reset(0);
  body.assign(body.size(), '?');
  EXPECT_EQ(request.arena.held_bytes(), 0U);
  EXPECT_EQ(request.inference.request_id, "r1");
  EXPECT_EQ(request.inference.incoming_model, "m");
  EXPECT_EQ(request.record.winner, "default/a");
  observer.head(200, "application/json", "");
  observer.end({.status = 200, .reason = "ok", .error = nullptr, .attempts = 1, .own_bytes = 0, .wall = {}},
               clock.now());
  EXPECT_EQ(EndpointLive::requests_of(endpoints[0]->live->load), 0U);
  EXPECT_NE(pool.log.find_json("r1")->find("\"status\":200"), std::string::npos);
}

TEST_F(DirectorTest, ARefusalBeforeTheDecisionIsRecordedAndItsStateCounted) {
  use_endpoints(1);
  const Error late{ErrorCode::kRequestTimeout, "the body did not come in time"};
  director.refuse(request, input(""), late, FallbackState::kOverTime);
  EXPECT_NE(pool.log.find_json("r1")->find("the body did not come in time"), std::string::npos);
  EXPECT_EQ(metrics.fallbacks.with({"pool", "over_time"}).value(), 1U);
  EXPECT_EQ(pool.fallback.load(), FallbackState::kNone);
}

}  // namespace
}  // namespace penstock::director
