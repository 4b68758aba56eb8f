#include "scheduling/scorers/mm_embeddings_cache_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

TEST(MmEmbeddingsCacheScorerTest, IsTheShareOfTheItemsThatAreHeld) {
  TestPool pool(3);
  const Scorer* scorer = nullptr;
  const auto plugin = make_as("mm-embeddings-cache-scorer", scorer, "", &pool.slots);
  EXPECT_THAT(pool.score(*scorer), ElementsAre(0, 0, 0));
  auto column = pool.attributes->create<MultiModalMatch>(pool.slots.slot(data_keys::kMultiModalMatch));
  column[0] = {2, 3};
  column[1] = {0, 3};
  EXPECT_THAT(pool.score(*scorer), ElementsAre(DoubleNear(0.6667, 1e-4), 0, 0));
  EXPECT_EQ(pool.explain(*scorer, 0), "media 2 of 3 items");
}

}  // namespace
}  // namespace penstock::scheduling
