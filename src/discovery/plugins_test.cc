#include "discovery/plugins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "telemetry/metrics.h"

namespace penstock::discovery {
namespace {

Result<std::unique_ptr<Plugin>> create(std::string_view type, std::string_view text) {
  static telemetry::MetricRegistry metrics;
  static const ManualClock clock;
  for (const PluginDescriptor& descriptor : discovery_plugins()) {
    if (descriptor.type != type) continue;
    const auto node = config::parse_document(text, "test").value();
    return descriptor.create(
        {type, text.empty() ? nullptr : &node, "plugins[0].parameters", metrics, clock, 1});
  }
  return Error{};
}

TEST(DiscoveryPluginsTest, FileDiscoveryNeedsAPath) {
  for (const std::string_view type : {"file-discovery", "multicluster-file-discovery"}) {
    EXPECT_EQ(create(type, "{}").error().message, std::string(type) + ": 'path' parameter is required");
    const auto plugin = create(type, "{path: /etc/endpoints.yaml, watchFile: true}");
    ASSERT_TRUE(plugin.ok()) << plugin.error().message;
    const auto& params = dynamic_cast<const FileDiscoveryPlugin&>(**plugin).params();
    EXPECT_EQ(params.path, "/etc/endpoints.yaml");
    EXPECT_TRUE(params.watch_file);
    EXPECT_EQ(params.metrics_labels, type != "file-discovery");
  }
}

TEST(DiscoveryPluginsTest, ASourceOfObjectsNamesTheirKind) {
  EXPECT_EQ(create("k8s-notification-source", "").error().message,
            "k8s-notification-source requires parameters (group, version, kind)");
  EXPECT_EQ(create("k8s-notification-source", "{version: v1}").error().message,
            "version and kind are required for k8s-notification-source");
  const auto plugin =
      create("k8s-notification-source", "{group: apps, version: v1, kind: Deployment, path: /d.yaml}");
  ASSERT_TRUE(plugin.ok()) << plugin.error().message;
  const auto& params = dynamic_cast<const ObjectSourcePlugin&>(**plugin).params();
  EXPECT_EQ(params.kind.text(), "apps/v1/Deployment");
  EXPECT_EQ(params.path, "/d.yaml");
  EXPECT_EQ(
      create("k8s-notification-source", "{version: v1, kind: Pod, path: /p, namespace: n}").error().message,
      "k8s-notification-source: 'namespace' is of the API server's objects, 'path' of a file's");
  EXPECT_THAT(create("k8s-notification-source", "{version: v1, kind: Pod, maxObjects: 0, maxMemory: 0}")
                  .error()
                  .message,
              testing::AllOf(testing::HasSubstr("maxObjects: must be at least 1"),
                             testing::HasSubstr("maxMemory: must be at least 1")));
  EXPECT_TRUE(create("endpoint-notification-source", "{anything: 1}").ok()) << "as in the reference";
}

TEST(DiscoveryPluginsTest, OnlyKindsOfWhichAPoolIsMadeAreThoseOfItsNamespace) {
  const auto place = [](std::string_view parameters) {
    const auto plugin = create("k8s-notification-source", parameters);
    return plugin.ok() ? dynamic_cast<const ObjectSourcePlugin&>(**plugin).namespace_for("pool")
                       : plugin.error().message;
  };
  EXPECT_EQ(place("{version: v1, kind: Pod}"), "pool");
  EXPECT_EQ(place("{group: llm-d.ai, version: v1alpha2, kind: InferenceObjective}"), "pool");
  EXPECT_EQ(place("{group: inference.networking.k8s.io, version: v1, kind: InferencePool}"), "pool");
  EXPECT_EQ(place("{group: apps, version: v1, kind: Deployment}"), "");
  EXPECT_EQ(place("{group: example.com, version: v1, kind: Pod}"), "") << "another Pod";
  EXPECT_EQ(place("{group: example.com, version: v1, kind: InferencePool}"), "");
  EXPECT_EQ(place("{group: apps, version: v1, kind: Deployment, namespace: mine}"), "mine");
}

}  // namespace
}  // namespace penstock::discovery
