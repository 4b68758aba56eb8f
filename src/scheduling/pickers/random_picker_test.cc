#include "scheduling/pickers/random_picker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "scheduling/pickers/pickers_test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Gt;
using ::testing::Lt;
using ::testing::SizeIs;

TEST(RandomPickerTest, EveryCandidateIsEquallyLikelyWhateverItsTotal) {
  TestPool pool(4);
  EXPECT_THAT(destinations(RandomPicker({}), pool, {0, 1, 100, -5}, 8000), Each(AllOf(Gt(1850), Lt(2150))));
}

TEST(RandomPickerTest, SeveralEndpointsAreDistinct) {
  TestPool pool(4);
  const auto targets = pick(RandomPicker({3}), pool, {0, 0, 0, 0});
  EXPECT_THAT(std::set<Candidate>(targets.begin(), targets.end()), SizeIs(3));
}

}  // namespace
}  // namespace penstock::scheduling
