#include "scheduling/scorers/no_hit_lru_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

class NoHitLruScorerTest : public ::testing::Test {
 protected:
  void SetUp() override { restart(); }
  void restart() {
    pool.restart();
    scorer.bind_slots(pool.slots);
    matches = pool.attributes->create<PrefixMatch>(pool.slots.slot(data_keys::kPrefixMatch));
  }
  void pick(Candidate target, std::string_view profile_name = "default") {
    const std::vector<Candidate> targets{target};
    const std::vector<double> totals(pool.candidates.size());
    const ProfileResult profile{profile_name, targets, pool.candidates, totals, nullptr};
    const ProfileResult* list[] = {&profile};
    EXPECT_TRUE(scorer.pre_request(*pool.context, {list, &profile}).ok());
  }

  TestPool pool{4};
  NoHitLruScorer scorer{{}};
  std::span<PrefixMatch> matches;
};

TEST_F(NoHitLruScorerTest, NeverUsedComeFirstThenOldestUsed) {
  pick(1);
  pick(0);
  EXPECT_THAT(pool.score(scorer), ElementsAre(0, DoubleNear(0.3333, 1e-4), 1, DoubleNear(0.6667, 1e-4)));
}

TEST_F(NoHitLruScorerTest, NeverUsedAreRankedInCandidateOrder) {
  std::vector<double> scores(2);
  scorer.score(*pool.context, std::vector<Candidate>{0, 1}, scores);
  EXPECT_THAT(scores, ElementsAre(1, 0));
  std::vector<double> one(1);
  scorer.score(*pool.context, std::vector<Candidate>{3}, one);
  EXPECT_THAT(one, ElementsAre(1));
}

TEST_F(NoHitLruScorerTest, AnyMatchMakesAllScoreAHalf) {
  matches[2].match_blocks = 1;
  EXPECT_THAT(pool.score(scorer), ElementsAre(0.5, 0.5, 0.5, 0.5));
  pick(2);
  restart();
  EXPECT_EQ(pool.score(scorer)[0], 1) << "a warm pick must not enter the order";
}

TEST_F(NoHitLruScorerTest, ItsStateIsTheOrderOldestFirst) {
  EXPECT_EQ(scorer.dump_state(), R"({"endpoints":[],"totalEndpoints":0,"maxEndpoints":100})");
  pick(2);
  pick(0);
  EXPECT_EQ(scorer.dump_state(), R"({"endpoints":["ns/e2","ns/e0"],"totalEndpoints":2,"maxEndpoints":100})");
  scorer.endpoint_removed(*pool.pool.endpoints[2]);
  EXPECT_EQ(scorer.dump_state(), R"({"endpoints":["ns/e0"],"totalEndpoints":1,"maxEndpoints":100})");
}

TEST_F(NoHitLruScorerTest, EndpointThatLeftIsForgotten) {
  pick(0);
  EXPECT_LT(pool.score(scorer)[0], 1);
  scorer.endpoint_removed(*pool.pool.endpoints[0]);
  EXPECT_EQ(pool.score(scorer)[0], 1);
}

TEST_F(NoHitLruScorerTest, PrefillDestinationCountsAsUsedToo) {
  const std::vector<Candidate> decode{0};
  const std::vector<Candidate> prefill{1};
  const std::vector<double> totals(4);
  const ProfileResult primary{"decode", decode, pool.candidates, totals, nullptr};
  const ProfileResult other{"prefill", prefill, pool.candidates, totals, nullptr};
  const ProfileResult* list[] = {&primary, &other};
  EXPECT_TRUE(scorer.pre_request(*pool.context, {list, &primary}).ok());
  const auto scores = pool.score(scorer);
  EXPECT_EQ(scores[2], 1);
  EXPECT_GT(scores[0], scores[1]);
}

TEST(NoHitLruScorerBoundTest, TheOldestIsForgottenBeyondTheSize) {
  TestPool pool(3);
  NoHitLruScorer scorer({.lru_size = 1});
  scorer.bind_slots(pool.slots);
  for (const Candidate target : {0U, 1U}) {
    const std::vector<Candidate> targets{target};
    const std::vector<double> totals(3);
    const ProfileResult profile{"default", targets, pool.candidates, totals, nullptr};
    EXPECT_TRUE(scorer.pre_request(*pool.context, {{}, &profile}).ok());
  }
  EXPECT_THAT(pool.score(scorer), ElementsAre(1, 0, 0.5));
}

}  // namespace
}  // namespace penstock::scheduling
