#include "assembly/assembly_testing.h"

namespace penstock::assembly {
namespace {

using testing::HasSubstr;

class FlowControlPlanTest : public AssemblyTest {};

TEST_F(FlowControlPlanTest, FlowControlIsPlannedWhenItsGateIsOn) {
  options_.flow_control_available = true;
  const Assembly a = assembled(
      "featureGates: [flowControl]\n"
      "flowControl: {maxBytes: \"1024\", defaultRequestTTL: 1m, noEndpointRequestTTL: 5m}\n");
  ASSERT_TRUE(a.flow_control.has_value());
  EXPECT_TRUE(a.policy->flow_control);
  EXPECT_EQ(a.flow_control->max_bytes, 1024);
  EXPECT_EQ(a.flow_control->request_ttl, std::chrono::seconds(60));
  EXPECT_EQ(a.flow_control->no_endpoint_request_ttl, std::chrono::seconds(300));
  ASSERT_EQ(a.flow_control->bands.size(), 1U);
  EXPECT_EQ(a.flow_control->bands[0].ordering->type(), "fcfs-ordering-policy");
  EXPECT_EQ(a.flow_control->bands[0].fairness->type(), "global-strict-fairness-policy");

  const auto ttls = [&](const std::string& fields) {
    const Assembly b = assembled("featureGates: [flowControl]\nflowControl: {" + fields + "}\n");
    return std::pair(b.flow_control->request_ttl, b.flow_control->no_endpoint_request_ttl);
  };
  const auto s = [](int n) { return Duration(std::chrono::seconds(n)); };
  EXPECT_EQ(ttls(""), std::pair(s(60), s(60)));
  EXPECT_EQ(ttls("defaultRequestTTL: 10s"), std::pair(s(10), s(10)));
  EXPECT_EQ(ttls("defaultRequestTTL: 10s, noEndpointRequestTTL: 5m"), std::pair(s(10), s(300)));
  EXPECT_EQ(ttls("defaultRequestTTL: 0s"), std::pair(s(0), s(0)));
  EXPECT_EQ(ttls("defaultRequestTTL: 10s, noEndpointRequestTTL: 0s"), std::pair(s(10), s(0)));
  EXPECT_EQ(ttls("noEndpointRequestTTL: 0s"), std::pair(s(60), s(0)));
}

TEST_F(FlowControlPlanTest, PriorityBandsUseTheirOwnInstances) {
  options_.flow_control_available = true;
  const Assembly a = assembled(
      "featureGates: [flowControl]\n"
      "plugins: [{name: customFCFS, type: fcfs-ordering-policy}, {name: customFairness, type: "
      "global-strict-fairness-policy}]\n"
      "flowControl: {priorityBands: [{priority: 100, orderingPolicyRef: customFCFS, fairnessPolicyRef: "
      "customFairness, maxRequests: 7}]}\n");
  ASSERT_EQ(a.flow_control->bands.size(), 2U);
  EXPECT_EQ(a.flow_control->bands[0].priority, 100);
  EXPECT_EQ(a.flow_control->bands[0].ordering->name(), "customFCFS");
  EXPECT_EQ(a.flow_control->bands[0].fairness->name(), "customFairness");
  EXPECT_EQ(a.flow_control->bands[0].max_requests, 7);
  EXPECT_EQ(a.flow_control->bands[1].priority, 0);
  EXPECT_EQ(a.flow_control->bands[1].max_bytes, 1000000000);

  const auto flow = [&](const std::string& fields, const std::string& plugins = "[]") {
    return error_of("featureGates: [flowControl]\nplugins: " + plugins + "\nflowControl: {" + fields + "}\n");
  };
  EXPECT_THAT(
      flow("priorityBands: [{priority: 1, orderingPolicyRef: nobody}]"),
      HasSubstr("failed to load flow control config: failed to create registry config: plugin \"nobody\" "
                "not found"));
  EXPECT_THAT(
      flow("priorityBands: [{priority: 1, orderingPolicyRef: test-scorer}]", "[{type: test-scorer}]"),
      HasSubstr("plugin \"test-scorer\" does not implement OrderingPolicy (actual type: test-scorer)"));
  EXPECT_THAT(flow("priorityBands: [{priority: 1}, {priority: 1}]"), HasSubstr("duplicate priority level 1"));
  EXPECT_THAT(flow("maxBytes: -1"), HasSubstr("global MaxBytes must be non-negative, got -1"));
  EXPECT_THAT(flow("priorityBands: [{priority: 3, maxRequests: -2}]"),
              HasSubstr("priority band 3 MaxRequests must be non-negative, got -2"));
  EXPECT_THAT(flow("defaultPriorityBand: {maxBytes: -2}"),
              HasSubstr("default priority band MaxBytes must be non-negative"));
  EXPECT_THAT(flow("defaultRequestTTL: -5s"), HasSubstr("DefaultRequestTTL cannot be negative, but got -5s"));
  EXPECT_THAT(flow("usageLimitPolicyPluginRef: nobody"),
              HasSubstr("failed to resolve usage limit policy: plugin \"nobody\" not found"));
}

TEST_F(FlowControlPlanTest, FlowControlBehindAClosedGateRestsAndWarns) {
  const auto warned = [&](const std::string& text) {
    const Assembly a = assembled(text);
    EXPECT_FALSE(a.flow_control.has_value());
    for (const std::string& w : a.policy->warnings) {
      if (w.find("the flowControl feature gate is disabled") != std::string::npos) return true;
    }
    return false;
  };
  EXPECT_TRUE(warned("featureGates: [flowControl=false]\nflowControl: {maxBytes: 1024}\n"));
  EXPECT_TRUE(warned("flowControl: {enableEviction: true}\n"));
  EXPECT_FALSE(warned("plugins: []\n"));
  EXPECT_FALSE(warned("flowControl: {saturationDetector: {pluginRef: utilization-detector}}\n"));
  EXPECT_THAT(error_of("featureGates: [flowControl]\n"),
              AllOf(HasSubstr("this build has no flow-control queue"), HasSubstr("line ")));
}

TEST_F(FlowControlPlanTest, SaturationDetectorsAreResolved) {
  EXPECT_THAT(error_of("flowControl: {saturationDetector: {pluginRef: nobody}}"),
              HasSubstr("configuration validation failed: saturation detector validation failed: saturation "
                        "detector references undefined plugin 'nobody'"));
  EXPECT_THAT(error_of("plugins: [{type: test-scorer}]\nsaturationDetector: {pluginRef: test-scorer}"),
              HasSubstr("plugin 'test-scorer' is not a fwkfc.SaturationDetector"));
  options_.scrape_interval = std::chrono::seconds(1);
  EXPECT_THAT(
      error_of("plugins: [{type: utilization-detector, parameters: {metricsStalenessThreshold: 200ms}}]"),
      HasSubstr("200ms is below the scrape interval 1s"));
}

}  // namespace
}  // namespace penstock::assembly
