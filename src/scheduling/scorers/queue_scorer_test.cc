#include "scheduling/scorers/queue_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;

TEST(QueueScorerTest, ShortestQueueScoresOneAndLongestZero) {
  TestPool pool(3);
  pool.set_all(Signal::kWaitingRequests, {0, 5, 10});
  EXPECT_THAT(pool.score(QueueScorer()), ElementsAre(1, 0.5, 0));
}

TEST(QueueScorerTest, EqualQueuesAllScoreOne) {
  TestPool pool(2);
  pool.set_all(Signal::kWaitingRequests, {3, 3});
  EXPECT_THAT(pool.score(QueueScorer()), ElementsAre(1, 1));
  TestPool single(1);
  single.set_all(Signal::kWaitingRequests, {8});
  EXPECT_THAT(single.score(QueueScorer()), ElementsAre(1));
}

TEST(QueueScorerTest, OnlyCandidatesEnterTheRange) {
  TestPool pool(3);
  pool.set_all(Signal::kWaitingRequests, {5, 10, 1000});
  std::vector<double> scores(2);
  QueueScorer().score(*pool.context, std::vector<Candidate>{0, 1}, scores);
  EXPECT_THAT(scores, ElementsAre(1, 0));
}

TEST(QueueScorerTest, EndpointNeverScrapedDoesNotBeatKnownOnes) {
  TestPool pool(3);
  pool.set_all(Signal::kWaitingRequests, {2, 4, 0});
  pool.set(Signal::kWaitingRequests, 2, 0, SignalState::kNeverSeen);
  EXPECT_THAT(pool.score(QueueScorer()), ElementsAre(1, 0, 0));
  pool.set(Signal::kWaitingRequests, 2, 0, SignalState::kNameMissing);
  EXPECT_THAT(pool.score(QueueScorer()), ElementsAre(1, 0, 0));
}

TEST(QueueScorerTest, WithoutAnyKnownQueueAllAreEmptyAsInTheReference) {
  TestPool pool(2);
  pool.set(Signal::kWaitingRequests, 0, 0, SignalState::kNeverSeen);
  pool.set(Signal::kWaitingRequests, 1, 0, SignalState::kNeverSeen);
  EXPECT_THAT(pool.score(QueueScorer()), ElementsAre(1, 1));
}

TEST(QueueScorerTest, StaleQueuesAreUsedAsTheyAre) {
  TestPool pool(2);
  pool.set(Signal::kWaitingRequests, 0, 7, SignalState::kStale);
  pool.set(Signal::kWaitingRequests, 1, 9, SignalState::kEndpointDown);
  EXPECT_THAT(pool.score(QueueScorer()), ElementsAre(1, 0));
}

TEST(QueueScorerTest, ExplainsValueAgeAndState) {
  TestPool pool(2);
  pool.set(Signal::kWaitingRequests, 0, 3);
  pool.set(Signal::kWaitingRequests, 1, 0, SignalState::kNeverSeen);
  pool.now += std::chrono::milliseconds(41);
  pool.restart();
  EXPECT_EQ(pool.explain(QueueScorer(), 0), "waiting 3 requests, age 41 ms, fresh");
  EXPECT_EQ(pool.explain(QueueScorer(), 1),
            "waiting unknown (never_seen): counts as the largest known value, or 0 where none is known");
}

}  // namespace
}  // namespace penstock::scheduling
