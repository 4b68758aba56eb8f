#include "signals/pool_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::signals {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(SpreadTest, MatchesTheReferencesNumbers) {
  EXPECT_EQ(spread_of({30, 70}).mean, 50);
  EXPECT_EQ(spread_of({30, 70}).std_dev, 28.28);
  EXPECT_EQ(spread_of({2, 5}).mean, 3.5);
  EXPECT_EQ(spread_of({2, 5}).std_dev, 2.12);
  EXPECT_EQ(spread_of({1, 3}).mean, 2);
  EXPECT_EQ(spread_of({1, 3}).std_dev, 1.41);
  EXPECT_EQ(spread_of({4}).std_dev, 0);
}

class PoolMetricsTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Endpoint> endpoint(EndpointSlot slot, const std::string& id) {
    auto e = std::make_shared<Endpoint>();
    e->slot = slot;
    e->id = "default/" + id;
    return e;
  }
  void observe(EndpointSlot slot, double waiting, double kv) {
    const auto ticket = table.attach(slot, clock.now());
    SignalRow row;
    row.at(Signal::kWaitingRequests) = {waiting, clock.now(), SignalState::kFresh};
    row.at(Signal::kRunningRequests).state = SignalState::kNameMissing;
    row.at(Signal::kKvUsage) = {kv, clock.now(), SignalState::kFresh};
    table.write(ticket, row, clock.now());
  }

  telemetry::MetricRegistry registry;
  SignalTable table;
  ManualClock clock;
};

TEST_F(PoolMetricsTest, WritesGaugesOfPoolsAndEndpoints) {
  auto snapshot = std::make_shared<PoolSnapshot>();
  snapshot->endpoints = {endpoint(0, "a-rank-0"), endpoint(1, "b-rank-0"), endpoint(2, "c-rank-0")};
  observe(0, 1, 0.3);
  observe(1, 2, 0.7);
  PoolMetrics metrics(registry, table, clock);
  metrics.add_pool("default", "p", [&] { return snapshot; });
  clock.advance(milliseconds(500));
  const std::string text = registry.render();
  EXPECT_THAT(text, HasSubstr("llm_d_epp_ready_endpoints{name=\"p\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("inference_pool_ready_pods{name=\"p\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("llm_d_epp_average_queue_size{name=\"p\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("inference_pool_average_kv_cache_utilization{name=\"p\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("llm_d_epp_std_dev_queue_size{name=\"p\"} 0.71\n"));
  EXPECT_THAT(text, Not(HasSubstr("average_running_requests")));
  EXPECT_THAT(
      text,
      HasSubstr("llm_d_epp_per_endpoint_queue_size{name=\"p\",model_server_endpoint=\"b-rank-0\"} 2\n"));
  EXPECT_THAT(text,
              HasSubstr("inference_pool_per_pod_queue_size{name=\"p\",model_server_pod=\"a-rank-0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("penstock_signal_age_seconds{pool=\"p\",endpoint=\"default/"
                              "a-rank-0\",signal=\"waiting_requests\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("signal=\"running_requests\",state=\"name_missing\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("endpoint=\"default/c-rank-0\",signal=\"kv_usage_ratio\",state=\"never_seen\"} 1\n"));
}

TEST_F(PoolMetricsTest, StaleEndpointsAreNotReadyAndFreezeNoAverage) {
  auto snapshot = std::make_shared<PoolSnapshot>();
  snapshot->endpoints = {endpoint(0, "a")};
  observe(0, 9, 0.3);
  PoolMetrics metrics(registry, table, clock);
  metrics.add_pool("default", "p", [&] { return snapshot; });
  clock.advance(seconds(3));
  const std::string text = registry.render();
  EXPECT_THAT(text, HasSubstr("llm_d_epp_ready_endpoints{name=\"p\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("average_queue_size")));
  EXPECT_THAT(text, HasSubstr("state=\"stale\"} 1\n"));
}

TEST_F(PoolMetricsTest, EveryFamilyWrittenIsInTheReference) {
  auto snapshot = std::make_shared<PoolSnapshot>();
  snapshot->endpoints = {endpoint(0, "a")};
  const auto ticket = table.attach(0, clock.now());
  SignalRow row;
  for (SignalValue& v : row.signals) v = {1, clock.now(), SignalState::kFresh};
  table.write(ticket, row, clock.now());
  PoolMetrics metrics(registry, table, clock);
  metrics.add_pool("default", "p", [&] { return snapshot; });
  const std::string text = registry.render();
  size_t types = 0;
  for (size_t at = 0; (at = text.find("# TYPE ", at)) != std::string::npos; ++at) ++types;
  size_t names = 0;
  for (const CollectedFamily& family : collected_families()) {
    names += family.deprecated_name.empty() ? 1 : 2;
    EXPECT_THAT(text, HasSubstr("# TYPE " + std::string(family.name) + " gauge\n"));
    if (!family.deprecated_name.empty()) {
      EXPECT_THAT(text, HasSubstr("# TYPE " + std::string(family.deprecated_name) + " gauge\n"));
    }
  }
  EXPECT_EQ(types, names);
}

// PRM-03 and PRM-04.
TEST_F(PoolMetricsTest, AVanishedEndpointLeavesNoSeriesAndNoFamilyAppearsTwice) {
  auto snapshot = std::make_shared<PoolSnapshot>();
  snapshot->endpoints = {endpoint(0, "gone"), endpoint(1, "here")};
  auto other = std::make_shared<PoolSnapshot>();
  other->endpoints = {endpoint(2, "elsewhere")};
  PoolMetrics metrics(registry, table, clock);
  metrics.add_pool("default", "p", [&] { return snapshot; });
  metrics.add_pool("default", "q", [&] { return other; });
  EXPECT_THAT(registry.render(), HasSubstr("gone"));
  snapshot = std::make_shared<PoolSnapshot>();
  snapshot->endpoints = {endpoint(1, "here")};
  const std::string text = registry.render();
  EXPECT_THAT(text, Not(HasSubstr("gone")));
  const std::string type = "# TYPE llm_d_epp_per_endpoint_queue_size gauge";
  EXPECT_EQ(text.find(type), text.rfind(type));
  metrics.remove_pool("default", "p");
  EXPECT_THAT(registry.render(), Not(HasSubstr("default/here")));
}

TEST_F(PoolMetricsTest, PoolsOfOneNameInTwoNamespacesAreToldApart) {
  auto one = std::make_shared<PoolSnapshot>();
  one->endpoints = {endpoint(0, "a")};
  auto other = std::make_shared<PoolSnapshot>();
  PoolMetrics metrics(registry, table, clock);
  observe(0, 1, 0.3);
  metrics.add_pool("team-a", "p", [&] { return one; });
  EXPECT_THAT(registry.render(), HasSubstr("llm_d_epp_ready_endpoints{name=\"p\"} 1\n"));
  metrics.add_pool("team-b", "p", [&] { return other; });
  const std::string text = registry.render();
  EXPECT_THAT(text, HasSubstr("llm_d_epp_ready_endpoints{name=\"team-a/p\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("llm_d_epp_ready_endpoints{name=\"team-b/p\"} 0\n"));
  metrics.remove_pool("team-b", "p");
  EXPECT_THAT(registry.render(), HasSubstr("llm_d_epp_ready_endpoints{name=\"p\"} 1\n"));
}

}  // namespace
}  // namespace penstock::signals
