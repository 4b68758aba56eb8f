#include "scheduling/scorers/kv_cache_utilization_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

TEST(KvCacheUtilizationScorerTest, ScoreIsTheFreeShare) {
  TestPool pool(4);
  pool.set_all(Signal::kKvUsage, {0, 0.3, 1, 1.2});
  EXPECT_THAT(pool.score(KvCacheUtilizationScorer()), ElementsAre(1, 0.7, 0, DoubleNear(-0.2, 1e-12)));
  EXPECT_EQ(pool.explain(KvCacheUtilizationScorer(), 1), "kv usage 0.3 ratio, age 0 ms, fresh");
  pool.set_all(Signal::kKvUsage, {0, 1.0 / 21, 1, 1});
  EXPECT_EQ(pool.explain(KvCacheUtilizationScorer(), 1), "kv usage 0.0476 ratio, age 0 ms, fresh");
}

TEST(KvCacheUtilizationScorerTest, UnknownUsageCountsAsTheLargestKnown) {
  TestPool pool(3);
  pool.set_all(Signal::kKvUsage, {0.2, 0.6, 0});
  pool.set(Signal::kKvUsage, 2, 0, SignalState::kNeverSeen);
  EXPECT_THAT(pool.score(KvCacheUtilizationScorer()), ElementsAre(0.8, 0.4, 0.4));
}

TEST(KvCacheUtilizationScorerTest, WithoutAnyKnownUsageAllAreFree) {
  TestPool pool(2);
  pool.set(Signal::kKvUsage, 0, 0, SignalState::kNeverSeen);
  pool.set(Signal::kKvUsage, 1, 0, SignalState::kNameMissing);
  EXPECT_THAT(pool.score(KvCacheUtilizationScorer()), ElementsAre(1, 1));
}

}  // namespace
}  // namespace penstock::scheduling
