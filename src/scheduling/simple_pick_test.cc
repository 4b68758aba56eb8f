#include "scheduling/simple_pick.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

struct SimplePickTest : testing::Test {
  TestPool pool{3};
  SimplePick simple;
  std::vector<double> scores = std::vector<double>(3);
  void load(size_t i, uint64_t requests) { pool.endpoint(i).live->load = EndpointLive::pack(requests, 0); }
  std::vector<Candidate> pick(SimpleChoice choice, size_t count = 1) {
    const auto out = simple.pick(choice, *pool.context, pool.candidates, count, scores);
    return {out.begin(), out.end()};
  }
};

TEST_F(SimplePickTest, FewestInFlightFirstAndEqualsInTurn) {
  load(0, 2);
  EXPECT_THAT(pick(SimpleChoice::kLeastInFlight), ElementsAre(1));
  EXPECT_THAT(scores, ElementsAre(DoubleNear(1.0 / 3, 1e-12), 1, 1));
  EXPECT_THAT(pick(SimpleChoice::kLeastInFlight), ElementsAre(1));  // the turn is the second's
  EXPECT_THAT(pick(SimpleChoice::kLeastInFlight), ElementsAre(2));
  load(1, 1);
  load(2, 1);
  EXPECT_THAT(pick(SimpleChoice::kLeastInFlight, 3), ElementsAre(1, 2, 0));
  EXPECT_THAT(pick(SimpleChoice::kLeastInFlight, 9), ElementsAre(1, 2, 0));
}

TEST_F(SimplePickTest, InTurnWhateverIsInFlight) {
  load(0, 9);
  EXPECT_THAT(pick(SimpleChoice::kRoundRobin, 2), ElementsAre(0, 1));
  EXPECT_THAT(pick(SimpleChoice::kRoundRobin, 2), ElementsAre(1, 2));
  EXPECT_THAT(pick(SimpleChoice::kRoundRobin, 2), ElementsAre(2, 0));
  EXPECT_THAT(scores, ElementsAre(1, 1, 1));
}

TEST_F(SimplePickTest, ExplainingTakesNoTurn) {
  pool.context->explain = true;
  EXPECT_THAT(pick(SimpleChoice::kRoundRobin), ElementsAre(0));
  EXPECT_THAT(pick(SimpleChoice::kRoundRobin), ElementsAre(0));
}

}  // namespace
}  // namespace penstock::scheduling
