#include "scheduling/scorers/context_length_aware.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;

constexpr std::string_view kLabel = "llm-d.ai/context-length-range";

double score(size_t context, const char* range) {
  TestPool pool(1);
  if (range != nullptr) pool.endpoint(0).labels.emplace(kLabel, range);
  std::vector<uint32_t> tokens(context, 1);
  TokenizedPrompt prompt{tokens, {}};
  if (context > 0) pool.request.prompts = {&prompt, 1};
  return pool.score(ContextLengthAware({}))[0];
}

TEST(ContextLengthAwareTest, TightRangesWithHeadroomScoreHighest) {
  constexpr double kTolerance = 5e-7;
  EXPECT_NEAR(score(0, "0-20"), 0.999022, kTolerance);
  EXPECT_NEAR(score(0, "0-10000"), 0.755, kTolerance);
  EXPECT_NEAR(score(1500, "0-2048"), 0.762898, kTolerance);
  EXPECT_NEAR(score(32000, "0-32000"), 0.416667, kTolerance);
  EXPECT_NEAR(score(1000, "0-8192"), 0.753714, kTolerance);
  EXPECT_EQ(score(5, "5-5"), 1.0);
}

TEST(ContextLengthAwareTest, OutOfRangeFallsWithTheDistance) {
  constexpr double kTolerance = 5e-7;
  EXPECT_NEAR(score(0, "500-1000"), 0.2, kTolerance);
  EXPECT_NEAR(score(1500, "2048-8192"), 0.193798, kTolerance);
  EXPECT_NEAR(score(10000, "0-8192"), 0.106838, kTolerance);
}

TEST(ContextLengthAwareTest, UnreadableLabelScoresZeroAndAbsentOneAHalf) {
  for (const char* range : {"0-100-200", "100-50", "abc-100", ""}) EXPECT_EQ(score(10, range), 0) << range;
  EXPECT_EQ(score(10, nullptr), 0.5);
}

TEST(ContextLengthAwareTest, FiltersOnlyWhenTold) {
  TestPool pool(4);
  pool.endpoint(0).labels.emplace(kLabel, "0-4");
  pool.endpoint(1).labels.emplace(kLabel, " 5 - 9 ");
  pool.endpoint(2).labels.emplace(kLabel, "nonsense");
  std::vector<uint32_t> tokens(6, 1);
  TokenizedPrompt prompt{tokens, {}};
  pool.request.prompts = {&prompt, 1};
  EXPECT_THAT(pool.keep(ContextLengthAware({})), ElementsAre("e0", "e1", "e2", "e3"));
  EXPECT_THAT(pool.keep(ContextLengthAware({.filtering = true})), ElementsAre("e1", "e3"));
}

TEST(ContextLengthAwareTest, RefusesAnEmptyLabel) {
  EXPECT_FALSE(make_plugin("context-length-aware", "label: ''").ok());
}

}  // namespace
}  // namespace penstock::scheduling
