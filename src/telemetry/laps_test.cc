#include "telemetry/laps.h"

#include <gtest/gtest.h>

namespace penstock::telemetry {
namespace {

constexpr std::array<double, 2> kBounds{0.001, 0.01};

class LapsTest : public ::testing::Test {
 protected:
  ManualClock clock;
  Histogram first{kBounds};
  Histogram second{kBounds};
};

TEST_F(LapsTest, AllTheTimeBetweenTwoReadingsGoesToTheSteps) {
  Laps laps(clock, clock.now());
  laps.end(&first);
  laps.end(&second);
  laps.end(&second);
  clock.advance(std::chrono::milliseconds(6));
  EXPECT_EQ(laps.settle(), clock.now());
  EXPECT_EQ(first.count(), 1U);
  EXPECT_EQ(second.count(), 2U);
  EXPECT_NEAR(first.sum() + second.sum(), 0.006, 1e-9);
  clock.advance(std::chrono::milliseconds(3));
  laps.end(&first);
  (void)laps.settle();
  EXPECT_NEAR(first.sum() + second.sum(), 0.009, 1e-9);
}

TEST_F(LapsTest, AStepThatNobodyCountsTakesItsShare) {
  {
    Laps laps(clock, clock.now());
    laps.end(nullptr);
    laps.end(&first);
    clock.advance(std::chrono::milliseconds(6));
  }
  EXPECT_EQ(first.count(), 1U) << "observed at the end at the latest";
  EXPECT_LE(first.sum(), 0.006);
}

TEST_F(LapsTest, TheStepsAfterAMarkAreAddedUp) {
  Laps laps(clock, clock.now());
  laps.end(&first);
  clock.advance(std::chrono::milliseconds(1));
  (void)laps.settle();
  laps.mark();
  for (int i = 0; i < 100; ++i) laps.end(&second);
  clock.advance(std::chrono::milliseconds(5));
  (void)laps.settle();
  EXPECT_NEAR(to_seconds(laps.since_mark()), 0.005, 1e-6);
  EXPECT_EQ(second.count(), 100U) << "also more than it remembers";
  EXPECT_NEAR(second.sum(), 0.005, 1e-9);
}

}  // namespace
}  // namespace penstock::telemetry
