#include "scheduling/filters/prefix_cache_affinity_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Load {
  uint32_t match;  // of 100 blocks
  int64_t tokens;
};

std::vector<std::string> keep(std::string_view parameters, const std::vector<Load>& loads) {
  TestPool pool(loads.size());
  const Filter* filter = nullptr;
  const auto plugin = make_as("prefix-cache-affinity-filter", filter, parameters, &pool.slots);
  if (filter == nullptr) return {"not made"};
  auto matches = pool.attributes->create<PrefixMatch>(pool.slots.slot(data_keys::kPrefixMatch));
  auto load = pool.attributes->create<InFlightLoad>(pool.slots.slot(data_keys::kInFlightLoad));
  for (size_t i = 0; i < loads.size(); ++i) {
    matches[i] = {loads[i].match, 100, 64, loads[i].match};
    load[i].tokens = loads[i].tokens;
  }
  return pool.keep(*filter);
}

TEST(PrefixCacheAffinityFilterTest, SticksUntilTheWaitCostsTooMuch) {
  EXPECT_THAT(keep("", {{90, 500000}, {0, 100000}}), ElementsAre("e0", "e1"));
  EXPECT_THAT(keep("", {{90, 300000}, {0, 100000}}), ElementsAre("e0"));
  EXPECT_THAT(keep("maxTTFTPenaltyMs: 0", {{90, 5000000}, {0, 0}}), ElementsAre("e0"));
}

TEST(PrefixCacheAffinityFilterTest, AScoreAtTheThresholdIsSticky) {
  EXPECT_THAT(keep("", {{80, 0}, {79, 0}}), ElementsAre("e0"));
}

TEST(PrefixCacheAffinityFilterTest, WithoutStickyEndpointsAllStay) {
  EXPECT_THAT(keep("", {{79, 0}, {0, 0}}), ElementsAre("e0", "e1"));
  EXPECT_THAT(keep("affinityThreshold: 0", {{90, 0}, {0, 0}}), ElementsAre("e0", "e1"));
  EXPECT_THAT(keep("explorationProbability: 1", {{90, 0}, {0, 0}}), ElementsAre("e0", "e1"));
  EXPECT_THAT(keep("", {{0, 0}}), ElementsAre("e0"));
}

TEST(PrefixCacheAffinityFilterTest, APredictionThatIsMissingIsTheWorst) {
  TestPool pool(2);
  const Filter* filter = nullptr;
  const auto plugin =
      make_as("prefix-cache-affinity-filter", filter, "ttftSource: latencyPredictor", &pool.slots);
  ASSERT_NE(filter, nullptr);
  auto matches = pool.attributes->create<PrefixMatch>(pool.slots.slot(data_keys::kPrefixMatch));
  matches[0] = {90, 100, 64, 90};
  auto predictions =
      pool.attributes->create<LatencyPrediction>(pool.slots.slot(data_keys::kLatencyPrediction));
  predictions[1].known = predictions[1].ttft_known = true;
  EXPECT_THAT(pool.keep(*filter), ElementsAre("e0", "e1"));
  // Knowing the other time is not enough.
  predictions[0].known = predictions[0].tpot_known = true;
  EXPECT_THAT(pool.keep(*filter), ElementsAre("e0", "e1"));
  predictions[0].ttft_known = true;
  EXPECT_THAT(pool.keep(*filter), ElementsAre("e0"));
}

TEST(PrefixCacheAffinityFilterTest, RefusesBadParameters) {
  for (const std::string_view bad :
       {"affinityThreshold: 1.1", "explorationProbability: 2", "maxTTFTPenaltyMs: -1",
        "peakPrefillThroughput: 0", "ttftSource: guess"}) {
    const auto made = make_plugin("prefix-cache-affinity-filter", bad);
    ASSERT_FALSE(made.ok()) << bad;
    EXPECT_THAT(made.error().message, HasSubstr(std::string(bad.substr(0, bad.find(':')))));
  }
  EXPECT_TRUE(
      make_plugin("prefix-cache-affinity-filter", "{peakPrefillThroughput: 0, maxTTFTPenaltyMs: 0}").ok());
}

}  // namespace
}  // namespace penstock::scheduling
