#include "scheduling/scorers/multicluster_scorers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

TEST(MulticlusterScorersTest, QueuesAreComparedAmongThoseThatReportOne) {
  TestPool pool(4);
  const Scorer* scorer = nullptr;
  const auto plugin = make_as("multicluster-queue-scorer", scorer, "", &pool.slots);
  EXPECT_THAT(pool.score(*scorer), ElementsAre(0, 0, 0, 0));
  auto column = pool.attributes->create<EndpointScalar>(pool.slots.slot(data_keys::kMulticlusterQueueSize));
  for (size_t i = 0; i < 3; ++i) column[i] = {true, 5.0 * static_cast<double>(i), pool.now};
  EXPECT_THAT(pool.score(*scorer), ElementsAre(1, 0.5, 0, 0));
  EXPECT_EQ(pool.explain(*scorer, 1), "queue of the other cluster 5 requests, age 0 ms");
  for (size_t i = 0; i < 3; ++i) column[i].value = 7;
  EXPECT_THAT(pool.score(*scorer), ElementsAre(1, 1, 1, 0));
}

TEST(MulticlusterScorersTest, FreeKvCacheScoresHigh) {
  TestPool pool(2);
  const Scorer* scorer = nullptr;
  const auto plugin = make_as("multicluster-kv-cache-utilization-scorer", scorer, "", &pool.slots);
  auto column = pool.attributes->create<EndpointScalar>(pool.slots.slot(data_keys::kMulticlusterKvUsage));
  column[0] = {true, 0.3, pool.now};
  EXPECT_THAT(pool.score(*scorer), ElementsAre(DoubleNear(0.7, 1e-9), 0));
}

}  // namespace
}  // namespace penstock::scheduling
