#include "scheduling/scorers/load_aware_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;

TEST(LoadAwareScorerTest, ScoreFallsFromAHalfToZeroAtTheThreshold) {
  TestPool pool(5);
  pool.set_all(Signal::kWaitingRequests, {0, 1, 64, 128, 500});
  EXPECT_THAT(pool.score(LoadAwareScorer({})), ElementsAre(0.5, 0.49609375, 0.25, 0, 0));
}

TEST(LoadAwareScorerTest, ThresholdBelowOneIsTheDefault) {
  TestPool pool(1);
  pool.set(Signal::kWaitingRequests, 0, 64);
  EXPECT_THAT(pool.score(LoadAwareScorer({.threshold = 0})), ElementsAre(0.25));
}

TEST(LoadAwareScorerTest, ParametersAreDecodedAndUnknownOnesRefused) {
  const Scorer* scorer = nullptr;
  auto plugin = make_as("load-aware-scorer", scorer, "threshold: 10");
  ASSERT_NE(scorer, nullptr);
  TestPool pool(1);
  pool.set(Signal::kWaitingRequests, 0, 5);
  EXPECT_THAT(pool.score(*scorer), ElementsAre(0.25));
  EXPECT_FALSE(make_plugin("load-aware-scorer", "treshold: 10").ok());
  EXPECT_FALSE(make_plugin("load-aware-scorer", "threshold: asdf").ok());
}

}  // namespace
}  // namespace penstock::scheduling
