#include "director/load_guard.h"

#include <gtest/gtest.h>

#include "director/testing.h"

namespace penstock::director {
namespace {

TEST(LoadGuard, ComesOffExactlyOnceWhateverHappensToIt) {
  const auto endpoint = testing::make_endpoint(0, "a", 1);
  std::atomic<uint64_t>& load = endpoint->live->load;
  {
    LoadGuard guard(endpoint, 500);
    EXPECT_EQ(EndpointLive::requests_of(load), 1U);
    EXPECT_EQ(EndpointLive::tokens_of(load), 500U);
    LoadGuard moved(std::move(guard));
    moved.release_tokens();
    moved.release_tokens();
    EXPECT_EQ(EndpointLive::requests_of(load), 1U);
    EXPECT_EQ(EndpointLive::tokens_of(load), 0U);
    moved.release();
    moved.release();
    EXPECT_EQ(load, 0U);
  }
  EXPECT_EQ(load, 0U);
}

TEST(LoadGuard, AssigningAnotherReservationReleasesTheFirst) {
  const auto a = testing::make_endpoint(0, "a", 1);
  const auto b = testing::make_endpoint(1, "b", 2);
  LoadGuard guard(a, 3);
  guard = LoadGuard(b, 4);
  EXPECT_EQ(a->live->load, 0U);
  EXPECT_EQ(EndpointLive::tokens_of(b->live->load), 4U);
}

TEST(LoadGuard, ItsRequestIsUnseenUntilAScrapeShowsItOrItEnds) {
  const auto endpoint = testing::make_endpoint(0, "a", 1);
  UnseenRequests& unseen = endpoint->live->unseen;
  LoadGuard shown(endpoint, 1);
  const UnseenRequests::Round scrape = unseen.begin_round();
  LoadGuard later(endpoint, 1);
  EXPECT_EQ(unseen.since(scrape), 1U);
  shown.release();
  EXPECT_EQ(unseen.since(scrape), 1U);
  LoadGuard moved(std::move(later));
  later = LoadGuard();
  EXPECT_EQ(unseen.since(scrape), 1U);
  moved.release();
  EXPECT_EQ(unseen.since(scrape), 0U);
}

TEST(LoadGuard, AnAbsurdTokenCountCannotReachTheRequestBits) {
  const auto endpoint = testing::make_endpoint(0, "a", 1);
  const LoadGuard guard(endpoint, UINT64_MAX);
  EXPECT_EQ(EndpointLive::requests_of(endpoint->live->load), 1U);
}

}  // namespace
}  // namespace penstock::director
