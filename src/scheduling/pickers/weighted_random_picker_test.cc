#include "scheduling/pickers/weighted_random_picker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/pickers/pickers_test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Gt;
using ::testing::Lt;
using ::testing::SizeIs;

TEST(WeightedRandomPickerTest, KeyIsThePowerOfTheDraw) {
  EXPECT_NEAR(WeightedRandomPicker::key(0.5, 2), 0.70710678, 1e-8);
  EXPECT_NEAR(WeightedRandomPicker::key(0.5, 0.5), 0.25, 1e-12);
  EXPECT_NEAR(WeightedRandomPicker::key(0.9, 0.1), 0.34867844, 1e-8);
  EXPECT_NEAR(WeightedRandomPicker::key(0.2, 5.1), 0.72936859, 1e-8);
  EXPECT_EQ(WeightedRandomPicker::key(0.9, 0), 0);
  EXPECT_EQ(WeightedRandomPicker::key(0, 1), 1e-10);
}

TEST(WeightedRandomPickerTest, DestinationsFollowTheTotals) {
  TestPool pool(3);
  for (const int n : {1, 2}) {  // one endpoint is drawn by another way than several
    const auto count = destinations(WeightedRandomPicker({n}), pool, {1, 3, 0}, 8000);
    EXPECT_NEAR(count[0], 2000, 160);
    EXPECT_NEAR(count[1], 6000, 160);
    EXPECT_EQ(count[2], 0);
  }
}

TEST(WeightedRandomPickerTest, ZeroTotalsComeOnlyAfterPositiveOnes) {
  TestPool pool(3);
  const auto targets = pick(WeightedRandomPicker({3}), pool, {0, 2, 0});
  ASSERT_THAT(targets, SizeIs(3));
  EXPECT_EQ(targets[0], 1U);
}

TEST(WeightedRandomPickerTest, WithoutPositiveTotalsAllAreEquallyLikely) {
  TestPool pool(4);
  EXPECT_THAT(destinations(WeightedRandomPicker({}), pool, {0, 0, -1, 0}, 8000),
              Each(AllOf(Gt(1850), Lt(2150))));
}

}  // namespace
}  // namespace penstock::scheduling
