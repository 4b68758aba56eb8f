#include "signals/plugins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/node.h"
#include "telemetry/metrics.h"

namespace penstock::signals {
namespace {

using ::testing::HasSubstr;

class PluginsTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Plugin>> create(std::string_view type, std::string_view parameters) {
    node_ = config::parse_document(parameters, "test").value();
    for (const PluginDescriptor& d : signal_plugins()) {
      if (d.type == type) return d.create({type, &node_, "plugins[0].parameters", metrics_, clock_, 1});
    }
    return Error{ErrorCode::kInternal, "no such type"};
  }
  std::string error(std::string_view type, std::string_view parameters) {
    auto plugin = create(type, parameters);
    return plugin.ok() ? std::string() : plugin.error().message;
  }

  config::Node node_;
  telemetry::MetricRegistry metrics_;
  ManualClock clock_;
};

TEST_F(PluginsTest, TheSourceOfTheSeedConfigurationDecodes) {
  auto plugin = create("metrics-data-source", "{scheme: https, path: /metrics, insecureSkipVerify: false}");
  ASSERT_TRUE(plugin.ok()) << plugin.error().message;
  const auto& params = static_cast<MetricsDataSource&>(**plugin).params();
  EXPECT_EQ(params.scheme, "https");
  EXPECT_FALSE(params.insecure_skip_verify);
  EXPECT_EQ(params.port, 0);
  EXPECT_TRUE(create("metrics-data-source", "{port: 9400, interval: 200ms}").ok());
}

TEST_F(PluginsTest, TheSourceNamesWhatIsWrong) {
  EXPECT_THAT(error("metrics-data-source", "{port: 65536}"),
              HasSubstr("invalid port 65536: must be between 1 and 65535"));
  EXPECT_THAT(error("metrics-data-source", "{port: 0}"), HasSubstr("invalid port 0"));
  EXPECT_THAT(error("metrics-data-source", "{scheme: ftp}"), HasSubstr("unsupported scheme: ftp"));
  EXPECT_THAT(error("metrics-data-source", "{interval: soon}"), HasSubstr("invalid interval \"soon\": "));
  EXPECT_THAT(error("metrics-data-source", "{interval: -1s}"),
              HasSubstr("interval must be non-negative, got -1s"));
  EXPECT_THAT(error("metrics-data-source", "{prot: 1}"), HasSubstr("unknown field \"prot\""));
}

TEST_F(PluginsTest, TheExtractorProducesTheFiveKeys) {
  auto plugin = create("core-metrics-extractor", "{}");
  ASSERT_TRUE(plugin.ok()) << plugin.error().message;
  (*plugin)->set_identity("mine", "core-metrics-extractor");
  DataDeclaration data;
  (*plugin)->declare_data(data);
  ASSERT_EQ(data.produces.size(), 5U);
  EXPECT_EQ(data.produces[0].key.text(), "WaitingQueueSize/core-metrics-extractor");
  EXPECT_EQ(data.produces[4].key, data_keys::kWaitingModels);
  EXPECT_TRUE(data.consumes.empty());
}

TEST_F(PluginsTest, AnEngineConfigReplacesTheBuiltInOne) {
  auto plugin =
      create("core-metrics-extractor",
             "{defaultEngine: mine, engineConfigs: [{name: mine, queuedRequestsSpec: "
             "'q{kind=waiting}', kvUsageSpec: kv, cacheInfoSpec: info, cacheBlockSizeLabelName: bs}]}");
  ASSERT_TRUE(plugin.ok()) << plugin.error().message;
  const EngineTable table = dynamic_cast<CoreMetricsExtractor&>(**plugin).engines(SeriesMode::kCompatible);
  const EngineMapping& mine = table.default_mapping();
  EXPECT_EQ(mine.name, "mine");
  EXPECT_EQ(mine.rule(Signal::kWaitingRequests).names.at(0).text(), "q{kind=\"waiting\"}");
  EXPECT_EQ(mine.rule(Signal::kWaitingRequests).need, Need::kRequired);
  EXPECT_FALSE(mine.provides(Signal::kRunningRequests));
  EXPECT_TRUE(mine.provides(Signal::kCacheBlockSize));
  EXPECT_FALSE(mine.provides(Signal::kCacheNumBlocks));
}

TEST_F(PluginsTest, TheExtractorNamesWhatIsWrong) {
  const auto text = [&](std::string_view parameters) { return error("core-metrics-extractor", parameters); };
  EXPECT_THAT(text("{engineConfigs: [{}]}"), HasSubstr("engine config name cannot be empty"));
  EXPECT_THAT(text("{engineConfigs: [{name: default}]}"), HasSubstr("cannot be \"default\" (reserved)"));
  EXPECT_THAT(text("{engineConfigs: [{name: a}, {name: a}]}"),
              HasSubstr("mapping for engine type \"a\" already exists"));
  EXPECT_THAT(text("{defaultEngine: tgi}"), HasSubstr("defaultEngine \"tgi\" not found in engineConfigs"));
  EXPECT_THAT(text("{engineConfigs: [{name: a, kvUsageSpec: 'm{a'}]}"),
              HasSubstr("not a valid metric specification: \"m{a\""));
  EXPECT_THAT(text("{engineConfigs: [{name: a, customMetrics: [{attributeKey: '', metricSpec: m}]}]}"),
              HasSubstr("custom metric attributeKey cannot be empty"));
  EXPECT_THAT(text("{engineConfigs: [{name: a, customMetrics: [{attributeKey: k}]}]}"),
              HasSubstr("custom metric \"k\" spec cannot be empty"));
  EXPECT_THAT(text("{engineConfigs: [{name: a, customMetrics: [{attributeKey: k, metricSpec: m}, "
                   "{attributeKey: k, metricSpec: m}]}]}"),
              HasSubstr("custom metric attributeKey \"k\" is duplicated"));
}

TEST_F(PluginsTest, EveryPluginDescribesItsParameters) {
  for (const PluginDescriptor& d : signal_plugins()) {
    EXPECT_FALSE(d.summary.empty());
    const bool takes_none = d.type == "dcgm-extractor" || d.type == "models-data-extractor";
    ASSERT_EQ(d.describe == nullptr, takes_none) << d.type;
    if (!takes_none) {
      EXPECT_FALSE(d.describe().empty()) << d.type;
    }
  }
}

}  // namespace
}  // namespace penstock::signals
