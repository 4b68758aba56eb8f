#include "scheduling/pickers/max_score_picker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "scheduling/pickers/pickers_test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::Lt;

TEST(MaxScorePickerTest, TakesTheHighestTotals) {
  TestPool pool(3);
  EXPECT_THAT(pick(MaxScorePicker({}), pool, {2.2, 4.1, 4.8}), ElementsAre(2));
  EXPECT_THAT(pick(MaxScorePicker({2}), pool, {2.2, 4.1, 4.8}), ElementsAre(2, 1));
  EXPECT_THAT(pick(MaxScorePicker({9}), pool, {2.2, 4.1, 4.8}), ElementsAre(2, 1, 0));
}

TEST(MaxScorePickerTest, CountBelowOneIsOne) {
  TestPool pool(2);
  EXPECT_THAT(pick(MaxScorePicker({0}), pool, {-1, -2}), ElementsAre(0));
}

TEST(MaxScorePickerTest, TiesAreBrokenUniformly) {
  TestPool pool(4);
  const auto count = destinations(MaxScorePicker({}), pool, {1, 3, 3, 3}, 6000);
  EXPECT_EQ(count[0], 0);
  EXPECT_THAT(std::vector<int>(count.begin() + 1, count.end()), Each(AllOf(Gt(1850), Lt(2150))));
}

TEST(MaxScorePickerTest, OrderAmongTiesIsUniformForSeveralEndpoints) {
  TestPool pool(3);
  std::map<std::vector<Candidate>, int> orders;
  for (uint64_t seed = 1; seed <= 6000; ++seed) {
    pool.restart(seed);
    ++orders[pick(MaxScorePicker({2}), pool, {3, 3, 3})];
  }
  EXPECT_EQ(orders.size(), 6U);
  for (const auto& [order, times] : orders) EXPECT_THAT(times, AllOf(Gt(860), Lt(1140)));
}

TEST(MaxScorePickerTest, DoublesThatDifferInTheLastBitAreNoTie) {
  TestPool pool(2);
  const auto count = destinations(MaxScorePicker({}), pool, {0.1 + 0.2, 0.3}, 50);
  EXPECT_THAT(count, ElementsAre(50, 0));
}

TEST(MaxScorePickerTest, ReadsItsParameter) {
  const Picker* picker = nullptr;
  auto plugin = make_as("max-score-picker", picker, "maxNumOfEndpoints: 2");
  ASSERT_NE(picker, nullptr);
  TestPool pool(3);
  EXPECT_THAT(pick(*picker, pool, {1, 2, 3}), ElementsAre(2, 1));
  EXPECT_FALSE(make_plugin("max-score-picker", "maxNumOfEndpoints: two").ok());
}

}  // namespace
}  // namespace penstock::scheduling
