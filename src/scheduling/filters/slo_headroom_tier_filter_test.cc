#include "scheduling/filters/slo_headroom_tier_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> keep(std::string_view parameters,
                              const std::vector<std::pair<double, double>>& headrooms, size_t unknown = 0) {
  TestPool pool(headrooms.size() + unknown);
  const Filter* filter = nullptr;
  const auto plugin = make_as("slo-headroom-tier-filter", filter, parameters, &pool.slots);
  if (filter == nullptr) return {"not made"};
  auto column = pool.attributes->create<LatencyPrediction>(pool.slots.slot(data_keys::kLatencyPrediction));
  for (size_t i = 0; i < headrooms.size(); ++i) {
    column[i].known = true;
    column[i].ttft_headroom_ms = headrooms[i].first;
    column[i].tpot_headroom_ms = headrooms[i].second;
  }
  return pool.keep(*filter);
}

TEST(SloHeadroomTierFilterTest, KeepsWhoMeetsBothObjectives) {
  EXPECT_THAT(keep("epsilonExploreNeg: 0", {{10, 0}, {-1, 5}}), ElementsAre("e0"));
  EXPECT_THAT(keep("epsilonExploreNeg: 1", {{10, 0}, {-1, 5}}), ElementsAre("e1"));
  EXPECT_THAT(keep("epsilonExploreNeg: 0", {{1, 1}}, 1), ElementsAre("e0"));
  EXPECT_THAT(keep("epsilonExploreNeg: 1", {{1, 1}}, 1), ElementsAre("e1"));
}

TEST(SloHeadroomTierFilterTest, AllOfOneKindStay) {
  EXPECT_THAT(keep("epsilonExploreNeg: 0", {{-1, 0}, {0, -1}}), ElementsAre("e0", "e1"));
  EXPECT_THAT(keep("epsilonExploreNeg: 1", {{0, 0}, {1, 1}}), ElementsAre("e0", "e1"));
  EXPECT_THAT(keep("", {}, 2), ElementsAre("e0", "e1"));
  EXPECT_FALSE(make_plugin("slo-headroom-tier-filter", "epsilonExploreNeg: 1.5").ok());
}

}  // namespace
}  // namespace penstock::scheduling
