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
    if (measured_ms > 0) {
      auto latency =
          pool.attributes->create<LatencyPrediction>(pool.slots.slot(data_keys::kLatencyPrediction));
      latency[0].prefill_ms_per_token = measured_ms;
    }
    explained = pool.explain(*scorer, 0);
    return pool.score(*scorer);
  }
  double measured_ms = 0;  // a token, on A
  std::unique_ptr<Plugin> plugin;
  std::string explained;
};
constexpr double kClose = 1e-9;

TEST_F(ExpectedTtft, CachedPrefixIsWeighedAgainstTheWait) {
  EXPECT_THAT(score("prefillTokensPerSecond: 10000", 5000), ElementsAre(DoubleNear(0.82, kClose), 1));
  EXPECT_EQ(explained,
            "expected TTFT 580 ms: prefill 400 ms - saved 320 ms + wait 500 ms, at 10000 tokens/s");
  EXPECT_THAT(score("prefillTokensPerSecond: 10000", 1000), ElementsAre(1, DoubleNear(0.78, kClose)));
}

TEST_F(ExpectedTtft, ExplanationsAreRoundedToTwoDecimals) {
  score("prefillTokensPerSecond: 7000", 5000);
  EXPECT_EQ(
      explained,
      "expected TTFT 828.57 ms: prefill 571.43 ms - saved 457.14 ms + wait 714.29 ms, at 7000 tokens/s");
}

TEST_F(ExpectedTtft, TheMeasuredCostOfATokenCountsOnceItIsKnown) {
  constexpr std::string_view kMeasured =
      "{prefillTokensPerSecond: 10000, prefillCostSource: latencyPredictor}";
  EXPECT_THAT(score(kMeasured, 5000), ElementsAre(DoubleNear(0.82, kClose), 1));
  EXPECT_THAT(explained, testing::EndsWith(", at 10000 tokens/s as configured, nothing is measured yet"));
  measured_ms = 0.05;
  EXPECT_THAT(score(kMeasured, 5000), ElementsAre(1, DoubleNear(0.89, kClose)));
  EXPECT_EQ(
      explained,
      "expected TTFT 290 ms: prefill 200 ms - saved 160 ms + wait 250 ms, at 20000 tokens/s as measured");
  EXPECT_THAT(score("prefillTokensPerSecond: 10000", 5000), ElementsAre(DoubleNear(0.82, kClose), 1))
      << "unless it is to be taken from the predictor";
}

TEST_F(ExpectedTtft, TheBonusCanBeCapped) {
  EXPECT_THAT(score("{prefillTokensPerSecond: 10000, maxBonusMs: 50}", 1000),
              ElementsAre(DoubleNear(0.95, kClose), 1));
}

TEST_F(ExpectedTtft, FarFromTheBestScoresZero) {
  EXPECT_THAT(score("{prefillTokensPerSecond: 10000, scaleMs: 10}", 1000), ElementsAre(1, 0));
  for (const std::string_view bad :
       {"prefillTokensPerSecond: 0", "scaleMs: 0", "maxBonusMs: -1", "prefillCostSource: guess"})
    EXPECT_FALSE(make_plugin("expected-ttft-scorer", bad).ok()) << bad;
}

TEST_F(ExpectedTtft, WithoutDataAllAreEqual) {
  const Scorer* scorer = nullptr;
  plugin = make_as("expected-ttft-scorer", scorer, "", &pool.slots);
  EXPECT_THAT(pool.score(*scorer), ElementsAre(1, 1));
}

}  // namespace
}  // namespace penstock::scheduling
