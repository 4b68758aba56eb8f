#include "director/wall_follower.h"

#include <gtest/gtest.h>

namespace penstock::director {
namespace {

using std::chrono::milliseconds;

TEST(WallFollower, TellsTheWallOfAnyMomentWhicheverItWasFirstAskedFor) {
  ManualClock clock;
  WallFollower wall(clock);
  const TimePoint before = clock.now();
  clock.advance(milliseconds(500));
  const auto right = [](TimePoint moment) { return WallTime(moment.time_since_epoch()); };
  EXPECT_EQ(wall.at(before), right(before));
  clock.advance(milliseconds(3));
  EXPECT_EQ(wall.at(clock.now()), right(clock.now()));
  EXPECT_EQ(wall.at(before), right(before));
  clock.advance(milliseconds(30));
  EXPECT_EQ(wall.at(clock.now()), right(clock.now()));
}

}  // namespace
}  // namespace penstock::director
