#include "scheduling/scorers/token_load_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;

TEST(TokenLoadScorerTest, ScoreFallsWithTokensInFlightAndTokensToPrefill) {
  TestPool pool(4);
  TokenLoadScorer scorer({});
  scorer.bind_slots(pool.slots);
  auto load = pool.attributes->create<InFlightLoad>(pool.slots.slot(data_keys::kInFlightLoad));
  auto uncached = pool.attributes->create<UncachedTokens>(pool.slots.slot(data_keys::kUncachedRequestTokens));
  load[1].tokens = 2097152;
  load[2].tokens = 1048576;
  uncached[2].tokens = 1048576;
  load[3].tokens = 5000000;
  EXPECT_THAT(pool.score(scorer), ElementsAre(1, 0.5, 0.5, 0));
  EXPECT_EQ(pool.explain(scorer, 2),
            "in flight 1048576 tokens, live; of this request 1048576 tokens to prefill");
}

TEST(TokenLoadScorerTest, MissingDataCountAsZero) {
  TestPool pool(1);
  TokenLoadScorer scorer({.threshold = -1});
  scorer.bind_slots(pool.slots);
  EXPECT_THAT(pool.score(scorer), ElementsAre(1));
}

}  // namespace
}  // namespace penstock::scheduling
