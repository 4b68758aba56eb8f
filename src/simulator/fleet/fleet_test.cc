#include "simulator/fleet/fleet.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "simulator/fleet/generators.h"

namespace penstock::simulator {
namespace {

FleetPolicy policy(std::string_view name) {
  Result<FleetPolicy> found = builtin_policy(name, 40000);
  EXPECT_TRUE(found.ok());
  return *found;
}

FleetOptions small_fleet(uint32_t engines) {
  FleetOptions options;
  options.engines = engines;
  options.engine.num_blocks = 4096;
  options.engine.step_time = *StepTime::profile("llama3-8b-h100");
  return options;
}

// `count` requests of one length, `gap` apart, each with a text of its own.
Workload strangers(size_t count, Duration gap, uint32_t input, uint32_t output) {
  Workload workload;
  for (size_t i = 0; i < count; ++i) {
    workload.requests.push_back({.at = gap * static_cast<int64_t>(i), .output_tokens = output});
    workload.add_piece({i + 1, input});
  }
  return workload;
}

TEST(FleetTest, AnIdleEngineAnswersAfterOnePrefillAndOneStepAToken) {
  FleetOptions options = small_fleet(2);
  options.engine.max_batched_tokens = 2048;
  const auto report = run_fleet(options, strangers(1, Duration::zero(), 2048, 2), policy("round-robin"));
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->finished, 1U);
  EXPECT_NEAR(report->ttft_ms.mean, 47.378, 0.001);  // the sheet's worked prefill of 2,048 tokens
  EXPECT_NEAR(report->tpot_ms.mean, 1.5 + 0.005 + 6.03 + 4.89e-5 * 2048, 0.001);
  EXPECT_EQ(report->cached_tokens, 0U);
}

TEST(FleetTest, RoundRobinGivesEveryEngineTheSame) {
  const auto report =
      run_fleet(small_fleet(4), strangers(40, std::chrono::milliseconds(5), 500, 10), policy("round-robin"));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->finished, 40U);
  EXPECT_EQ(report->engine_requests, std::vector<uint64_t>(4, 10));
  EXPECT_DOUBLE_EQ(report->request_balance, 1.0);
  EXPECT_DOUBLE_EQ(report->work_balance, 1.0);
}

TEST(FleetTest, WhatRunsOnAnEngineFailsWhenItRestartsAndItsCacheIsLost) {
  // Two engines; every ten seconds one of them, the first one first, is away for four.
  FleetOptions options = small_fleet(2);
  options.restart_every = std::chrono::seconds(10);
  options.restart_for = std::chrono::seconds(4);
  Workload workload;
  const auto ask = [&](Duration at, uint32_t output) {
    workload.requests.push_back({.at = at, .output_tokens = output});
    workload.add_piece({7, 1600});
  };
  ask(std::chrono::milliseconds(9000), 10000);  // to the first engine; still runs when it goes
  ask(std::chrono::milliseconds(9500), 2);      // to the second
  ask(std::chrono::milliseconds(10500), 2);     // to the first, which is not there: to the second
  ask(std::chrono::milliseconds(10600), 2);     // nobody has been told yet, but one connect has failed
  ask(std::chrono::milliseconds(12000), 2);     // there is one engine now
  ask(std::chrono::milliseconds(14500), 2);     // both are there
  ask(std::chrono::milliseconds(15000), 2);
  const auto report = run_fleet(options, workload, policy("round-robin"));
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->restarts, 1U);
  EXPECT_EQ(report->failed, 1U);
  EXPECT_EQ(report->retried, 1U);
  EXPECT_EQ(report->finished, 6U);
  EXPECT_EQ(report->rejected, 0U);
  EXPECT_EQ(report->engine_requests, (std::vector<uint64_t>{2, 5}));
  // The second engine has the prompt from its second request on, the first one had to compute it again.
  EXPECT_EQ(report->cached_tokens, 4U * 99 * 16);
}

TEST(FleetTest, WithoutAnyEngineRequestsAreRejectedAndTheNextOnesServed) {
  FleetOptions options = small_fleet(1);
  options.restart_every = std::chrono::seconds(10);
  options.restart_for = std::chrono::seconds(5);
  const auto report = run_fleet(options, strangers(20, std::chrono::seconds(1), 100, 2), policy("default"));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->failed, 1U);    // at 10 s, before anybody was told
  EXPECT_EQ(report->rejected, 4U);  // until 15 s
  EXPECT_EQ(report->finished, 15U);
}

TEST(FleetTest, APromptAskedAgainIsFoundInTheCacheOfTheEngineThatHadIt) {
  Workload workload;
  for (int i = 0; i < 10; ++i) {
    workload.requests.push_back({.at = std::chrono::seconds(i), .output_tokens = 2});
    workload.add_piece({7, 1600});
  }
  const auto affine = run_fleet(small_fleet(4), workload, policy("default"));
  const auto turns = run_fleet(small_fleet(4), workload, policy("round-robin"));
  ASSERT_TRUE(affine.ok() && turns.ok());
  // 1,600 tokens are 100 blocks; the last token is always computed, so 99 of them can be hit.
  EXPECT_EQ(affine->cached_tokens, 9U * 99 * 16);
  EXPECT_EQ(turns->cached_tokens, 6U * 99 * 16);
  EXPECT_LT(affine->ttft_ms.mean, turns->ttft_ms.mean);
}

TEST(FleetTest, RequestsOfOneMomentWaitForEachOtherWhereThePolicyLetsThem) {
  // Two prompts, each asked eight times within 70 ms.
  Workload workload;
  for (int i = 0; i < 16; ++i) {
    workload.requests.push_back({.at = std::chrono::milliseconds(5 * (i / 2) * 2), .output_tokens = 2});
    workload.add_piece({static_cast<uint64_t>(1 + i % 2), 1600});
  }
  const auto config = [](int window_ms) {
    return FleetPolicy{.name = "burst",
                       .config =
                           "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
                           "- {type: burst-prefix-cache-producer, parameters: {windowDurationMs: " +
                           std::to_string(window_ms) +
                           "}}\n"
                           "- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: "
                           "burst-prefix-cache-producer}}\n"
                           "schedulingProfiles:\n"
                           "- {name: default, plugins: [{pluginRef: prefix-cache-scorer}]}\n",
                       .source = "test"};
  };
  const auto grouped = run_fleet(small_fleet(4), workload, config(100));
  ASSERT_TRUE(grouped.ok()) << grouped.error().message;
  EXPECT_EQ(grouped->finished, 16U);
  EXPECT_EQ(grouped->fallbacks, 0U);
  std::vector<uint64_t> shares = grouped->engine_requests;
  std::sort(shares.begin(), shares.end());
  EXPECT_EQ(shares, (std::vector<uint64_t>{0, 0, 8, 8})) << "each prompt goes to one engine";
  EXPECT_GT(grouped->ttft_ms.mean, 30) << "the window is part of the time";

  const auto alone = run_fleet(small_fleet(4), workload, config(1));
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->finished, 16U);
  EXPECT_LT(*std::max_element(alone->engine_requests.begin(), alone->engine_requests.end()), 8U)
      << "too short a window: nobody is together with another one";
}

TEST(FleetTest, ASimulatedFleetCallsNoPredictor) {
  const FleetPolicy asks{.name = "predictor",
                         .config =
                             "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
                             "- {type: predicted-latency-producer, parameters: {predictionServerURL: "
                             "\"http://127.0.0.1:1\"}}\n"
                             "- {type: latency-scorer}\n"
                             "schedulingProfiles:\n"
                             "- {name: default, plugins: [{pluginRef: latency-scorer}]}\n",
                         .source = "test"};
  const auto report = run_fleet(small_fleet(2), strangers(8, std::chrono::seconds(1), 500, 10), asks);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->finished, 8U);
  EXPECT_EQ(report->fallbacks, 0U);
}

TEST(FleetTest, ATurnWaitsForTheAnswerBeforeItAndFindsItInTheCache) {
  Workload workload;
  workload.requests.push_back({.at = {}, .output_tokens = 65, .session = 0, .answer_seed = 5});
  workload.add_piece({1, 64});
  workload.requests.push_back(
      {.at = {}, .output_tokens = 1, .session = 0, .after = 0, .pause = std::chrono::seconds(2)});
  workload.add_piece({1, 64});
  workload.add_piece({5, 64, true});
  workload.add_piece({2, 32});
  const auto report = run_fleet(small_fleet(1), workload, policy("default"));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->finished, 2U);
  EXPECT_EQ(report->cached_tokens, 128U);
  EXPECT_GT(report->simulated_seconds, 2.0);
}

// With the weights of the built-in configuration a prompt that is nearly all prefix adds 2.8 at the engine
// that has it, and the longest queue takes away 2: each gateway stays with the first engine it used. A cap
// of 2 ends that.
TEST(FleetTest, OnePrefixForAllHoldsEachGatewayAtOneEngineUnlessItsBonusIsCapped) {
  FleetOptions options = small_fleet(8);
  options.gateways = 2;
  options.scrape_interval = std::chrono::seconds(1);
  Result<Workload> workload = generate_workload("one-prefix", 300, 1);
  ASSERT_TRUE(workload.ok());
  workload->speed_up(3);
  const auto engines_used = [&](const FleetPolicy& with) {
    const auto report = run_fleet(options, *workload, with);
    EXPECT_TRUE(report.ok());
    return std::count_if(report->engine_requests.begin(), report->engine_requests.end(),
                         [](uint64_t requests) { return requests > 0; });
  };
  EXPECT_LE(engines_used(policy("default")), 2);
  EXPECT_LE(engines_used(policy("strict")), 2);
  EXPECT_EQ(engines_used(policy("capped-prefix")), 8);
}

TEST(FleetTest, AffinityFindsTheEngineThatHasTheAdapter) {
  // Of four engines each has room for two adapters at a time; a load takes half a second.
  FleetOptions options = small_fleet(4);
  options.engine.max_adapters = 2;
  options.engine.adapter_load = std::chrono::milliseconds(500);
  Workload workload;
  workload.adapters = {"a", "b", "c", "d"};
  for (int i = 0; i < 40; ++i) {
    workload.requests.push_back(
        {.at = std::chrono::milliseconds(500) * i, .output_tokens = 200, .adapter = i % 4});
    workload.add_piece({static_cast<uint64_t>(i), 100});
  }
  FleetPolicy affine{"affine", "plugins:\n- type: lora-affinity-scorer\n- type: max-score-picker\n",
                     "affine"};
  const auto with = run_fleet(options, workload, affine);
  const auto without = run_fleet(options, workload, policy("random"));
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_EQ(with->finished, 40U);
  EXPECT_EQ(without->finished, 40U);
  EXPECT_LT(with->ttft_ms.mean, without->ttft_ms.mean);
}

TEST(FleetTest, EqualSeedsGiveEqualReportsWhateverThePolicy) {
  FleetOptions options = small_fleet(3);
  options.gateways = 2;
  Workload workload = strangers(60, std::chrono::milliseconds(3), 700, 12);
  for (size_t i = 0; i < workload.requests.size(); ++i) workload.pieces[i].id = i % 7;
  for (const BuiltinPolicy& entry : builtin_policies()) {
    const auto first = run_fleet(options, workload, policy(entry.name));
    const auto again = run_fleet(options, workload, policy(entry.name));
    ASSERT_TRUE(first.ok()) << entry.name << ": " << first.error().message;
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(first->finished, 60U) << entry.name;
    EXPECT_EQ(first->ttft_ms.mean, again->ttft_ms.mean) << entry.name;
    EXPECT_EQ(first->e2e_ms.p99, again->e2e_ms.p99) << entry.name;
    EXPECT_EQ(first->cached_tokens, again->cached_tokens) << entry.name;
    EXPECT_EQ(first->queue_balance, again->queue_balance) << entry.name;
  }
}

TEST(FleetTest, ARequestLongerThanTheContextIsRefusedAndItsFollowersStillCome) {
  FleetOptions options = small_fleet(1);
  options.engine.max_model_len = 1000;
  Workload workload = strangers(1, Duration::zero(), 1000, 1);
  workload.requests.push_back({.at = {}, .output_tokens = 1, .after = 0});
  workload.add_piece({9, 10});
  const auto report = run_fleet(options, workload, policy("random"));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->refused, 1U);
  EXPECT_EQ(report->finished, 1U);
}

TEST(FleetTest, WhatArrivesDuringTheWarmUpIsServedAndNotCounted) {
  FleetOptions options = small_fleet(1);
  options.warm_up = std::chrono::milliseconds(1500);
  const auto report = run_fleet(options, strangers(4, std::chrono::seconds(1), 100, 1), policy("random"));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->requests, 2U);
  EXPECT_EQ(report->finished, 2U);
}

TEST(FleetTest, APolicyThatCannotBeLoadedIsNamedWithItsError) {
  FleetPolicy broken{"broken", "plugins:\n- type: no-such-plugin\n", "broken.yaml"};
  const auto report = run_fleet(small_fleet(1), strangers(1, Duration::zero(), 10, 1), broken);
  ASSERT_FALSE(report.ok());
  EXPECT_TRUE(report.error().message.starts_with("broken.yaml: ")) << report.error().message;
  EXPECT_NE(report.error().message.find("no-such-plugin"), std::string::npos);
}

TEST(FleetTest, WhenPagesStallLongerThanSignalsLastDecisionsAreMadeInAFallbackState) {
  FleetOptions options = small_fleet(2);
  const Workload workload = strangers(20, std::chrono::seconds(1), 100, 1);
  const auto fresh = run_fleet(options, workload, policy("default"));
  options.stall_every = std::chrono::seconds(10);
  options.stall_for = std::chrono::seconds(5);
  const auto stalled = run_fleet(options, workload, policy("default"));
  ASSERT_TRUE(fresh.ok() && stalled.ok());
  EXPECT_EQ(fresh->fallbacks, 0U);
  // From second 10 to 15; the signals of just before are good for two seconds.
  EXPECT_GE(stalled->fallbacks, 3U);
  EXPECT_LE(stalled->fallbacks, 4U);
  EXPECT_EQ(stalled->finished, 20U);
}

// Four gateways, a page a second: what one of them sees is what all of them see.
TEST(FleetTest, NearTiesSpreadABurstThatTheBestScoreHerds) {
  FleetOptions options = small_fleet(8);
  options.engine.num_blocks = 26311;
  options.gateways = 4;
  options.scrape_interval = std::chrono::seconds(1);
  const auto burst = generate_workload("burst", 480, 1);
  ASSERT_TRUE(burst.ok());
  const auto best = run_fleet(options, *burst, policy("default"));
  const auto near = run_fleet(options, *burst, policy("near-tie"));
  ASSERT_TRUE(best.ok() && near.ok());
  EXPECT_LT(near->queue_balance, best->queue_balance);
  EXPECT_LT(near->ttft_ms.p99, best->ttft_ms.p99);
  EXPECT_LT(near->request_balance, 1.3);
}

TEST(FleetTest, QuantilesAreTheSmallestNumbersThatCoverTheirShare) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Quantiles q = quantiles_of(values);
  EXPECT_DOUBLE_EQ(q.mean, 50.5);
  EXPECT_DOUBLE_EQ(q.p50, 50);
  EXPECT_DOUBLE_EQ(q.p90, 90);
  EXPECT_DOUBLE_EQ(q.p99, 99);
  std::vector<double> none;
  EXPECT_DOUBLE_EQ(quantiles_of(none).mean, 0);
}

}  // namespace
}  // namespace penstock::simulator
