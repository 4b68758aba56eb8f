#include "scheduling/scorers/running_requests_size_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;

TEST(RunningRequestsSizeScorerTest, FewestRunningScoresOneAndMostZero) {
  TestPool pool(3);
  pool.set_all(Signal::kRunningRequests, {0, 5, 10});
  pool.set_all(Signal::kWaitingRequests, {9, 0, 0});
  EXPECT_THAT(pool.score(RunningRequestsSizeScorer()), ElementsAre(1, 0.5, 0));
  EXPECT_EQ(pool.explain(RunningRequestsSizeScorer(), 1), "running 5 requests, age 0 ms, fresh");
}

TEST(RunningRequestsSizeScorerTest, EqualCountsAllScoreOne) {
  TestPool pool(2);
  pool.set_all(Signal::kRunningRequests, {3, 3});
  EXPECT_THAT(pool.score(RunningRequestsSizeScorer()), ElementsAre(1, 1));
}

}  // namespace
}  // namespace penstock::scheduling
