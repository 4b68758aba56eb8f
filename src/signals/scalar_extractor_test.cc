#include "signals/scalar_extractor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/node.h"
#include "inference/request.h"
#include "signals/plugins.h"
#include "telemetry/metrics.h"

namespace penstock::signals {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Slots final : SlotResolver {
  mutable std::map<std::string, AttributeSlot> slots;
  AttributeSlot slot(const DataKey& key) const override {
    return slots.emplace(key.text(), static_cast<AttributeSlot>(slots.size())).first->second;
  }
};

// An extractor made through its registry line, two endpoints, and what a decision would see.
struct Extracted : testing::Test {
  telemetry::MetricRegistry metrics;
  ManualClock clock;
  std::unique_ptr<Plugin> plugin;
  PoolSnapshot pool;
  std::vector<std::shared_ptr<Endpoint>> endpoints;
  Slots slots;
  TimePoint at = TimePoint(std::chrono::seconds(5));

  void SetUp() override {
    for (size_t i = 0; i < 2; ++i) {
      auto endpoint = std::make_shared<Endpoint>();
      endpoint->slot = static_cast<EndpointSlot>(i);
      endpoint->name = "pod-" + std::to_string(i);
      endpoint->id = "default/" + endpoint->name;
      endpoints.push_back(endpoint);
      pool.endpoints.push_back(endpoint);
    }
  }
  std::string make(std::string_view type, std::string_view parameters = "") {
    for (const PluginDescriptor& descriptor : signal_plugins()) {
      if (descriptor.type != type) continue;
      config::Node node;
      if (!parameters.empty()) node = config::parse_document(parameters, "test").value();
      auto made =
          descriptor.create({type, parameters.empty() ? nullptr : &node, "parameters", metrics, clock, 1});
      if (!made.ok()) return made.error().message;
      plugin = std::move(made).value();
      plugin->set_identity(std::string(type), std::string(type));
      plugin->bind_slots(slots);
      return "";
    }
    return "no such type";
  }
  PageSink& sink() { return *dynamic_cast<const PageExtractor&>(*plugin).sink(); }
  void page(size_t endpoint, std::string_view body, std::string_view engine = "") {
    sink().page(*endpoints[endpoint], engine, body, at);
  }
  // Values of a key, -1 where unknown.
  std::vector<double> values(const DataKey& key) {
    Arena arena;
    AttributeTable attributes(arena, 16, 2);
    InferenceRequest request;
    SignalView view;
    Random random(1);
    const std::vector<Candidate> candidates{0, 1};
    SchedulingContext ctx{request, pool, view, attributes, arena, random, at, candidates};
    EXPECT_TRUE(dynamic_cast<const DataProducer&>(*plugin).produce(ctx).ok());
    std::vector<double> out;
    for (const EndpointScalar& scalar : attributes.column<EndpointScalar>(slots.slot(key))) {
      out.push_back(scalar.known ? scalar.value : -1);
      if (scalar.known) {
        EXPECT_EQ(scalar.observed_at, at);
      }
    }
    return out;
  }
};

TEST_F(Extracted, DcgmTakesTheBusiestGpuOfTheOwnPod) {
  ASSERT_EQ(make("dcgm-extractor"), "");
  page(0,
       "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",pod=\"pod-0\"} 40\nDCGM_FI_DEV_GPU_UTIL{gpu=\"1\"} 55\n"
       "DCGM_FI_DEV_GPU_UTIL{gpu=\"2\",pod=\"pod-9\"} 99\n");
  EXPECT_THAT(values(data_keys::kGpuUtilization), ElementsAre(::testing::DoubleEq(0.55), -1));
  page(0, "other 1\n");
  EXPECT_THAT(values(data_keys::kGpuUtilization), ElementsAre(-1, -1));
}

TEST_F(Extracted, WhatIsNotFiniteIsNoSample) {
  ASSERT_EQ(make("dcgm-extractor"), "");
  page(0, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} NaN\nDCGM_FI_DEV_GPU_UTIL{gpu=\"1\"} 55\n");
  page(1, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 20\nDCGM_FI_DEV_GPU_UTIL{gpu=\"1\"} +Inf\n");
  EXPECT_THAT(values(data_keys::kGpuUtilization), ElementsAre(::testing::DoubleEq(0.55), 0.2));
  page(0, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} NaN\n");
  EXPECT_THAT(values(data_keys::kGpuUtilization), ElementsAre(-1, 0.2));
}

TEST_F(Extracted, AnotherClustersFiguresAreRead) {
  ASSERT_EQ(make("multicluster-metrics-extractor", "queueSizeMetric: q"), "");
  page(1, "llm_d_epp_average_kv_cache_utilization{name=\"p\"} 0.25\nq 7\n");
  EXPECT_THAT(values(data_keys::kMulticlusterKvUsage), ElementsAre(-1, 0.25));
  EXPECT_THAT(values(data_keys::kMulticlusterQueueSize), ElementsAre(-1, 7));
  sink().gone(1);
  EXPECT_THAT(values(data_keys::kMulticlusterQueueSize), ElementsAre(-1, -1));
  EXPECT_THAT(make("multicluster-metrics-extractor", "queueSizeMetric: ''"), HasSubstr("cannot be empty"));
}

TEST_F(Extracted, CustomMetricsBelongToAnEngine) {
  ASSERT_EQ(
      make("core-metrics-extractor",
           "{engineConfigs: [{name: vllm, customMetrics: [{attributeKey: swaps, metricSpec: "
           "'vllm:swapped{kind=a}'}]}, {name: mine, customMetrics: [{attributeKey: swaps, metricSpec: s}, "
           "{attributeKey: more, metricSpec: m}]}]}"),
      "");
  page(0, "vllm:swapped{kind=\"b\"} 1\nvllm:swapped{kind=\"a\"} 3 10\nvllm:swapped{kind=\"a\"} 4 20\ns 9\n",
       "vllm");
  page(1, "vllm:swapped{kind=\"a\"} 3\ns 8\nm 2\n", "mine");
  EXPECT_THAT(values({"swaps", "core-metrics-extractor"}), ElementsAre(4, 8));
  EXPECT_THAT(values({"more", "core-metrics-extractor"}), ElementsAre(-1, 2));
  ASSERT_NE(dynamic_cast<const CoreMetricsExtractor*>(plugin.get()), nullptr);
}

TEST_F(Extracted, WhatADownEndpointLastSaidCountsNoMore) {
  ASSERT_EQ(make("dcgm-extractor"), "");
  page(0, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 20\n");
  page(1, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 50\n");
  sink().down(0);
  EXPECT_THAT(values(data_keys::kGpuUtilization), ElementsAre(-1, 0.5));
  page(0, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 20\n");
  EXPECT_THAT(values(data_keys::kGpuUtilization), ElementsAre(0.2, 0.5));
}

TEST_F(Extracted, ASlotsNextEndpointInheritsNothing) {
  ASSERT_EQ(make("dcgm-extractor"), "");
  for (size_t i = 0; i < 2; ++i) sink().attached(*endpoints[i]);
  page(0, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 20\n");
  page(1, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 50\n");
  // A scraper that was made anew begins with the same endpoints.
  sink().attached(*endpoints[0]);
  endpoints[1]->id = "default/other";
  sink().attached(*endpoints[1]);
  EXPECT_THAT(values(data_keys::kGpuUtilization), ElementsAre(0.2, -1));
}

TEST_F(Extracted, WithoutCustomMetricsNothingIsProducedForRequests) {
  ASSERT_EQ(make("core-metrics-extractor"), "");
  EXPECT_EQ(dynamic_cast<const DataProducer*>(plugin.get()), nullptr);
}

TEST_F(Extracted, ModelsAreKeptAndShown) {
  ASSERT_EQ(make("models-data-extractor"), "");
  page(0, R"({"object":"list","data":[{"id":"a","parent":null},{"x":1},7,{"id":"b"}]})");
  page(1, R"({"data":[{"id":"c")");
  EXPECT_EQ(
      *plugin->dump_state(),
      R"({"endpoints":[{"endpoint":"default/pod-0","models":["a","b"]}],"totalEndpoints":1,"maxEndpoints":100})");
  sink().attached(*endpoints[0]);
  EXPECT_THAT(*plugin->dump_state(), HasSubstr("\"totalEndpoints\":1"));
  endpoints[0]->id = "default/other";
  sink().attached(*endpoints[0]);
  EXPECT_THAT(*plugin->dump_state(), HasSubstr("\"totalEndpoints\":0"));
  page(0, R"({"data":[{"id":"a"}]})");
  sink().gone(0);
  EXPECT_THAT(*plugin->dump_state(), HasSubstr("\"totalEndpoints\":0"));
}

TEST_F(Extracted, SourcesHaveTheirOwnDefaults) {
  const auto params = [&](std::string_view type, std::string_view parameters = "") {
    EXPECT_EQ(make(type, parameters), "");
    return dynamic_cast<const MetricsDataSource&>(*plugin).params();
  };
  EXPECT_EQ(params("dcgm-data-source").port, 9400);
  EXPECT_EQ(params("models-data-source").path, "/v1/models");
  EXPECT_EQ(params("multicluster-metrics-data-source").scheme, "https");
  EXPECT_FALSE(params("multicluster-metrics-data-source").insecure_skip_verify);
  EXPECT_EQ(params("dcgm-data-source", "{port: 9500, useNodeAddress: false}").port, 9500);
  EXPECT_THAT(make("dcgm-data-source", "useNodeAddress: true"), HasSubstr("useNodeAddress"));
  EXPECT_THAT(make("metrics-data-source", "useNodeAddress: false"), HasSubstr("useNodeAddress"));
}

}  // namespace
}  // namespace penstock::signals
