#include "flowcontrol/policies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "flowcontrol/fairness/global_strict_fairness_policy.h"
#include "flowcontrol/limits/static_usage_limit_policy.h"
#include "flowcontrol/ordering/fcfs_ordering_policy.h"
#include "flowcontrol/plugins.h"
#include "telemetry/metrics.h"

namespace penstock::flowcontrol {
namespace {

TimePoint at(int64_t ms) {
  return TimePoint(std::chrono::milliseconds(ms));
}

TEST(FcfsOrderingPolicy, PutsTheEarlierFirstAndKeepsTheOrderOfTies) {
  const FcfsOrderingPolicy policy;
  EXPECT_TRUE(policy.before({at(1), 9}, {at(2), 1}));
  EXPECT_FALSE(policy.before({at(2), 1}, {at(1), 9}));
  EXPECT_TRUE(policy.before({at(1), 1}, {at(1), 2}));
  EXPECT_FALSE(policy.before({at(1), 1}, {at(1), 1}));
}

TEST(GlobalStrictFairnessPolicy, TakesTheBestHeadOfAllFlows) {
  const GlobalStrictFairnessPolicy policy;
  const FcfsOrderingPolicy fcfs;
  const std::vector<QueuedItem> heads{{at(5), 1}, {at(3), 2}, {at(4), 3}};
  EXPECT_EQ(policy.pick(heads, fcfs), 1U);
  EXPECT_EQ(policy.pick({}, fcfs), 0U);
}

TEST(StaticUsageLimitPolicy, GivesEveryBandTheSameCeiling) {
  const StaticUsageLimitPolicy policy({.threshold = 0.5});
  const std::vector<int64_t> priorities{10, 0, -1};
  std::vector<double> ceilings(3, 0);
  policy.ceilings(priorities, ceilings);
  EXPECT_THAT(ceilings, testing::Each(0.5));
}

TEST(FlowControlPlugins, AreCreatedFromTheTableAndRefuseWrongParameters) {
  telemetry::MetricRegistry metrics;
  const SystemClock clock;
  for (const PluginDescriptor& d : flowcontrol_plugins()) {
    const PluginFactoryContext plain{d.type, nullptr, "plugins[0].parameters", metrics, clock, 1};
    EXPECT_TRUE(d.create(plain).ok()) << d.type;
    const config::Node bogus = *config::parse_document("{bogus: 1}", "t");
    const PluginFactoryContext wrong{d.type, &bogus, "plugins[0].parameters", metrics, clock, 1};
    const auto made = d.create(wrong);
    ASSERT_FALSE(made.ok()) << d.type;
    EXPECT_THAT(made.error().message,
                testing::HasSubstr("plugins[0].parameters: unknown field \"bogus\" (line 1)"));
  }
}

}  // namespace
}  // namespace penstock::flowcontrol
