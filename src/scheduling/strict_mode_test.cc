// Strict mode through the whole scheduler, on a driven clock.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "scheduling/allocation_count.h"
#include "scheduling/handlers/single_profile_handler.h"
#include "scheduling/pickers/max_score_picker.h"
#include "scheduling/pickers/near_tie_picker.h"
#include "scheduling/scheduler.h"
#include "scheduling/scorers/kv_cache_utilization_scorer.h"
#include "scheduling/scorers/lora_affinity_scorer.h"
#include "scheduling/scorers/queue_scorer.h"
#include "scheduling/scorers/running_requests_size_scorer.h"
#include "scheduling/test_support.h"
#include "telemetry/metrics.h"

namespace penstock::scheduling {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A pool decided by the length of queues, with budgets of 2 s and 10 s.
class StrictMode : public testing::Test {
 protected:
  explicit StrictMode(size_t endpoints = 3) : pool(endpoints) {
    queue.set_identity("queue-scorer", "queue-scorer");
    picker.set_identity("max-score-picker", "max-score-picker");
    handler.set_identity("single-profile-handler", "single-profile-handler");
  }
  Scheduler scheduler(double weight = 1, double cap = std::numeric_limits<double>::infinity()) {
    return {{{"default", {}, {{&queue, weight, cap}}, &picker}}, &handler};
  }
  // Decides once; the record is good until the next call.
  const DecisionRecord& decide(const Scheduler& scheduler, bool strict = true, uint64_t seed = 1) {
    pool.restart(seed);
    if (strict) pool.context->freshness = &freshness;
    record = DecisionRecord{};
    EXPECT_TRUE(scheduler.run(*pool.context, record).ok());
    return record;
  }
  double total_of(std::string_view id) const {
    for (const CandidateRecord& c : record.profiles[0].top) {
      if (c.endpoint_id == id) return c.total;
    }
    return -1;
  }
  // A good scrape of one endpoint, begun and read at once.
  void scrape(size_t i, double waiting, double running = 0) {
    pool.set(Signal::kWaitingRequests, i, waiting);
    pool.set(Signal::kRunningRequests, i, running);
    pool.signals.shown_round[i] = pool.endpoint(i).live->unseen.begin_round();
  }

  TestPool pool;
  Freshness freshness;
  QueueScorer queue;
  MaxScorePicker picker{{}};
  SingleProfileHandler handler;
  DecisionRecord record;
};

TEST_F(StrictMode, AnIdleEngineWhoseMetricsStopLosesItsPreferenceStepByStep) {
  const Scheduler scheduler = this->scheduler();
  pool.set_all(Signal::kWaitingRequests, {0, 6, 8});
  const TimePoint stopped = pool.now;
  const auto others_report = [&](Duration later) {
    pool.now = stopped + later;
    pool.set(Signal::kWaitingRequests, 1, 6);
    pool.set(Signal::kWaitingRequests, 2, 8);
    return std::string(decide(scheduler).winner);
  };
  EXPECT_EQ(others_report(seconds(2)), "ns/e0");
  EXPECT_EQ(total_of("ns/e0"), 1.0);
  EXPECT_EQ(others_report(seconds(6)), "ns/e0");
  EXPECT_DOUBLE_EQ(total_of("ns/e0"), 0.3 + 0.5 * 0.7) << "half way to the mean, (0.5 * 1 + 0.25) / 2.5";
  EXPECT_EQ(others_report(milliseconds(9900)), "ns/e1") << "near the bound it draws no more";
  EXPECT_EQ(others_report(seconds(11)), "ns/e1");
  EXPECT_EQ(total_of("ns/e0"), 0.0) << "unknown: as the longest known queue";
  EXPECT_EQ(record.fallback, FallbackState::kNone);
  pool.now = stopped + seconds(11);
  EXPECT_EQ(decide(scheduler, false).winner, "ns/e0") << "compatible mode looks at no age";
}

TEST_F(StrictMode, ABurstBetweenTwoScrapesSpreadsInsteadOfFollowingOneStaleNumber) {
  TestPool eight(8);
  NearTiePicker near_tie({});
  near_tie.set_identity("near-tie-picker", "near-tie-picker");
  const Scheduler scheduler({{"default", {}, {{&queue, 1}}, &near_tie}}, &handler);
  const auto most_sent_to_one = [&](bool strict) {
    std::vector<int> sent(8, 0);
    for (size_t i = 0; i < 8; ++i) {
      eight.set(Signal::kWaitingRequests, i, i == 3 ? 0 : 2);
      eight.signals.shown_round[i] = eight.endpoint(i).live->unseen.begin_round();
    }
    for (uint64_t n = 1; n <= 800; ++n) {
      eight.restart(n);
      if (strict) eight.context->freshness = &freshness;
      DecisionRecord decided;
      const auto result = scheduler.run(*eight.context, decided);
      if (!result.ok()) return -1;
      const Candidate target = result->primary->targets[0];
      ++sent[target];
      eight.endpoint(target).live->unseen.add();
    }
    return *std::max_element(sent.begin(), sent.end());
  };
  EXPECT_EQ(most_sent_to_one(false), 800);
  EXPECT_LE(most_sent_to_one(true), 110) << "the mean is 100";
}

TEST_F(StrictMode, WhatWasSentCountsAsWaitingAndRunningUntilAScrapeShowsIt) {
  RunningRequestsSizeScorer running;
  scrape(0, 1, 4);
  scrape(1, 2, 4);
  scrape(2, 2, 4);
  for (int i = 0; i < 2; ++i) pool.endpoint(0).live->unseen.add();
  pool.restart();
  pool.context->freshness = &freshness;
  EXPECT_THAT(pool.score(queue), ElementsAre(0, 1, 1));
  EXPECT_THAT(pool.score(running), ElementsAre(0, 1, 1));
  EXPECT_EQ(pool.explain(queue, 0), "waiting 3 requests, 2 of them sent since, age 0 ms, fresh");
  freshness.in_flight_credit = false;
  EXPECT_THAT(pool.score(queue), ElementsAre(1, 0, 0));
  freshness.in_flight_credit = true;
  scrape(0, 3, 5);
  EXPECT_THAT(pool.score(queue), ElementsAre(0, 1, 1)) << "shown: no longer counted twice";
  EXPECT_EQ(pool.explain(queue, 0), "waiting 3 requests, age 0 ms, fresh");
  pool.context->freshness = nullptr;
  pool.endpoint(1).live->unseen.add();
  EXPECT_EQ(pool.explain(queue, 1), "waiting 2 requests, age 0 ms, fresh") << "compatible: as it was scraped";
}

TEST_F(StrictMode, APoolThatIsKnownToBeFreshIsScoredAsOneThatIsLookedAtOneByOne) {
  RunningRequestsSizeScorer running;
  scrape(0, 1, 4);
  scrape(1, 2, 1);
  scrape(2, 6, 4);
  for (int i = 0; i < 2; ++i) pool.endpoint(0).live->unseen.add();
  const auto scored = [&](TimePoint oldest) {
    pool.signals.oldest.fill(oldest);
    pool.restart();
    pool.context->freshness = &freshness;
    return std::pair(pool.score(queue), pool.score(running));
  };
  const auto one_by_one = scored(kNever);
  EXPECT_THAT(one_by_one.first, ElementsAre(0.75, 1, 0));
  EXPECT_THAT(one_by_one.second, ElementsAre(0, 1, 0.4));
  EXPECT_EQ(scored(pool.now), one_by_one);
  EXPECT_EQ(scored(pool.now - freshness.of(Signal::kWaitingRequests).budget), one_by_one);
  freshness.in_flight_credit = false;
  const auto as_scraped = scored(kNever);
  EXPECT_THAT(as_scraped.first, ElementsAre(1, 0.8, 0));
  EXPECT_EQ(scored(pool.now), as_scraped);
}

TEST_F(StrictMode, ExplainTellsInfluenceAndWhenAValueIsTooOld) {
  pool.set_all(Signal::kWaitingRequests, {3, 3, 3});
  pool.now += seconds(4);
  pool.restart();
  pool.context->freshness = &freshness;
  EXPECT_EQ(pool.explain(queue, 0), "waiting 3 requests, age 4000 ms, fresh, influence 0.75");
  pool.now += seconds(6);
  pool.restart();
  pool.context->freshness = &freshness;
  EXPECT_EQ(pool.explain(queue, 0),
            "waiting unknown (last seen 10000 ms ago): counts as the largest known value, or 0 where none is "
            "known");
}

TEST_F(StrictMode, TooFewFreshEndpointsAreDecidedByLeastInFlightAndSayIt) {
  const Scheduler scheduler = this->scheduler();
  pool.set_all(Signal::kWaitingRequests, {0, 5, 5});
  pool.now += seconds(3);
  pool.set(Signal::kWaitingRequests, 1, 5);
  pool.endpoint(0).live->load = EndpointLive::pack(4, 0);
  pool.endpoint(1).live->load = EndpointLive::pack(2, 0);
  pool.endpoint(2).live->load = EndpointLive::pack(1, 0);
  EXPECT_EQ(decide(scheduler).winner, "ns/e2");
  EXPECT_EQ(record.fallback, FallbackState::kTooFewFreshSignals);
  EXPECT_EQ(record.profiles[0].simple, SimpleChoice::kLeastInFlight);
  EXPECT_EQ(record.profiles[0].fresh, 1U);
  ASSERT_EQ(record.profiles[0].scorers.size(), 1U);
  EXPECT_EQ(record.profiles[0].scorers[0].plugin_name, "least-in-flight");
  EXPECT_EQ(total_of("ns/e2"), 0.5);

  pool.set(Signal::kWaitingRequests, 2, 5);
  EXPECT_EQ(decide(scheduler).fallback, FallbackState::kNone) << "two of three are fresh again";
  EXPECT_EQ(record.profiles[0].scorers[0].plugin_name, "queue-scorer");
}

TEST_F(StrictMode, LeastInFlightCountsTheRequestsOfOtherReplicas) {
  const Scheduler scheduler = this->scheduler();
  pool.now += seconds(3);
  for (size_t i = 0; i < 3; ++i) pool.endpoint(i).live->load = EndpointLive::pack(i, 0);
  pool.endpoint(0).live->others = EndpointLive::pack(5, 0);
  EXPECT_EQ(decide(scheduler).winner, "ns/e1");
}

TEST_F(StrictMode, TheFallbackIsWhatTheConfigurationSays) {
  const Scheduler scheduler = this->scheduler();
  pool.set_all(Signal::kWaitingRequests, {0, 5, 5});
  pool.now += seconds(3);
  freshness.fallback = SimpleChoice::kRoundRobin;
  std::vector<std::string> turns;
  for (int i = 0; i < 4; ++i) turns.emplace_back(decide(scheduler).winner);
  EXPECT_THAT(turns, ElementsAre("ns/e0", "ns/e1", "ns/e2", "ns/e0"));
  EXPECT_EQ(record.fallback, FallbackState::kTooFewFreshSignals);

  freshness.fallback = SimpleChoice::kNone;
  EXPECT_EQ(decide(scheduler).winner, "ns/e0");
  EXPECT_EQ(record.fallback, FallbackState::kNoFreshSignals);

  freshness.fallback = SimpleChoice::kLeastInFlight;
  freshness.min_fresh_share = 0;
  EXPECT_EQ(decide(scheduler).profiles[0].simple, SimpleChoice::kNone) << "never";
  EXPECT_EQ(decide(scheduler, false).fallback, FallbackState::kNone) << "compatible: states are the table's";
}

// Runs all profiles at once; the last one is primary.
class EveryProfile final : public ProfileHandler {
 public:
  std::span<const uint32_t> pick(SchedulingContext& ctx, std::span<const std::string> names,
                                 std::span<bool> done, std::span<const ProfileResult* const>) const override {
    if (done[0]) return {};
    const std::span<uint32_t> all = ctx.arena.make_span<uint32_t>(names.size());
    for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
    return all;
  }
  Result<SchedulingResult> process(SchedulingContext&, std::span<const std::string>,
                                   std::span<const ProfileResult* const> results) const override {
    return SchedulingResult{results, results.back(), 0};
  }
};

TEST_F(StrictMode, EachProfileGoesRoundByItself) {
  const EveryProfile both;
  const Scheduler scheduler({{"prefill", {}, {{&queue, 1}}, &picker}, {"decode", {}, {{&queue, 1}}, &picker}},
                            &both);
  pool.pool.endpoints.resize(2);
  pool.candidates.resize(2);
  pool.now += seconds(30);
  freshness.fallback = SimpleChoice::kRoundRobin;
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  for (int i = 0; i < 4; ++i) {
    decode.emplace_back(decide(scheduler).winner);
    prefill.emplace_back(record.profiles[0].picked);
  }
  EXPECT_THAT(prefill, ElementsAre("ns/e0", "ns/e1", "ns/e0", "ns/e1"));
  EXPECT_THAT(decode, ElementsAre("ns/e0", "ns/e1", "ns/e0", "ns/e1"));
}

TEST_F(StrictMode, WhatWasWrongBeforeTheSignalsWereLookedAtIsWhatTheRecordSays) {
  const Scheduler scheduler = this->scheduler();
  pool.now += seconds(30);
  for (const FallbackState before : {FallbackState::kAllEjected, FallbackState::kProducerFailed}) {
    pool.restart();
    pool.context->freshness = &freshness;
    record = DecisionRecord{};
    record.fallback = before;
    ASSERT_TRUE(scheduler.run(*pool.context, record).ok());
    EXPECT_EQ(record.fallback, before);
    EXPECT_EQ(record.profiles[0].simple, SimpleChoice::kLeastInFlight);
  }
}

TEST_F(StrictMode, PredictedLatencyFadesWithTheSignalsItIsMadeOf) {
  const Scorer* latency = nullptr;
  const auto plugin = make_as("latency-scorer", latency, "", &pool.slots);
  const Scheduler scheduler({{"default", {}, {{latency, 1}}, &picker}}, &handler);
  pool.now += seconds(6);
  for (const size_t i : {1, 2}) {
    for (const Signal signal : {Signal::kWaitingRequests, Signal::kRunningRequests, Signal::kKvUsage})
      pool.set(signal, i, signal == Signal::kKvUsage ? 0.8 : 0);
  }
  // The composite of idle queues and no prefix: 0.67 for the old free cache, 0.4 for the others.
  decide(scheduler, false);
  EXPECT_DOUBLE_EQ(total_of("ns/e0"), 0.67);
  EXPECT_DOUBLE_EQ(total_of("ns/e1"), 0.40);
  decide(scheduler);
  const double mean = (0.5 * 0.67 + 2 * 0.40) / 2.5;
  EXPECT_DOUBLE_EQ(total_of("ns/e0"), mean + 0.5 * (0.67 - mean));
  EXPECT_DOUBLE_EQ(total_of("ns/e1"), 0.40);
}

TEST_F(StrictMode, WhatAnEngineDoesNotExportIsNotWaitedForUnlessThereIsNothingElse) {
  KvCacheUtilizationScorer kv;
  const Scheduler scheduler({{"default", {}, {{&queue, 1}, {&kv, 1}}, &picker}}, &handler);
  for (size_t i = 0; i < 3; ++i) pool.set(Signal::kKvUsage, i, 0, SignalState::kNameMissing);
  EXPECT_EQ(decide(scheduler).profiles[0].simple, SimpleChoice::kNone);
  for (size_t i = 0; i < 3; ++i) pool.set(Signal::kWaitingRequests, i, 0, SignalState::kNameMissing);
  EXPECT_EQ(decide(scheduler).profiles[0].simple, SimpleChoice::kLeastInFlight);
}

TEST_F(StrictMode, AProfileThatReadsNoSignalsNeverFallsBack) {
  const Scheduler scheduler({{"default", {}, {}, &picker}}, &handler);
  pool.now += seconds(60);
  EXPECT_EQ(decide(scheduler).fallback, FallbackState::kNone);
}

TEST_F(StrictMode, EachSignalHasABudgetOfItsOwn) {
  KvCacheUtilizationScorer kv;
  kv.set_identity("kv", "kv-cache-utilization-scorer");
  const Scheduler scheduler({{"default", {}, {{&queue, 1}, {&kv, 1}}, &picker}}, &handler);
  freshness.bounds[static_cast<size_t>(Signal::kKvUsage)] = {seconds(60), seconds(120)};
  pool.set_all(Signal::kKvUsage, {0.1, 0.5, 0.9});
  pool.now += seconds(30);
  pool.set_all(Signal::kWaitingRequests, {1, 1, 1});
  EXPECT_EQ(decide(scheduler).winner, "ns/e0");
  EXPECT_DOUBLE_EQ(total_of("ns/e0"), 1.9);
  EXPECT_EQ(record.fallback, FallbackState::kNone);
}

TEST_F(StrictMode, AdapterListsThatAreTooOldSayNothing) {
  LoraAffinityScorer lora;
  for (size_t i = 0; i < 3; ++i) pool.signals.lora_rows[i].max_adapters = 2;
  pool.now += seconds(20);
  pool.signals.lora_rows[1].observed_at = pool.now;
  pool.restart();
  pool.context->freshness = &freshness;
  EXPECT_THAT(pool.score(lora), ElementsAre(0, 0.8, 0));
  EXPECT_THAT(pool.explain(lora, 1), Not(HasSubstr("influence")));
  pool.context->freshness = nullptr;
  EXPECT_THAT(pool.score(lora), ElementsAre(0.8, 0.8, 0.8));
}

TEST_F(StrictMode, DecidesWithoutTheHeapWhateverTheAges) {
  const Scheduler scheduler = this->scheduler();
  pool.set_all(Signal::kWaitingRequests, {1, 2, 3});
  const auto decide_at = [&](Duration age, uint64_t seed) {
    pool.now += age;
    pool.set(Signal::kWaitingRequests, 1, 2);
    pool.set(Signal::kWaitingRequests, 2, 2);
    decide(scheduler, true, seed);
    pool.now -= age;
  };
  for (uint64_t i = 0; i < 3; ++i) decide_at(seconds(5), i);
  const uint64_t before = allocations();
  for (uint64_t i = 0; i < 50; ++i) decide_at(milliseconds(200 * i), i);
  EXPECT_EQ(allocations() - before, 0U);
}

class Bounds : public StrictMode {};

TEST_F(Bounds, AScorersContributionStopsAtItsCapInEitherMode) {
  pool.set_all(Signal::kWaitingRequests, {0, 5, 10});
  const Scheduler capped = scheduler(4, 1.5);
  for (const bool strict : {false, true}) {
    decide(capped, strict);
    EXPECT_EQ(total_of("ns/e0"), 1.5);
    EXPECT_EQ(total_of("ns/e1"), 1.5);
    EXPECT_EQ(total_of("ns/e2"), 0.0);
    EXPECT_EQ(record.profiles[0].scorers[0].max_contribution, 1.5);
  }
}

// Leaves out the first candidate and gives the second and third what it was told.
class OddScorer final : public Scorer {
 public:
  void score(SchedulingContext&, std::span<const Candidate>, std::span<double> scores) const override {
    scores[1] = std::numeric_limits<double>::quiet_NaN();
    scores[2] = -1;
  }
  void explain(const SchedulingContext&, Candidate, std::string&) const override {}
};

TEST_F(Bounds, MissingNegativeAndUndefinedScoresCountAsZeroInRecordAndMetrics) {
  OddScorer odd;
  odd.set_identity("mine", "odd-scorer");
  telemetry::MetricRegistry metrics;
  const SystemClock clock;
  const Scheduler scheduler({{"default", {}, {{&odd, 3}}, &picker}}, &handler, &metrics, &clock);
  decide(scheduler);
  for (const char* id : {"ns/e0", "ns/e1", "ns/e2"}) EXPECT_EQ(total_of(id), 0.0);
  EXPECT_EQ(record.profiles[0].missing_scores, 1U);
  EXPECT_EQ(record.profiles[0].nan_scores, 1U);
  EXPECT_EQ(record.profiles[0].negative_scores, 1U);
  const std::string text = metrics.render();
  for (const char* kind : {"missing", "not_a_number", "negative"}) {
    EXPECT_THAT(text,
                HasSubstr("penstock_scores_corrected_total{plugin_type=\"odd-scorer\",plugin_name=\"mine\","
                          "kind=\"" +
                          std::string(kind) + "\"} 1"));
  }
}

// Those whose meaning it is to tell alike endpoints apart: by who had the session, or the last cold prompt.
TEST_F(Bounds, EqualEndpointsGetEqualScoresFromEveryScorerWhateverTheirAge) {
  size_t scorers = 0;
  for (const PluginDescriptor& descriptor : scheduling_plugins()) {
    if (descriptor.type == "no-hit-lru-scorer" || descriptor.create == nullptr) continue;
    const auto parameters = [&]() -> std::string_view {
      if (descriptor.type == "header-label-affinity-scorer") return "{headerName: x, labelKey: y}";
      if (descriptor.type == "endpoint-attribute-scorer")
        return "{attributeKey: a, algorithm: {type: linear_lower_is_better}}";
      return "";
    };
    const Scorer* scorer = nullptr;
    const auto plugin = make_as(descriptor.type, scorer, parameters(), &pool.slots);
    if (scorer == nullptr) continue;
    ++scorers;
    const Scheduler scheduler({{"default", {}, {{scorer, 1}}, &picker}}, &handler);
    for (const Duration age : {seconds(0), seconds(5), seconds(20)}) {
      for (size_t i = 0; i < 3; ++i) {
        for (size_t s = 0; s < kSignalCount; ++s) pool.set(static_cast<Signal>(s), i, 0.25);
      }
      for (size_t s = 0; s < kSignalCount; ++s) pool.set(static_cast<Signal>(s), 1, 0.75);
      for (size_t i : {0, 2}) {
        for (auto& column : pool.signals.observed_at) column[i] = pool.now - age;
      }
      decide(scheduler);
      EXPECT_EQ(total_of("ns/e0"), total_of("ns/e2")) << descriptor.type << " at " << to_millis(age) << " ms";
    }
  }
  EXPECT_GE(scorers, 15U);
}

}  // namespace
}  // namespace penstock::scheduling
