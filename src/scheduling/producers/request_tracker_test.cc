#include <gtest/gtest.h>

#include <chrono>

#include "scheduling/producers/latency_models.h"

namespace penstock::scheduling {
namespace {

TEST(RequestTracker, ForgetsTheOldestOfMoreRequestsThanItHolds) {
  RequestTracker tracker(std::chrono::hours(1));
  const TimePoint now(std::chrono::seconds(1));
  for (uint64_t number = 1; number <= RequestTracker::kMaxRequests + 10; ++number)
    ASSERT_TRUE(tracker.begin(number, TrackedRequest{}, now));
  EXPECT_EQ(tracker.size(), RequestTracker::kMaxRequests);
  EXPECT_FALSE(tracker.end(10));
  EXPECT_TRUE(tracker.end(11));
  // Whoever was forgotten runs nowhere any more.
  EXPECT_EQ(tracker.endpoints().at(0).requests, RequestTracker::kMaxRequests - 1);
}

TEST(RequestTracker, ForgetsRequestsWithoutAnEnd) {
  RequestTracker tracker(std::chrono::seconds(5));
  const TimePoint now(std::chrono::seconds(1));
  ASSERT_TRUE(tracker.begin(1, TrackedRequest{}, now));
  ASSERT_TRUE(tracker.begin(2, TrackedRequest{}, now + std::chrono::seconds(10)));
  EXPECT_EQ(tracker.size(), 1U);
  EXPECT_FALSE(tracker.end(1));
}

}  // namespace
}  // namespace penstock::scheduling
