#include "assembly/assembly_testing.h"
#include "assembly/notifications.h"

namespace penstock::assembly {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class DataLayerTest : public AssemblyTest {};

TEST_F(DataLayerTest, TheDataLayerGetsItsDefaultSourceUnlessThereIsOne) {
  const auto sources = [&](const std::string& text) {
    std::vector<std::string> out;
    const Assembly a = assembled(text);
    for (const auto& source : a.effective.data_layer->sources) out.push_back(source.plugin_ref);
    return out;
  };
  EXPECT_THAT(sources("plugins: []"), ElementsAre("metrics-data-source"));
  EXPECT_THAT(sources("dataLayer: {}"), ElementsAre("metrics-data-source"));
  EXPECT_THAT(sources("plugins: [{type: metrics-data-source}]\ndataLayer: {sources: [{pluginRef: "
                      "metrics-data-source}]}\n"),
              ElementsAre("metrics-data-source"));
  // A source of that type under another name is recognised: its endpoints are not scraped twice.
  EXPECT_THAT(sources("plugins: [{name: mine, type: metrics-data-source}, {type: core-metrics-extractor}]\n"
                      "dataLayer: {sources: [{pluginRef: mine, extractors: [{pluginRef: "
                      "core-metrics-extractor}]}]}\n"),
              ElementsAre("mine"));
  const Assembly off = assembled("dataLayer: {injectDefaults: false}");
  EXPECT_TRUE(off.effective.data_layer->sources.empty());
  EXPECT_THAT(off.policy->effective_config, testing::Not(HasSubstr("metrics-data-source")));
  EXPECT_THAT(off.policy->warnings, ElementsAre(HasSubstr("metrics collection is disabled")));
  EXPECT_THAT(
      error_of("dataLayer: {injectDefaults: false}\nplugins: [{type: queue-scorer}]\n"),
      HasSubstr("failed to create missing data producers - no default producer found for missing data key "
                "WaitingQueueSize/core-metrics-extractor, consumed by queue-scorer"));
}

TEST_F(DataLayerTest, DataLayerReferencesMustBeWhatTheySay) {
  EXPECT_THAT(error_of("dataLayer: {sources: [{pluginRef: nobody}]}"),
              HasSubstr("data layer config build failed: the plugin nobody is not a fwkdl.DataSource"));
  EXPECT_THAT(error_of("plugins: [{type: test-scorer}]\ndataLayer: {sources: [{pluginRef: test-scorer}]}"),
              HasSubstr("the plugin test-scorer is not a fwkdl.DataSource"));
  EXPECT_THAT(error_of("plugins: [{type: metrics-data-source}]\ndataLayer: {sources: [{pluginRef: "
                       "metrics-data-source, extractors: [{pluginRef: nobody}]}]}"),
              HasSubstr("the plugin nobody is not registered"));
  EXPECT_THAT(error_of("dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [core]}]}"),
              HasSubstr("dataLayer.sources[0].extractors[0]: expected object, got string \"core\""));
  EXPECT_THAT(error_of("dataLayer: {crossReplicaSyncerPluginRef: x}"),
              HasSubstr("the plugin x is not a fwkdl.CrossReplicaSyncer"));
  EXPECT_THAT(error_of("dataLayer: {discovery: {pluginRef: x}}"),
              HasSubstr("discovery: no plugin found with name \"x\""));
  EXPECT_THAT(error_of("plugins: [{type: test-scorer}]\ndataLayer: {discovery: {pluginRef: test-scorer}}"),
              HasSubstr("discovery: plugin \"test-scorer\" does not implement EndpointDiscovery"));
  const Assembly a = assembled(
      "plugins: [{type: file-discovery, parameters: {path: /tmp/e.yaml}}]\ndataLayer: {discovery: "
      "{pluginRef: "
      "file-discovery}}");
  EXPECT_EQ(a.policy->discovery->name(), "file-discovery");
}

TEST_F(DataLayerTest, NotificationsReachTheExtractorsOfTheirKindNamedOrNot) {
  options_.allow_experimental = true;
  const std::string pods =
      "{name: pods, type: k8s-notification-source, parameters: {version: v1, kind: Pod, path: /p.yaml}}";
  const Assembly a = assembled("plugins: [" + pods + ", {type: topology-extractor}]");
  const std::vector<ObjectSource> sources = object_sources(a.policy->plugins);
  ASSERT_EQ(sources.size(), 1U);
  EXPECT_EQ(sources[0].source->name(), "pods");
  EXPECT_EQ(sources[0].extractors.size(), 1U);
  EXPECT_TRUE(a.policy->warnings.empty());
  EXPECT_EQ(a.policy->sources.size(), 1U) << "the metrics source alone";

  EXPECT_THAT(assembled("plugins: [{type: k8s-notification-source, parameters: {version: v1, kind: Pod}}]")
                  .policy->warnings,
              ElementsAre(HasSubstr("'k8s-notification-source' tells of no v1/Pod: it has no path")));
  const auto with_source = [&](const std::string& plugins, const std::string& source) {
    return error_of("plugins: [" + plugins + "]\ndataLayer: {sources: [" + source + "]}\n");
  };
  EXPECT_THAT(with_source(pods + ", {type: test-scorer}",
                          "{pluginRef: pods, extractors: [{pluginRef: test-scorer}]}"),
              HasSubstr("the plugin test-scorer is not a fwkdl.NotificationExtractor (line 2)"));
  EXPECT_THAT(
      with_source("{name: s, type: k8s-notification-source, parameters: {group: apps, version: v1, kind: "
                  "Deployment}}, {type: topology-extractor}",
                  "{pluginRef: s, extractors: [{pluginRef: topology-extractor}]}"),
      HasSubstr("source s/k8s-notification-source notifies of apps/v1/Deployment, extractor "
                "topology-extractor/topology-extractor takes v1/Pod"));
  EXPECT_THAT(
      with_source("{type: endpoint-notification-source}, {type: test-scorer}",
                  "{pluginRef: endpoint-notification-source, extractors: [{pluginRef: test-scorer}]}"),
      HasSubstr("the plugin test-scorer is not a fwkdl.EndpointExtractor"));
  EXPECT_THAT(
      with_source(pods + ", {name: more, type: k8s-notification-source, parameters: {version: v1, kind: "
                         "Pod}}",
                  "{pluginRef: pods}"),
      HasSubstr("duplicate notification source GVK v1/Pod: already used by source "
                "pods/k8s-notification-source, cannot add more/k8s-notification-source (line 1)"));
}

TEST_F(DataLayerTest, WhereObjectsComeFromIsSaidOfASourceWithoutAPath) {
  const std::string pods =
      "{name: pods, type: k8s-notification-source, parameters: {version: v1, kind: Pod}}";
  const std::string text = "plugins: [" + pods +
                           ", {name: all, type: k8s-notification-source, parameters: {group: apps, version: "
                           "v1, kind: Deployment}}]";
  options_.api_server = ApiServer::kAsked;
  const Assembly asked = assembled(text);
  EXPECT_THAT(asked.policy->warnings, testing::IsEmpty());
  EXPECT_THAT(asked.notices,
              testing::IsSupersetOf(
                  {testing::Eq("plugin 'pods' tells of v1/Pod in the pool's namespace: the API server "
                               "must allow list and watch there"),
                   testing::Eq("plugin 'all' tells of apps/v1/Deployment in all namespaces: the API "
                               "server must allow list and watch there")}));
  options_.api_server = ApiServer::kUnknown;
  EXPECT_THAT(
      assembled("plugins: [" + pods + "]").notices,
      testing::Contains(HasSubstr("in the pool's namespace, where penstock epp follows a cluster: ")));
  options_.api_server = ApiServer::kAsked;
  const Assembly other = assembled(
      "plugins: [" + pods +
      ", {type: file-discovery, parameters: {path: /tmp/e.yaml}}]\ndataLayer: {discovery: {pluginRef: "
      "file-discovery}}");
  EXPECT_THAT(other.policy->warnings, ElementsAre(HasSubstr("no Kubernetes API is asked")));
}

// A cluster in which one picture is everybody's.
class OnePicture final : public discovery::ObjectFollower {
 public:
  std::unique_ptr<discovery::ObjectFeed> follow(discovery::ObjectQuery query,
                                                std::function<void()> changed) override {
    class Feed final : public discovery::ObjectFeed {
     public:
      Feed(OnePicture& owner, discovery::ObjectQuery query) : owner_(owner), query_(std::move(query)) {
        owner_.followed.push_back(query_.kind.text() + " in " + query_.ns);
      }
      ~Feed() override { std::erase(owner_.followed, query_.kind.text() + " in " + query_.ns); }
      std::shared_ptr<const NotifiedObjects> objects() const override { return owner_.picture; }
      std::string state_json() const override { return "{}"; }

     private:
      OnePicture& owner_;
      const discovery::ObjectQuery query_;
    };
    queries.push_back(query);
    tell = std::move(changed);
    return std::make_unique<Feed>(*this, std::move(query));
  }

  std::shared_ptr<const NotifiedObjects> picture;
  std::function<void()> tell;
  std::vector<std::string> followed;
  std::vector<discovery::ObjectQuery> queries;
};

TEST_F(DataLayerTest, FeedsOfAClusterAreThoseThatThePoliciesWant) {
  options_.allow_experimental = true;
  options_.api_server = ApiServer::kAsked;
  const auto source = [](const std::string& name, const std::string& of) {
    return "{name: " + name + ", type: k8s-notification-source, parameters: {" + of + "}}";
  };
  const std::string pods = source("pods", "version: v1, kind: Pod");
  const Assembly first = assembled("plugins: [" + pods + ", {type: topology-extractor}]");
  const Assembly second =
      assembled("plugins: [" + pods + ", " + source("d", "group: apps, version: v1, kind: Deployment") +
                ", {type: topology-extractor}]");
  OnePicture cluster;
  int changed = 0;
  ObjectFeeds feeds("models", [&] { ++changed; });
  ASSERT_TRUE(feeds.open(first.policy->plugins).ok());
  EXPECT_THAT(cluster.followed, testing::IsEmpty()) << "there is none yet";
  feeds.use(cluster);
  ASSERT_TRUE(feeds.open(first.policy->plugins).ok());
  ASSERT_TRUE(feeds.open(second.policy->plugins).ok());
  EXPECT_THAT(cluster.followed, ElementsAre("v1/Pod in models", "apps/v1/Deployment in "))
      << "what is equal is one feed";
  EXPECT_THAT(cluster.queries[0].fields, ElementsAre("metadata.deletionTimestamp", "metadata.labels",
                                                     "spec.hostname", "status.conditions"));
  EXPECT_THAT(cluster.queries[1].fields, ElementsAre("metadata.name")) << "no plugin reads them";
  cluster.tell();
  EXPECT_EQ(changed, 1);
  feeds.tell(first.policy->plugins);  // nothing is known, nobody is told
  feeds.keep_only(first.policy->plugins);
  EXPECT_THAT(cluster.followed, ElementsAre("v1/Pod in models"));
  const auto& plugin = dynamic_cast<const discovery::ObjectSourcePlugin&>(*first.policy->plugins.front());
  EXPECT_EQ(feeds.state_json(plugin), "{}");
  feeds.close();
  EXPECT_THAT(cluster.followed, testing::IsEmpty());
  EXPECT_FALSE(feeds.state_json(plugin));
}

TEST_F(DataLayerTest, AMetricsSourcesOwnIntervalDecidesWhatIsStale) {
  const std::string source =
      "plugins: [{type: metrics-data-source, parameters: {interval: 1s}}, {type: core-metrics-extractor}, "
      "{type: "
      "utilization-detector, parameters: {metricsStalenessThreshold: 500ms}}]\n"
      "dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: "
      "core-metrics-extractor}]}]}\n";
  EXPECT_THAT(error_of(source), HasSubstr("500ms is below the scrape interval 1s"));
}

}  // namespace
}  // namespace penstock::assembly
