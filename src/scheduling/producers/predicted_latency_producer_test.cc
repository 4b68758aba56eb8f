#include "scheduling/producers/predicted_latency_producer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "base/random.h"
#include "scheduling/fake_outside.h"
#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::HasSubstr;

TEST(OnlineRegressionTest, LearnsALinearFunctionAndHowSureItIs) {
  OnlineRegression<2> model;
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const double x = random.uniform();
    model.learn({1, x}, 5 + 20 * x + 0.2 * (random.uniform() - 0.5));
  }
  EXPECT_NEAR(model.value_at({1, 0.5}), 15, 0.1);
  EXPECT_LT(model.mean_absolute_error(), 0.1);
  EXPECT_LT(model.error_at({1, 0.5}), 0.1);
  EXPECT_GT(model.error_at({1, 50}), model.error_at({1, 0.5}));
}

TEST(OnlineRegressionTest, FollowsAChangeAndIgnoresWhatIsNoNumber) {
  OnlineRegression<2> model;
  for (int i = 0; i < 200; ++i) model.learn({1, i % 5 / 5.0}, 10);
  model.learn({1, std::nan("")}, 10);
  model.learn({1, 0}, INFINITY);
  EXPECT_EQ(model.samples(), 200U);
  for (int i = 0; i < 2000; ++i) model.learn({1, i % 5 / 5.0}, 30);
  EXPECT_NEAR(model.value_at({1, 0.4}), 30, 0.5);
}

TEST(OnlineRegressionTest, StartsOverWhereItsNumbersOverflow) {
  OnlineRegression<2> model;
  for (int i = 0; i < 50; ++i) model.learn({1, i % 5 / 5.0}, 10);
  model.learn({1, 0.5}, 1e300);
  EXPECT_EQ(model.samples(), 0U);
  EXPECT_EQ(model.value_at({1, 0.5}), 0);
  for (int i = 0; i < 50; ++i) model.learn({1, i % 5 / 5.0}, 10);
  model.learn({1, 1e300}, 10);
  for (int i = 0; i < 200; ++i) model.learn({1, i % 5 / 5.0}, 10);
  EXPECT_NEAR(model.value_at({1, 0.5}), 10, 0.1);
  EXPECT_TRUE(std::isfinite(model.error_at({1, 0.5})));
}

TEST(OnlineRegressionTest, AnInputThatNeverChangesDisturbsNeitherTheOthersNorHowSureItIs) {
  OnlineRegression<4> model;
  Random random(1);
  double furthest = 0;
  double least_sure = 0;
  for (int i = 0; i < 5000; ++i) {
    const double x = random.uniform();
    if (i > 100) {
      furthest = std::max(furthest, std::abs(model.value_at({1, 0.5, 0, 0}) - 15));
      least_sure = std::max(least_sure, model.error_at({1, 0.5, 0, 0}));
    }
    model.learn({1, x, 0, 0}, 5 + 20 * x + (random.uniform() - 0.5));
  }
  // Noise of standard deviation 0.29.
  EXPECT_LT(furthest, 0.15);
  EXPECT_LT(least_sure, 0.35);
  EXPECT_GT(model.error_at({1, 0.5, 1, 0}), 100) << "nothing is known of what was never seen";
}

TEST(OnlineRegressionTest, StaysFiniteWhereAnInputNeverChanges) {
  OnlineRegression<3> model;
  for (int i = 0; i < 20000; ++i) model.learn({1, 0, i % 2 == 0 ? 1.0 : 0.0}, 7);
  EXPECT_NEAR(model.value_at({1, 0, 1}), 7, 1e-6);
  EXPECT_TRUE(std::isfinite(model.error_at({1, 1, 1})));
}

TEST(RequestTrackerTest, KnowsTheTightestObjectiveOnAnEndpoint) {
  RequestTracker tracker(std::chrono::seconds(300));
  const TimePoint now(std::chrono::seconds(10));
  TrackedRequest request;
  request.slot = 3;
  for (const auto& [id, objective] : std::vector<std::pair<uint64_t, double>>{{1, 30}, {2, 20}, {3, 0}}) {
    request.tpot_objective_ms = objective;
    EXPECT_TRUE(tracker.begin(id, request, now));
  }
  EXPECT_FALSE(tracker.begin(1, request, now));
  const auto running = [&] {
    constexpr std::array<EndpointSlot, 2> kSlots{3, 900};
    std::array<RequestTracker::Running, 2> out;
    tracker.running(kSlots, out);
    EXPECT_EQ(out[1].requests, 0U);
    return out[0];
  };
  EXPECT_EQ(running().requests, 3U);
  EXPECT_EQ(running().min_tpot_objective_ms, 20);
  EXPECT_TRUE(tracker.end(2).has_value());
  EXPECT_FALSE(tracker.end(2).has_value());
  EXPECT_EQ(running().min_tpot_objective_ms, 30);
  // Those without an end are forgotten.
  EXPECT_TRUE(tracker.begin(4, request, now + std::chrono::seconds(301)));
  EXPECT_EQ(running().requests, 1U);
  tracker.forget(3);
  EXPECT_EQ(tracker.size(), 0U);
}

struct NoEdits final : ResponseEdits {
  void set_header(std::string_view, std::string_view) override {}
  void set_metadata(std::string_view, std::string_view, double) override {}
};

struct Predicted : testing::Test {
  TestPool pool{2};
  const DataProducer* producer = nullptr;
  std::unique_ptr<Plugin> plugin;
  std::vector<uint32_t> ids;
  TokenizedPrompt prompt;
  std::vector<HeaderField> fields;
  bool whole = true;  // the answers come to their end

  void make(std::string_view parameters) {
    plugin = make_as("predicted-latency-producer", producer, parameters, &pool.slots);
    ASSERT_NE(producer, nullptr);
  }
  void prompt_of(size_t tokens) {
    ids.assign(tokens, 1);
    prompt.token_ids = ids;
    pool.request.prompts = {&prompt, 1};
  }
  void send(Candidate target, std::optional<Candidate> prefill = {}) {
    const std::array<Candidate, 1> targets{target};
    const std::array<Candidate, 1> prefill_targets{prefill.value_or(0)};
    const ProfileResult primary{"decode", targets, targets, {}, nullptr};
    const ProfileResult first{"prefill", prefill_targets, prefill_targets, {}, nullptr};
    const ProfileResult* const profiles[] = {&primary, prefill ? &first : nullptr};
    ASSERT_TRUE(
        dynamic_cast<const PreRequest&>(*plugin).pre_request(*pool.context, {profiles, &primary, 0}).ok());
  }
  // A streamed answer of `tokens` tokens whose first comes after `ttft_ms`, then one each `tpot_ms`.
  // With `prefill` that endpoint prefills and `target` decodes.
  void serve(std::string_view id, double ttft_ms, double tpot_ms, int tokens, bool finishes = true,
             int status = 200, Candidate target = 0, std::optional<Candidate> prefill = {}) {
    pool.restart();
    pool.request.request_id = id;
    const uint64_t number = ++pool.request.number;
    send(target, prefill);
    if (!finishes) return;
    const auto& hook = dynamic_cast<const ResponseHook&>(*plugin);
    NoEdits edits;
    ResponseEvent event;
    event.request_id = id;
    event.request_number = number;
    event.streaming = true;
    event.status = status;
    const auto at = [&](double ms) { return pool.now + std::chrono::microseconds(std::llround(ms * 1000)); };
    for (int i = 0; i < tokens; ++i) {
      event.kind = ResponseEvent::Kind::kChunk;
      event.now = at(ttft_ms + i * tpot_ms);
      hook.on_response(event, edits);
    }
    event.kind = ResponseEvent::Kind::kEnd;
    event.natural_end = whole;
    hook.on_response(event, edits);
  }
  // Teaches that a prompt of n tokens takes 20 + n / 10 ms and a token 20 ms.
  void teach() {
    for (int i = 0; i < 60; ++i) {
      const size_t tokens = 100 + static_cast<size_t>(i % 7) * 100;
      prompt_of(tokens);
      serve("r" + std::to_string(i), 20 + static_cast<double>(tokens) / 10, 20, 4);
    }
    prompt_of(300);
  }
  std::span<const LatencyPrediction> predictions() {
    pool.restart();
    pool.request.headers = fields;
    EXPECT_TRUE(producer->produce(*pool.context).ok());
    return pool.attributes->column<LatencyPrediction>(pool.slots.slot(data_keys::kLatencyPrediction));
  }
};

TEST_F(Predicted, NothingIsPredictedBeforeEnoughIsSeen) {
  make("streamingMode: true");
  prompt_of(100);
  for (int i = 0; i < 10; ++i) serve("r" + std::to_string(i), 30, 20, 3);
  EXPECT_FALSE(predictions()[0].known);
}

TEST_F(Predicted, LearntTimesAreSetAgainstTheObjectives) {
  make("streamingMode: true");
  teach();
  fields = {{"x-llm-d-slo-ttft-ms", "100"}, {"x-llm-d-slo-tpot-ms", "30"}};
  const auto p = predictions();
  ASSERT_TRUE(p[0].known);
  EXPECT_NEAR(p[0].ttft_ms, 50, 1);
  EXPECT_NEAR(p[0].tpot_ms, 20, 1);
  EXPECT_TRUE(p[0].ttft_valid);
  EXPECT_TRUE(p[0].tpot_valid);
  EXPECT_NEAR(p[0].ttft_headroom_ms, 50, 1);
  EXPECT_NEAR(p[0].tpot_headroom_ms, 10, 1);
}

// Noise of 4 ms on the first token and 1 ms on the others, in turn up and down.
struct NoiseIsLearnt : Predicted {
  void teach_noise() {
    for (int i = 0; i < 400; ++i) {
      const size_t tokens = 100 + static_cast<size_t>(i % 7) * 100;
      const double sign = i % 2 == 0 ? 1 : -1;
      prompt_of(tokens);
      serve("r", 20 + static_cast<double>(tokens) / 10 + 4 * sign, 20 + sign, 4);
    }
    prompt_of(300);
    fields = {{"x-llm-d-slo-ttft-ms", "100"}, {"x-llm-d-slo-tpot-ms", "30"}};
  }
};

TEST_F(NoiseIsLearnt, BothTimesSayHowSureTheyAre) {
  make("streamingMode: true");
  teach_noise();
  const LatencyPrediction p = predictions()[0];
  ASSERT_TRUE(p.ttft_known && p.tpot_known);
  EXPECT_NEAR(p.ttft_error_ms, 4, 0.5);
  EXPECT_NEAR(p.tpot_error_ms, 1, 0.1);
  EXPECT_NEAR(p.ttft_headroom_ms, 100 - p.ttft_ms, 1e-9) << "as in the reference it costs no headroom";
  EXPECT_NEAR(p.tpot_headroom_ms, 30 - p.tpot_ms, 1e-9);
  prompt_of(9000);
  EXPECT_GT(predictions()[0].ttft_error_ms, p.ttft_error_ms + 1) << "far from all that it has seen";
  pool.set(Signal::kRunningRequests, 0, 500);
  EXPECT_GT(predictions()[0].tpot_error_ms, p.tpot_error_ms + 1);
}

TEST_F(NoiseIsLearnt, WhatATokenToPrefillCostsIsMeasured) {
  make("streamingMode: true");
  EXPECT_EQ(predictions()[0].prefill_ms_per_token, 0);
  teach_noise();
  EXPECT_NEAR(predictions()[0].prefill_ms_per_token, 0.1, 0.005);
}

TEST_F(Predicted, PromptsOfOneLengthDontTellWhatATokenCosts) {
  make("streamingMode: true");
  prompt_of(300);
  for (int i = 0; i < 100; ++i) serve("r", 50 + i % 3, 20, 4);
  const LatencyPrediction p = predictions()[0];
  EXPECT_TRUE(p.ttft_known);
  EXPECT_EQ(p.prefill_ms_per_token, 0);
}

TEST_F(NoiseIsLearnt, UncertaintyCostsHeadroomWhereItIsAskedFor) {
  make("{streamingMode: true, uncertaintyFactor: 2}");
  teach_noise();
  LatencyPrediction p = predictions()[0];
  EXPECT_NEAR(p.ttft_headroom_ms, 100 - p.ttft_ms - 2 * p.ttft_error_ms, 1e-9);
  EXPECT_NEAR(p.tpot_headroom_ms, 30 - p.tpot_ms - 2 * p.tpot_error_ms, 1e-9);
  EXPECT_TRUE(p.ttft_valid && p.tpot_valid);
  fields = {{"x-llm-d-slo-ttft-ms", "55"}, {"x-llm-d-slo-tpot-ms", "21"}};
  p = predictions()[0];
  EXPECT_LT(p.ttft_ms, 55);
  EXPECT_FALSE(p.ttft_valid);
  EXPECT_LT(p.tpot_ms, 21);
  EXPECT_FALSE(p.tpot_valid);
}

TEST_F(Predicted, ItsStateShowsWhatWasLearntOfEachClass) {
  make("streamingMode: true");
  EXPECT_THAT(*plugin->dump_state(), HasSubstr("\"models\":[]}"));
  prompt_of(100);
  for (int i = 0; i < 19; ++i) serve("r" + std::to_string(i), 30, 20, 3);
  EXPECT_THAT(*plugin->dump_state(), HasSubstr("\"ttftSamples\":19,\"tpotSamples\":19,\"predicts\":false"));
  serve("last", 30, 20, 3);
  EXPECT_THAT(*plugin->dump_state(), HasSubstr("\"ttftSamples\":20,\"tpotSamples\":20,\"predicts\":true"));
}

// Teaches that each waiting request costs 10 ms.
struct QueuesPredicted : Predicted {
  void teach_queues() {
    make("streamingMode: true");
    prompt_of(100);
    for (int i = 0; i < 60; ++i) {
      pool.set(Signal::kWaitingRequests, 0, i % 7);
      serve("r", 20 + 10.0 * (i % 7), 20, 3);
    }
  }
};

TEST_F(QueuesPredicted, AnUnknownEndpointIsPredictedAsTheBusiestKnownOne) {
  teach_queues();
  pool.set_all(Signal::kWaitingRequests, {6, 0});
  pool.set(Signal::kWaitingRequests, 1, 0, SignalState::kNeverSeen);
  auto p = predictions();
  EXPECT_NEAR(p[0].ttft_ms, 80, 1);
  EXPECT_NEAR(p[1].ttft_ms, 80, 1);
  pool.set(Signal::kWaitingRequests, 1, 0, SignalState::kNameMissing);
  EXPECT_NEAR(predictions()[1].ttft_ms, 20, 1) << "an engine that doesn't export it";
}

TEST_F(QueuesPredicted, InStrictModeTooOldIsUnknownAndWhatWasSentCounts) {
  teach_queues();
  pool.set(Signal::kWaitingRequests, 1, 0);
  pool.now += std::chrono::seconds(11);
  for (const Signal signal : {Signal::kWaitingRequests, Signal::kRunningRequests, Signal::kKvUsage})
    pool.set(signal, 0, 0);
  pool.signals.shown_round[0] = pool.endpoint(0).live->unseen.begin_round();
  for (int i = 0; i < 4; ++i) pool.endpoint(0).live->unseen.add();
  const Freshness freshness;
  pool.restart();
  pool.context->freshness = &freshness;
  ASSERT_TRUE(producer->produce(*pool.context).ok());
  const auto p = pool.attributes->column<LatencyPrediction>(pool.slots.slot(data_keys::kLatencyPrediction));
  EXPECT_GT(p[0].ttft_ms, 50);
  EXPECT_NEAR(p[1].ttft_ms, p[0].ttft_ms, 1e-9);
}

TEST_F(Predicted, AnswersOfAnEndpointThatNobodyHasScrapedTeachNothing) {
  make("streamingMode: true");
  prompt_of(100);
  pool.set(Signal::kWaitingRequests, 0, 0, SignalState::kNeverSeen);
  for (int i = 0; i < 40; ++i) serve("r", 30, 20, 3);
  EXPECT_THAT(*plugin->dump_state(), HasSubstr("\"models\":[]"));
  EXPECT_FALSE(predictions()[0].known);
  pool.set(Signal::kWaitingRequests, 0, 0, SignalState::kNameMissing);
  for (int i = 0; i < 40; ++i) serve("r", 30, 20, 3);
  EXPECT_TRUE(predictions()[0].known);
}

// With an external predictor.
struct ExternallyPredicted : Predicted {
  ManualClock clock;
  telemetry::MetricRegistry metrics;
  FakeOutside outside;
  Status produced;

  void make_external(PredictedLatencyProducer::Params params) {
    LatencyServiceSettings settings;
    settings.take_urls("http://predictor:8001", "http://trainer:8000");
    auto made = std::make_unique<PredictedLatencyProducer>(
        params, std::make_shared<LatencyModels>(),
        std::make_shared<LatencyService>(settings, outside, clock, 1, "p", metrics), clock, "p", metrics);
    made->set_identity("predicted-latency-producer", "predicted-latency-producer");
    made->bind_slots(pool.slots);
    producer = made.get();
    plugin = std::move(made);
  }
  // Asks, lets `answer` be given, and decides.
  template <typename Answer>
  std::span<const LatencyPrediction> predictions_after(Answer&& answer) {
    pool.restart();
    pool.request.headers = fields;
    pool.context->explain = true;
    const AskedQuestion asked{plugin.get(), dynamic_cast<const AskingProducer&>(*plugin).ask(*pool.context)};
    outside.pass(std::chrono::milliseconds(1));
    answer();
    pool.restart();
    pool.context->questions = {&asked, 1};
    produced = producer->produce(*pool.context);
    return pool.attributes->column<LatencyPrediction>(pool.slots.slot(data_keys::kLatencyPrediction));
  }
};

TEST_F(ExternallyPredicted, TheAnswerIsSetAgainstTheObjectivesLikeAnyPrediction) {
  PredictedLatencyProducer::Params params;
  params.streaming_mode = true;
  params.role_label = "role";
  pool.endpoint(1).labels["role"] = "decode";
  make_external(params);
  prompt_of(700);
  fields = {{"x-llm-d-slo-ttft-ms", "100"}, {"x-llm-d-slo-tpot-ms", "12"}};
  pool.set(Signal::kWaitingRequests, 0, 3);
  pool.set(Signal::kKvUsage, 1, 0.5);
  const auto p = predictions_after([&] { outside.answer(0, 200, scheduling::predictions({50, 150})); });
  EXPECT_TRUE(produced.ok());
  EXPECT_EQ(p[0].ttft_ms, 50);
  EXPECT_EQ(p[0].ttft_headroom_ms, 50);
  EXPECT_EQ(p[0].tpot_headroom_ms, 7);
  EXPECT_TRUE(p[0].ttft_valid && p[0].tpot_valid);
  EXPECT_FALSE(p[1].ttft_valid);
  EXPECT_EQ(p[1].ttft_headroom_ms, -50);
  EXPECT_EQ(p[1].tpot_headroom_ms, -3);
  EXPECT_THAT(outside.posts[0].body, HasSubstr("\"input_token_length\":700,\"num_request_waiting\":3,"));
  EXPECT_THAT(outside.posts[0].body, HasSubstr("{\"kv_cache_percentage\":0.5,"));
  EXPECT_THAT(outside.posts[0].body, HasSubstr("\"pod_type\":\"decode\""));
}

TEST_F(ExternallyPredicted, WithoutAnAnswerTheBuiltInPredictorStepsInAndTheFailureIsSaid) {
  PredictedLatencyProducer::Params params;
  params.streaming_mode = true;
  make_external(params);
  auto p = predictions_after([&] { outside.answer(0, 200, "garbage"); });
  EXPECT_FALSE(produced.ok());
  EXPECT_THAT(produced.error().message, HasSubstr("is no JSON object"));
  EXPECT_FALSE(p[0].known) << "nothing is learnt yet";
  teach();
  p = predictions_after([&] { outside.pass(std::chrono::milliseconds(400)); });
  EXPECT_THAT(produced.error().message, HasSubstr("no answer within 400 ms"));
  EXPECT_NEAR(p[0].ttft_ms, 50, 1);
  // Nobody could wait.
  pool.restart();
  EXPECT_FALSE(producer->produce(*pool.context).ok());
  pool.restart();
  pool.context->explain = true;
  EXPECT_TRUE(producer->produce(*pool.context).ok()) << "an explanation asks nobody";
}

TEST_F(ExternallyPredicted, WhatWasMeasuredIsReportedAsTheReferenceDoes) {
  PredictedLatencyProducer::Params params;
  params.streaming_mode = true;
  make_external(params);
  prompt_of(300);
  pool.set(Signal::kWaitingRequests, 0, 2);
  serve("r", 30, 20, 4);
  outside.pass(std::chrono::seconds(1));
  ASSERT_EQ(outside.posts.size(), 1U);
  EXPECT_EQ(outside.posts[0].url, "http://trainer:8000/add_training_data_bulk");
  EXPECT_THAT(outside.posts[0].body,
              HasSubstr("\"input_token_length\":300,\"num_request_waiting\":2,\"num_request_running\":0,"
                        "\"num_tokens_generated\":0,"));
  EXPECT_THAT(outside.posts[0].body, HasSubstr("\"actual_ttft_ms\":30,\"actual_tpot_ms\":0,"));
  EXPECT_THAT(outside.posts[0].body, HasSubstr("\"actual_ttft_ms\":0,\"actual_tpot_ms\":20,"));
}

TEST_F(Predicted, AMissedObjectiveHasNegativeHeadroom) {
  make("streamingMode: true");
  teach();
  fields = {{"x-llm-d-slo-ttft-ms", "10"}};
  const auto p = predictions();
  EXPECT_FALSE(p[0].ttft_valid);
  EXPECT_NEAR(p[0].ttft_headroom_ms, -40, 1);
  EXPECT_FALSE(p[0].tpot_valid);
}

TEST_F(Predicted, TheTightestRunningRequestLowersTheLimit) {
  make("streamingMode: true");
  teach();
  fields = {{"x-llm-d-slo-tpot-ms", "21"}};
  pool.request.headers = fields;
  serve("running", 0, 0, 0, false);
  fields = {{"x-llm-d-slo-tpot-ms", "30"}};
  const auto p = predictions();
  EXPECT_NEAR(p[0].tpot_headroom_ms, 1, 1);
  EXPECT_EQ(p[0].dispatched_requests, 1U);
  EXPECT_NEAR(p[1].tpot_headroom_ms, 10, 1);
  EXPECT_THAT(*plugin->dump_state(), HasSubstr(R"("endpoint":"ns/e0","runningRequests":1,"minTpotSlo":21)"));
}

TEST_F(Predicted, WithoutStreamingTheWholeAnswerCountsAndTpotIsNoMatter) {
  make("");
  prompt_of(100);
  for (int i = 0; i < 30; ++i) serve("r" + std::to_string(i), 30, 10, 3);
  fields = {{"x-llm-d-slo-ttft-ms", "100"}};
  const auto p = predictions();
  ASSERT_TRUE(p[0].known);
  EXPECT_NEAR(p[0].ttft_ms, 50, 1);
  EXPECT_TRUE(p[0].tpot_valid);
  EXPECT_EQ(p[0].tpot_headroom_ms, 0);
}

TEST_F(Predicted, AnswersThatBreakOffTeachNothing) {
  for (const std::string_view parameters : {"", "streamingMode: true"}) {
    make(parameters);
    prompt_of(100);
    whole = false;
    for (int i = 0; i < 40; ++i) serve("r" + std::to_string(i), 30, 20, 3);
    EXPECT_FALSE(predictions()[0].known) << parameters;
    whole = true;
    for (int i = 0; i < 40; ++i) serve("r" + std::to_string(i), 30, 20, 3);
    EXPECT_TRUE(predictions()[0].known) << parameters;
  }
}

TEST_F(Predicted, ATimePerTokenThatIsNotLearntIsHeldAgainstNobody) {
  make("streamingMode: true");
  prompt_of(100);
  // Answers of one piece have no pace.
  for (int i = 0; i < 30; ++i) serve("r", 30, 0, 1);
  fields = {{"x-llm-d-slo-ttft-ms", "100"}, {"x-llm-d-slo-tpot-ms", "30"}};
  auto p = predictions();
  ASSERT_TRUE(p[0].known);
  EXPECT_TRUE(p[0].ttft_valid);
  EXPECT_FALSE(p[0].tpot_known);
  EXPECT_TRUE(p[0].tpot_valid);
  EXPECT_EQ(p[0].tpot_headroom_ms, 0);
  for (int i = 0; i < 20; ++i) serve("r", 30, 40, 3);
  p = predictions();
  EXPECT_TRUE(p[0].tpot_known);
  EXPECT_FALSE(p[0].tpot_valid);
  EXPECT_NEAR(p[0].tpot_headroom_ms, -10, 1);
}

TEST_F(Predicted, APrefillsClassLearnsTtftAndThePrimarysTpot) {
  make("{streamingMode: true, endpointRoleLabel: role}");
  pool.endpoint(0).labels["role"] = "decode";
  pool.endpoint(1).labels["role"] = "prefill";
  prompt_of(100);
  for (int i = 0; i < 40; ++i) serve("r", 30, 20, 3, true, 200, 0, 1);
  fields = {{"x-llm-d-slo-ttft-ms", "100"}, {"x-llm-d-slo-tpot-ms", "30"}};
  const auto p = predictions();
  ASSERT_TRUE(p[0].known);
  EXPECT_NEAR(p[0].tpot_ms, 20, 1);
  EXPECT_TRUE(p[0].tpot_valid);
  EXPECT_FALSE(p[0].ttft_known);
  EXPECT_TRUE(p[0].ttft_valid);
  EXPECT_EQ(p[0].ttft_headroom_ms, 0);
  ASSERT_TRUE(p[1].known);
  EXPECT_NEAR(p[1].ttft_ms, 30, 1);
  EXPECT_TRUE(p[1].ttft_valid);
  EXPECT_FALSE(p[1].tpot_known);
  EXPECT_TRUE(p[1].tpot_valid);
}

TEST_F(Predicted, RequestsOfOneIdDontDisturbEachOther) {
  make("streamingMode: true");
  prompt_of(100);
  serve("same", 0, 0, 0, false);
  for (int i = 0; i < 30; ++i) serve("same", 30, 20, 3);
  fields = {{"x-llm-d-slo-ttft-ms", "100"}};
  const auto p = predictions();
  ASSERT_TRUE(p[0].known);
  EXPECT_NEAR(p[0].ttft_ms, 30, 1);
  EXPECT_EQ(p[0].dispatched_requests, 1U);
}

TEST_F(Predicted, AnErrorsSpeedTeachesNothing) {
  for (const std::string_view parameters : {"", "streamingMode: true"}) {
    make(parameters);
    prompt_of(100);
    for (int i = 0; i < 40; ++i) serve("r" + std::to_string(i), 1, 1, 3, true, 500);
    EXPECT_FALSE(predictions()[0].known) << parameters;
  }
}

TEST_F(Predicted, RefusesBadParameters) {
  EXPECT_FALSE(make_plugin("predicted-latency-producer", "sloBufferFactor: 0").ok());
  EXPECT_FALSE(make_plugin("predicted-latency-producer", "contextTTL: 5m").ok());
  EXPECT_FALSE(make_plugin("predicted-latency-producer", "uncertaintyFactor: -1").ok());
  EXPECT_FALSE(make_plugin("predicted-latency-producer", "uncertaintyFactor: .inf").ok());
  EXPECT_TRUE(make_plugin("predicted-latency-producer", "{samplingMean: 10, contextTTL: 1000000000}").ok());
}

}  // namespace
}  // namespace penstock::scheduling
