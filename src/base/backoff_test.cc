#include "base/backoff.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace penstock {
namespace {

TEST(Backoff, GrowsToItsCapWithFullJitter) {
  Backoff backoff(std::chrono::milliseconds(100), std::chrono::seconds(1), 7);
  Duration longest{0};
  for (int i = 0; i < 200; ++i) {
    const Duration wait = backoff.next();
    EXPECT_LE(wait, std::chrono::milliseconds(100) * (int64_t{1} << std::min(i, 10)));
    EXPECT_LE(wait, std::chrono::seconds(1));
    longest = std::max(longest, wait);
  }
  EXPECT_GT(longest, std::chrono::milliseconds(500));
  backoff.reset();
  EXPECT_LE(backoff.next(), std::chrono::milliseconds(100));
}

}  // namespace
}  // namespace penstock
