#include "discovery/plugins.h"

#include <gtest/gtest.h>

#include "telemetry/metrics.h"

namespace penstock::discovery {
namespace {

TEST(DiscoveryPluginsTest, FileDiscoveryNeedsAPath) {
  telemetry::MetricRegistry metrics;
  const ManualClock clock;
  const PluginDescriptor& descriptor = discovery_plugins().front();
  EXPECT_EQ(descriptor.type, "file-discovery");
  const auto create = [&](std::string_view text) {
    const auto node = config::parse_document(text, "test").value();
    return descriptor.create({"file-discovery", &node, "plugins[0].parameters", metrics, clock, 1});
  };
  EXPECT_EQ(create("{}").error().message, "file-discovery: 'path' parameter is required");
  const auto plugin = create("{path: /etc/endpoints.yaml, watchFile: true}");
  ASSERT_TRUE(plugin.ok()) << plugin.error().message;
  const auto& params = static_cast<const FileDiscoveryPlugin&>(*plugin.value()).params();
  EXPECT_EQ(params.path, "/etc/endpoints.yaml");
  EXPECT_TRUE(params.watch_file);
  EXPECT_EQ(descriptor.describe().size(), 2U);
}

}  // namespace
}  // namespace penstock::discovery
