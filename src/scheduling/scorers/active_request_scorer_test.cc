#include "scheduling/scorers/active_request_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;

std::vector<double> score(std::vector<int64_t> requests, ActiveRequestScorer::Params params = {}) {
  TestPool pool(requests.size());
  ActiveRequestScorer scorer(params);
  scorer.bind_slots(pool.slots);
  auto load = pool.attributes->create<InFlightLoad>(pool.slots.slot(data_keys::kInFlightLoad));
  for (size_t i = 0; i < requests.size(); ++i) load[i].requests = requests[i];
  return pool.score(scorer);
}

TEST(ActiveRequestScorerTest, FewestInFlightScoresHighest) {
  EXPECT_THAT(score({0, 2, 4}), ElementsAre(1, 0.5, 0));
  EXPECT_THAT(score({3, 3}), ElementsAre(0, 0));
}

TEST(ActiveRequestScorerTest, UpToTheIdleThresholdAllScoreOne) {
  EXPECT_THAT(score({0, 2, 4}, {.idle_threshold = 2}), ElementsAre(1, 1, 0));
  EXPECT_THAT(score({0, 2, 4}, {.idle_threshold = -5}), ElementsAre(1, 0.5, 0));
}

TEST(ActiveRequestScorerTest, BusyScoresAreScaled) {
  EXPECT_THAT(score({0, 2, 4}, {.max_busy_score = 0.5}), ElementsAre(1, 0.25, 0));
  EXPECT_THAT(score({0, 2, 4}, {.max_busy_score = 1.5}), ElementsAre(1, 0.5, 0));
}

TEST(ActiveRequestScorerTest, WithoutDataEveryEndpointCountsAsIdle) {
  TestPool pool(2);
  ActiveRequestScorer scorer({});
  scorer.bind_slots(pool.slots);
  EXPECT_THAT(pool.score(scorer), ElementsAre(1, 1));
  EXPECT_EQ(pool.explain(scorer, 0),
            "in flight unknown (no data from inflight-load-producer): counts as idle");
}

TEST(ActiveRequestScorerTest, ReadsTheProducerItNames) {
  DataDeclaration declaration;
  ActiveRequestScorer({.in_flight_producer = "mine"}).declare_data(declaration);
  ASSERT_EQ(declaration.consumes.size(), 1U);
  EXPECT_EQ(declaration.consumes[0].key.text(), "InFlightLoadDataKey/mine");
}

}  // namespace
}  // namespace penstock::scheduling
