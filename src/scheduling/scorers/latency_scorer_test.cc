#include "scheduling/scorers/latency_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;

struct Headroom {
  double ttft;
  double tpot;
  uint32_t dispatched = 1;
  bool known = true;
};

std::vector<double> score(std::string_view parameters, const std::vector<Headroom>& headrooms) {
  TestPool pool(headrooms.size());
  const Scorer* scorer = nullptr;
  const auto plugin = make_as("latency-scorer", scorer, parameters, &pool.slots);
  auto column = pool.attributes->create<LatencyPrediction>(pool.slots.slot(data_keys::kLatencyPrediction));
  for (size_t i = 0; i < headrooms.size(); ++i) {
    column[i].known = headrooms[i].known;
    column[i].ttft_headroom_ms = headrooms[i].ttft;
    column[i].tpot_headroom_ms = headrooms[i].tpot;
    column[i].dispatched_requests = headrooms[i].dispatched;
  }
  return pool.score(*scorer);
}
constexpr std::string_view kMost = "headroomSelectionStrategy: most";

TEST(LatencyScorerTest, OneDimensionThatDiffersCountsAlone) {
  EXPECT_THAT(score("", {{100, 0}, {300, 0}, {200, 0}}), ElementsAre(1.01, 0.01, 0.51));
  EXPECT_THAT(score(kMost, {{100, 0}, {300, 0}, {200, 0}}), ElementsAre(0.01, 1.01, 0.51));
  EXPECT_THAT(score("", {{5, 5}, {5, 5}}), ElementsAre(0.51, 0.51));
}

TEST(LatencyScorerTest, BothDimensionsCountByTheirWeights) {
  EXPECT_THAT(score("", {{100, 10}, {300, 30}, {200, 10}}), ElementsAre(1.01, 0.01, 0.61));
  EXPECT_THAT(score(kMost, {{100, 10}, {300, 30}, {200, 10}}), ElementsAre(0.01, 1.01, 0.41));
}

TEST(LatencyScorerTest, WhoMeetsTheObjectivesLeavesOthersAtZero) {
  EXPECT_THAT(score("", {{100, 0}, {-1, 0}, {300, 0}}), ElementsAre(1.01, 0, 0.01));
  EXPECT_THAT(score("", {{-5, 0}, {0, 0, 0, false}}), ElementsAre(0, 0.51));
}

TEST(LatencyScorerTest, WhereAllMissIdleOnesAndThenTheSmallestMissWin) {
  EXPECT_THAT(score("", {{-50, 0}, {-10, 0}}), ElementsAre(0.01, 1.01));
  EXPECT_THAT(score(kMost, {{-50, 0}, {-10, 0}}), ElementsAre(0.01, 1.01));
  EXPECT_THAT(score("", {{-50, -1, 0}, {-10, 0, 3}}), ElementsAre(0.51, 0));
  EXPECT_THAT(score("", {{-50, 0}, {5, -1}, {-9, -9}}), ElementsAre(0, 0.51, 0));
}

TEST(LatencyScorerTest, WithoutPredictionsACompositeDecides) {
  struct State {
    double kv;
    double queue;
    double max_queue;
    uint32_t match;  // of 4
    double expected;
  };
  for (const State& s : {State{0.2, 0, 5, 0, 0.60}, State{0.8, 5, 5, 0, 0.07}, State{0.5, 2, 4, 3, 0.58},
                         State{0.5, 0, 0, 0, 0.50}}) {
    TestPool pool(2);
    const Scorer* scorer = nullptr;
    const auto plugin = make_as("latency-scorer", scorer, "", &pool.slots);
    auto matches = pool.attributes->create<PrefixMatch>(pool.slots.slot(data_keys::kPrefixMatch));
    matches[0] = {s.match, 4, 64, s.match};
    pool.set_all(Signal::kWaitingRequests, {s.queue, s.max_queue});
    pool.set(Signal::kKvUsage, 0, s.kv);
    EXPECT_DOUBLE_EQ(pool.score(*scorer)[0], s.expected);
  }
}

struct LatencyExplanations : testing::Test {
  TestPool pool{2};
  std::vector<HeaderField> fields;
  const Scorer* scorer = nullptr;
  const std::unique_ptr<Plugin> plugin =
      make_as("latency-scorer", scorer, "compositeQueueWeight: 2", &pool.slots);
};

TEST_F(LatencyExplanations, PredictionsAreSetAgainstTheObjectivesThatTheRequestHas) {
  auto column = pool.attributes->create<LatencyPrediction>(pool.slots.slot(data_keys::kLatencyPrediction));
  column[0].known = column[0].ttft_known = true;
  column[0].ttft_ms = 5.61553266131841;
  column[0].ttft_headroom_ms = -5.61553266131841;
  EXPECT_EQ(pool.explain(*scorer, 0), "TTFT 5.62 ms (no objective), TPOT not learnt yet (counts as met)");
  column[0].tpot_known = true;
  column[0].tpot_ms = 12;
  EXPECT_EQ(pool.explain(*scorer, 0), "TTFT 5.62 ms (no objective), TPOT 12 ms (no objective)");
  column[0].ttft_error_ms = 0.407;
  column[0].tpot_error_ms = 1.5;
  EXPECT_EQ(pool.explain(*scorer, 0), "TTFT 5.62 ± 0.41 ms (no objective), TPOT 12 ± 1.5 ms (no objective)");
  column[0].tpot_error_ms = 0;
  fields = {{"x-llm-d-slo-ttft-ms", "3.5"}};
  pool.request.headers = fields;
  column[0].ttft_headroom_ms = -2.11553266131841;
  EXPECT_EQ(pool.explain(*scorer, 0), "TTFT 5.62 ± 0.41 ms (headroom -2.12 ms), TPOT 12 ms (no objective)");
  EXPECT_EQ(pool.explain(*scorer, 1), "no latency prediction: counts as one that just meets the objectives");
}

TEST_F(LatencyExplanations, WithoutAnyPredictionTheyNameThePartsOfTheComposite) {
  pool.set(Signal::kKvUsage, 0, 0.2);
  pool.set(Signal::kWaitingRequests, 0, 3);
  auto matches = pool.attributes->create<PrefixMatch>(pool.slots.slot(data_keys::kPrefixMatch));
  matches[0] = {3, 4, 64, 3};
  EXPECT_EQ(pool.explain(*scorer, 0),
            "no latency prediction; 0.25 x free KV cache (kv usage 0.2 ratio, age 0 ms, fresh) + 0.5 x short "
            "queue, "
            "longest 0 (waiting 3 requests, age 0 ms, fresh) + 0.25 x cached prefix (3 of 4 blocks)");
}

}  // namespace
}  // namespace penstock::scheduling
