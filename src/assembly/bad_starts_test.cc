#include "assembly/bad_starts.h"

#include <gtest/gtest.h>

namespace penstock::assembly {
namespace {

TEST(BadStarts, OneInTenSecondsIsALineThatCountsTheOthers) {
  ManualClock clock;
  BadStarts starts(clock);
  EXPECT_EQ(starts.count(), 0U);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(starts.count(), std::nullopt);
  clock.advance(BadStarts::kQuiet);
  EXPECT_EQ(starts.count(), 5U);
  EXPECT_EQ(starts.count(), std::nullopt);
  clock.advance(BadStarts::kQuiet * 2);
  EXPECT_EQ(starts.count(), 1U);
}

}  // namespace
}  // namespace penstock::assembly
