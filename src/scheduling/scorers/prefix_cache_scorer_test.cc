#include "scheduling/scorers/prefix_cache_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

double score(PrefixMatch match, PrefixCacheScorer::Params params = {}) {
  TestPool pool(1);
  PrefixCacheScorer scorer(params);
  scorer.bind_slots(pool.slots);
  pool.attributes->create<PrefixMatch>(pool.slots.slot(data_keys::kPrefixMatch))[0] = match;
  return pool.score(scorer)[0];
}

TEST(PrefixCacheScorerTest, ScoreIsTheMatchedShare) {
  EXPECT_DOUBLE_EQ(score({.match_blocks = 3, .total_blocks = 10, .block_size_tokens = 64}), 0.3);
  EXPECT_EQ(score({.match_blocks = 0, .total_blocks = 0, .block_size_tokens = 64}), 0);
}

TEST(PrefixCacheScorerTest, LengthWeightMixesInTheSquareOfTheMatchedLength) {
  EXPECT_DOUBLE_EQ(score({64, 128, 64, 64}, {.length_weight = 0.5}), 0.375);
  EXPECT_DOUBLE_EQ(score({256, 256, 64, 256}, {.length_weight = 1}), 1);
}

TEST(PrefixCacheScorerTest, UnknownBlockSizeLeavesOnlyTheShare) {
  EXPECT_DOUBLE_EQ(score({64, 128, 0, 64}, {.length_weight = 0.5}), 0.25);
}

TEST(PrefixCacheScorerTest, WithoutDataScoresZeroAndSaysSo) {
  TestPool pool(2);
  PrefixCacheScorer scorer({});
  scorer.bind_slots(pool.slots);
  EXPECT_THAT(pool.score(scorer), ElementsAre(0, 0));
  EXPECT_EQ(pool.explain(scorer, 0),
            "prefix match unknown (no data from approx-prefix-cache-producer): scores 0");
  pool.attributes->create<PrefixMatch>(pool.slots.slot(data_keys::kPrefixMatch))[1] = {3, 10, 64, 3};
  EXPECT_EQ(pool.explain(scorer, 1), "prefix 3 of 10 blocks of 64 tokens");
}

TEST(PrefixCacheScorerTest, ReadsTheProducerItNames) {
  DataDeclaration declaration;
  PrefixCacheScorer({.producer = "cpu"}).declare_data(declaration);
  EXPECT_EQ(declaration.consumes[0].key.text(), "PrefixCacheMatchInfoDataKey/cpu");
}

TEST(PrefixCacheScorerTest, RefusesWeightsAndScalesOutOfRange) {
  auto weight = make_plugin("prefix-cache-scorer", "matchLengthWeight: 1.5");
  ASSERT_FALSE(weight.ok());
  EXPECT_THAT(weight.error().message, HasSubstr("matchLengthWeight must be between 0.0 and 1.0, got 1.5"));
  EXPECT_FALSE(
      make_plugin("prefix-cache-scorer", "{matchLengthWeight: 0.5, matchLengthScaleTokens: 0}").ok());
  EXPECT_TRUE(make_plugin("prefix-cache-scorer", "{matchLengthScaleTokens: 0}").ok());
}

TEST(PrefixCacheScorerTest, RefusesTheProducersParameters) {
  EXPECT_FALSE(make_plugin("prefix-cache-scorer", "blockSize: 64").ok());
  EXPECT_FALSE(make_plugin("prefix-cache-scorer", "lruCapacityPerServer: 31250").ok());
}

}  // namespace
}  // namespace penstock::scheduling
