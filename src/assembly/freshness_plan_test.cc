#include "assembly/assembly_testing.h"

namespace penstock::assembly {
namespace {

using testing::HasSubstr;

class FreshnessPlanTest : public AssemblyTest {};

TEST_F(FreshnessPlanTest, FreshnessIsWhatTheConfigurationSaysSignalBySignal) {
  const Assembly made = assembled(
      "plugins: [{type: queue-scorer}]\n"
      "penstock:\n"
      "  mode: strict\n"
      "  freshness:\n"
      "    budget: 1s\n"
      "    unknownAfter: 4s\n"
      "    inFlightCredit: false\n"
      "    minFreshShare: 0.25\n"
      "    fallback: round-robin\n"
      "    signals:\n"
      "      waiting_requests: {budget: 500ms}\n"
      "      kv_usage_ratio: {budget: 10s}\n"
      "      lora_adapters: {budget: 30s, unknownAfter: 1m}\n");
  const Freshness& freshness = *made.policy->freshness;
  const auto bounds = [](const FreshnessBounds& b) {
    return std::pair(to_seconds(b.budget), to_seconds(b.unknown_after));
  };
  EXPECT_EQ(bounds(freshness.of(Signal::kWaitingRequests)), std::pair(0.5, 4.0));
  EXPECT_EQ(bounds(freshness.of(Signal::kRunningRequests)), std::pair(1.0, 4.0));
  EXPECT_EQ(bounds(freshness.of(Signal::kKvUsage)), std::pair(10.0, 50.0)) << "the common bound lies below";
  EXPECT_EQ(bounds(freshness.adapters()), std::pair(30.0, 60.0));
  EXPECT_FALSE(freshness.in_flight_credit);
  EXPECT_EQ(freshness.min_fresh_share, 0.25);
  EXPECT_EQ(freshness.fallback, SimpleChoice::kRoundRobin);
}

TEST_F(FreshnessPlanTest, ABudgetOfCenturiesIsNeverUnknown) {
  const Assembly made = assembled(
      "plugins: [{type: queue-scorer}]\npenstock: {mode: strict, freshness: {budget: 600000h, "
      "signals: {kv_usage_ratio: {budget: 700000h, unknownAfter: 800000h}}}}\n");
  const Freshness& freshness = *made.policy->freshness;
  EXPECT_EQ(freshness.of(Signal::kWaitingRequests).unknown_after, Duration::max());
  EXPECT_EQ(freshness.of(Signal::kKvUsage).unknown_after, std::chrono::hours(800000));
}

TEST_F(FreshnessPlanTest, FreshnessThatCannotWorkIsAnErrorThatNamesFieldAndLine) {
  const auto error = [&](const std::string& freshness, const char* mode = "strict") {
    return error_of("plugins: [{type: queue-scorer}]\npenstock:\n  mode: " + std::string(mode) +
                    "\n  freshness: " + freshness + "\n");
  };
  EXPECT_THAT(error("{budget: 1s}", "compatible"),
              HasSubstr("penstock.freshness: needs penstock.mode: strict"));
  EXPECT_THAT(error("{budget: 100ms}"),
              HasSubstr("penstock.freshness.budget: 100ms is below the scrape interval 200ms: between two "
                        "scrapes every value would be stale (line 4)"));
  EXPECT_THAT(error("{budget: 3s, unknownAfter: 3s}"),
              HasSubstr("penstock.freshness.unknownAfter: 3s is not above the budget 3s (line 4)"));
  EXPECT_THAT(
      error("{signals: {kv_usage_ratio: {budget: 9s, unknownAfter: 1s}}}"),
      HasSubstr("penstock.freshness.signals.kv_usage_ratio.unknownAfter: 1s is not above the budget 9s"));
  EXPECT_THAT(error("{signals: {gpu: {budget: 9s}}}"), HasSubstr("gpu"));
  EXPECT_THAT(error("{fallback: best}"),
              HasSubstr("penstock.freshness.fallback: \"best\" is not least-in-flight, round-robin or none"));
  EXPECT_THAT(error("{minFreshShare: 1.5}"), HasSubstr("minFreshShare: must be in [0, 1], got 1.5"));
}

TEST_F(FreshnessPlanTest, StrictModeBringsFreshnessAndNearTiesAndCompatibleModeNeither) {
  options_.staleness = std::chrono::seconds(3);
  const Assembly strict = assembled("plugins: [{type: queue-scorer}]\npenstock: {mode: strict}\n");
  EXPECT_TRUE(strict.policy->strict);
  ASSERT_TRUE(strict.policy->freshness.has_value());
  const Freshness& freshness = *strict.policy->freshness;
  EXPECT_EQ(freshness.of(Signal::kKvUsage).budget, std::chrono::seconds(3)) << "metrics.staleness";
  EXPECT_EQ(freshness.of(Signal::kKvUsage).unknown_after, std::chrono::seconds(15));
  EXPECT_EQ(freshness.min_fresh_share, 0.5);
  EXPECT_EQ(freshness.fallback, SimpleChoice::kLeastInFlight);
  EXPECT_THAT(strict.policy->effective_config,
              HasSubstr("Penstock: {Mode: strict, Freshness: {Bounds: {Budget: 3s, UnknownAfter: 15s}, "
                        "InFlightCredit: true, MinFreshShare: 0.5, Fallback: least-in-flight}}"));
  EXPECT_THAT(strict.policy->effective_config, HasSubstr("{PluginRef: near-tie-picker}"));
  EXPECT_THAT(strict.notices, ::testing::Contains(HasSubstr("penstock.mode strict")));
  EXPECT_THAT(strict.policy->warnings, ::testing::IsEmpty());
  for (const char* text : {"plugins: [{type: queue-scorer}]\n",
                           "plugins: [{type: queue-scorer}]\npenstock: {mode: compatible}\n"}) {
    const Assembly plain = assembled(text);
    EXPECT_FALSE(plain.policy->strict);
    EXPECT_FALSE(plain.policy->freshness.has_value());
    EXPECT_THAT(plain.policy->effective_config, HasSubstr("{PluginRef: max-score-picker}"));
  }
}

}  // namespace
}  // namespace penstock::assembly
