#include "scheduling/scorers/expected_ttft_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

struct ExpectedTtft : testing::Test {
  TestPool pool{2};
  std::vector<uint32_t> ids = std::vector<uint32_t>(4000);
  TokenizedPrompt prompt{ids, {}};

  // A holds 50 blocks of 64 and has `tokens` in flight; B is idle.
  std::vector<double> score(std::string_view parameters, int64_t tokens) {
    pool.request.prompts = {&prompt, 1};
    pool.restart();
    const Scorer* scorer = nullptr;
    plugin = make_as("expected-ttft-scorer", scorer, parameters, &pool.slots);
    if (scorer == nullptr) return {};
    auto matches = pool.attributes->create<PrefixMatch>(pool.slots.slot(data_keys::kPrefixMatch));
    matches[0] = {50, 63, 64, 50};
    auto load = pool.attributes->create<InFlightLoad>(pool.slots.slot(data_keys::kInFlightLoad));
    load[0].tokens = tokens;
    explained = pool.explain(*scorer, 0);
    return pool.score(*scorer);
  }
  std::unique_ptr<Plugin> plugin;
  std::string explained;
};
constexpr double kClose = 1e-9;

TEST_F(ExpectedTtft, CachedPrefixIsWeighedAgainstTheWait) {
  EXPECT_THAT(score("prefillTokensPerSecond: 10000", 5000), ElementsAre(DoubleNear(0.82, kClose), 1));
  EXPECT_EQ(explained, "expected TTFT 580 ms: prefill 400 - saved 320 + wait 500");
  EXPECT_THAT(score("prefillTokensPerSecond: 10000", 1000), ElementsAre(1, DoubleNear(0.78, kClose)));
}

TEST_F(ExpectedTtft, ExplanationsAreRoundedToTwoDecimals) {
  score("prefillTokensPerSecond: 7000", 5000);
  EXPECT_EQ(explained, "expected TTFT 828.57 ms: prefill 571.43 - saved 457.14 + wait 714.29");
}

TEST_F(ExpectedTtft, TheBonusCanBeCapped) {
  EXPECT_THAT(score("{prefillTokensPerSecond: 10000, maxBonusMs: 50}", 1000),
              ElementsAre(DoubleNear(0.95, kClose), 1));
}

TEST_F(ExpectedTtft, FarFromTheBestScoresZero) {
  EXPECT_THAT(score("{prefillTokensPerSecond: 10000, scaleMs: 10}", 1000), ElementsAre(1, 0));
  for (const std::string_view bad : {"prefillTokensPerSecond: 0", "scaleMs: 0", "maxBonusMs: -1"})
    EXPECT_FALSE(make_plugin("expected-ttft-scorer", bad).ok()) << bad;
}

TEST_F(ExpectedTtft, WithoutDataAllAreEqual) {
  const Scorer* scorer = nullptr;
  plugin = make_as("expected-ttft-scorer", scorer, "", &pool.slots);
  EXPECT_THAT(pool.score(*scorer), ElementsAre(1, 1));
}

}  // namespace
}  // namespace penstock::scheduling
