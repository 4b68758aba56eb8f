#include "assembly/assembly.h"

#include <fstream>
#include <sstream>

#include "assembly/assembly_testing.h"
#include "assembly/check.h"
#include "base/source_path_testing.h"
#include "scheduling/producers/approx_prefix_cache_producer.h"

namespace penstock::assembly {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::string_view kDefaultEffective =
    "{Plugins: [{Name: queue-scorer, Type: queue-scorer} {Name: kv-cache-utilization-scorer, Type: "
    "kv-cache-utilization-scorer} {Name: prefix-cache-scorer, Type: prefix-cache-scorer} {Name: "
    "metrics-data-source, Type: metrics-data-source} {Name: core-metrics-extractor, Type: "
    "core-metrics-extractor} {Name: single-profile-handler, Type: single-profile-handler} {Name: "
    "max-score-picker, Type: max-score-picker} {Name: fcfs-ordering-policy, Type: fcfs-ordering-policy} "
    "{Name: "
    "global-strict-fairness-policy, Type: global-strict-fairness-policy} {Name: static-usage-limit-policy, "
    "Type: static-usage-limit-policy} {Name: openai-parser, Type: openai-parser} {Name: anthropic-parser, "
    "Type: "
    "anthropic-parser} {Name: vllmhttp-parser, Type: vllmhttp-parser} {Name: passthrough-parser, Type: "
    "passthrough-parser} {Name: utilization-detector, Type: utilization-detector}], SchedulingProfiles: "
    "[{Name: default, Plugins: [{PluginRef: queue-scorer, Weight: 2.00} {PluginRef: "
    "kv-cache-utilization-scorer, Weight: 2.00} {PluginRef: prefix-cache-scorer, Weight: 3.00} {PluginRef: "
    "max-score-picker}]}], DataLayer: {Sources: [{PluginRef: metrics-data-source, Extractors: [{PluginRef: "
    "core-metrics-extractor}]}], Discovery: <nil>, PeerDiscovery: <nil>, CrossReplicaSyncerPluginRef: , "
    "CrossReplicaSyncInterval: <nil>}, FlowControl: {MaxBytes: unlimited, MaxRequests: unlimited, "
    "SaturationDetector: {PluginRef: utilization-detector}}, RequestHandler: {Parsers: [{PluginRef: "
    "openai-parser}, {PluginRef: anthropic-parser}, {PluginRef: vllmhttp-parser}, {PluginRef: "
    "passthrough-parser}]}}";

TEST_F(AssemblyTest, NoTextIsTheDefaultConfigurationOfTheReference) {
  const Assembly a = assembled("");
  ASSERT_NE(a.policy, nullptr);
  EXPECT_EQ(a.policy->effective_config, kDefaultEffective);
  EXPECT_THAT(created(a), ElementsAre("approx-prefix-cache-producer/approx-prefix-cache-producer",
                                      "token-producer/token-producer"));
  EXPECT_THAT(producers(a), ElementsAre("token-producer", "approx-prefix-cache-producer"));
  EXPECT_THAT(a.notices, ElementsAre(HasSubstr("A configuration wasn't specified")));
  EXPECT_TRUE(a.policy->warnings.empty());
  EXPECT_NE(a.policy->saturation, nullptr);
  EXPECT_NE(a.policy->parsers, nullptr);
  EXPECT_EQ(a.policy->sources.size(), 1U);
  EXPECT_NE(a.policy->prefix_match_slot, kNoSlot);
  EXPECT_FALSE(a.policy->flow_control);
  const auto& profile = a.policy->scheduler->profiles().at(0);
  EXPECT_EQ(profile.scorers.size(), 3U);
  EXPECT_EQ(profile.scorers[2].weight, 3.0);
}

TEST_F(AssemblyTest, TheMinimalConfigurationHasTheReferencesEffectiveForm) {
  const Assembly a = assembled("plugins: [{type: queue-scorer}]");
  EXPECT_EQ(
      a.policy->effective_config,
      "{Plugins: [{Name: queue-scorer, Type: queue-scorer} {Name: single-profile-handler, Type: "
      "single-profile-handler} {Name: max-score-picker, Type: max-score-picker} {Name: fcfs-ordering-policy, "
      "Type: fcfs-ordering-policy} {Name: global-strict-fairness-policy, Type: "
      "global-strict-fairness-policy} "
      "{Name: static-usage-limit-policy, Type: static-usage-limit-policy} {Name: openai-parser, Type: "
      "openai-parser} {Name: anthropic-parser, Type: anthropic-parser} {Name: vllmhttp-parser, Type: "
      "vllmhttp-parser} {Name: passthrough-parser, Type: passthrough-parser} {Name: utilization-detector, "
      "Type: "
      "utilization-detector} {Name: metrics-data-source, Type: metrics-data-source} {Name: "
      "core-metrics-extractor, Type: core-metrics-extractor}], SchedulingProfiles: [{Name: default, Plugins: "
      "[{PluginRef: queue-scorer, Weight: 1.00} {PluginRef: max-score-picker}]}], DataLayer: {Sources: "
      "[{PluginRef: metrics-data-source, Extractors: [{PluginRef: core-metrics-extractor}]}], Discovery: "
      "<nil>, "
      "PeerDiscovery: <nil>, CrossReplicaSyncerPluginRef: , CrossReplicaSyncInterval: <nil>}, FlowControl: "
      "{MaxBytes: unlimited, MaxRequests: unlimited, SaturationDetector: {PluginRef: utilization-detector}}, "
      "RequestHandler: {Parsers: [{PluginRef: openai-parser}, {PluginRef: anthropic-parser}, {PluginRef: "
      "vllmhttp-parser}, {PluginRef: passthrough-parser}]}}");
  EXPECT_TRUE(a.auto_created.empty());
  const Assembly blank = assembled("\n");
  EXPECT_THAT(blank.policy->effective_config, HasSubstr("SchedulingProfiles: [{Name: default, Plugins: "
                                                        "[{PluginRef: max-score-picker}]}]"));
}

TEST_F(AssemblyTest, TheSeedConfigurationLoadsAndKeepsItsParameters) {
  std::ifstream file(source_path("deploy/examples/epp-seed.yaml"));
  std::stringstream text;
  text << file.rdbuf();
  const Assembly a = assembled(text.str());
  ASSERT_NE(a.policy, nullptr);
  std::string expected(kDefaultEffective);
  const std::string plain = "{Name: metrics-data-source, Type: metrics-data-source}";
  expected.replace(expected.find(plain), plain.size(),
                   "{Name: metrics-data-source, Type: metrics-data-source, Parameters: "
                   "{\"insecureSkipVerify\":true,\"path\":\"/metrics\",\"scheme\":\"http\"}}");
  EXPECT_EQ(a.policy->effective_config, expected);
}

TEST_F(AssemblyTest, PhaseOneKeepsTheRawFormAndReadsGates) {
  const Assembly a = assembled(
      "featureGates: [test-feature-gate=false]\nplugins: [{name: test1, type: test-plugin, parameters: "
      "{threshold: 10}}]\n");
  EXPECT_TRUE(a.raw.scheduling_profiles.empty());
  EXPECT_EQ(
      config::to_string(a.raw),
      "{FeatureGates: {test-feature-gate=false}, Plugins: [{Name: test1, Type: test-plugin, Parameters: "
      "{\"threshold\":10}}]}");
  EXPECT_THAT(a.policy->warnings, ElementsAre(HasSubstr("'test1' is declared but nothing uses it (line 2)")));
}

TEST_F(AssemblyTest, ProfilesAreCompletedWithWeightsAndAPicker) {
  const Assembly a = assembled(
      "plugins: [{name: profileHandler, type: single-profile-handler}, {name: testScorer, type: "
      "test-scorer}]\n"
      "schedulingProfiles: [{name: default, plugins: [{pluginRef: testScorer}]}]\n");
  EXPECT_THAT(plugin_refs(a), ElementsAre("testScorer", "max-score-picker"));
  EXPECT_EQ(a.effective.scheduling_profiles[0].plugins[0].weight, 1.0);

  const Assembly b = assembled(
      "plugins: [{name: maxScore, type: max-score-picker}]\n"
      "schedulingProfiles: [{name: default, plugins: [{pluginRef: maxScore}]}]\n");
  EXPECT_THAT(b.policy->effective_config, HasSubstr("{Name: single-profile-handler"));
  EXPECT_EQ(b.effective.parsers->size(), 4U);
  EXPECT_EQ(b.effective.data_layer->sources.size(), 1U);
  EXPECT_EQ(b.effective.flow_control->saturation_detector, "utilization-detector");

  const Assembly c = assembled(
      "plugins: [{type: test-picker}, {type: test-scorer}]\n"
      "schedulingProfiles: [{name: p, plugins: [{pluginRef: test-picker}, {pluginRef: test-scorer}]}]\n");
  EXPECT_THAT(plugin_refs(c), ElementsAre("test-picker", "test-scorer"));
}

TEST_F(AssemblyTest, TheDefaultProfileHoldsFiltersScorersAndPickersInDeclarationOrder) {
  const Assembly a = assembled(
      "plugins: [{type: test-filter}, {type: test-picker}, {type: test-plugin}, {type: "
      "utilization-detector}, "
      "{type: test-scorer}]");
  EXPECT_THAT(plugin_refs(a),
              ElementsAre("test-filter", "test-picker", "utilization-detector", "test-scorer"));
  EXPECT_EQ(a.policy->scheduler->profiles()[0].filters.size(), 2U);
}

TEST_F(AssemblyTest, ReferencedPluginsAreCreatedFirst) {
  const Assembly a = assembled(
      "plugins:\n- {name: dependent, type: test-with-dependencies, parameters: {dependency: test1}}\n"
      "- {name: test1, type: test-plugin}\n");
  EXPECT_EQ(a.policy->plugins[0]->name(), "test1");
  EXPECT_EQ(a.policy->plugins[1]->name(), "dependent");
  EXPECT_THAT(
      error_of("plugins: [{name: test1, type: test-with-dependencies, parameters: {dependency: test1}}]"),
      HasSubstr("failed to load the configuration - plugin instantiation failed: failed to build plugin "
                "dependency graph: cycle detected: graph is not a DAG"));
  EXPECT_THAT(error_of("plugins: [{name: a, type: test-with-dependencies, parameters: {dependency: b}}, "
                       "{name: b, type: test-with-dependencies, parameters: {dependency: a}}]"),
              HasSubstr("cycle detected"));
  EXPECT_THAT(
      error_of("plugins: [{name: a, type: test-with-dependencies, parameters: {dependency: nobody}}]"),
      HasSubstr("a plugin has a dependency on the unregistered plugin nobody"));
}

// Worked examples 13 and 14 of the sheet, as far as this build has their plugins.
TEST_F(AssemblyTest, TheGuidesForFlowControlAndSeveralClustersLoadOrNameWhatIsMissing) {
  const std::string flow =
      "plugins: [{type: concurrency-detector}, {type: queue-scorer}]\n"
      "flowControl: {saturationDetector: {pluginRef: concurrency-detector}}\n";
  if (const std::string error = error_of(flow); error != "no error") {
    EXPECT_THAT(error, HasSubstr("plugin type 'concurrency-detector' is known to llm-d-router but not part"));
  } else {
    const Assembly a = assembled(flow);
    const auto has = [&](std::string_view type) {
      return std::any_of(a.policy->plugins.begin(), a.policy->plugins.end(),
                         [type](const auto& plugin) { return plugin->type() == type; });
    };
    EXPECT_TRUE(has("inflight-load-producer"));
    EXPECT_TRUE(has("token-producer"));
  }
  for (const char* scorer : {"multicluster-queue-scorer", "multicluster-kv-cache-utilization-scorer"}) {
    EXPECT_THAT(error_of("plugins: [{type: " + std::string(scorer) + "}]"),
                HasSubstr("no default producer found for missing data key llm-d.ai/multicluster-"));
  }
}

TEST_F(AssemblyTest, AScorersContributionCanBeCapped) {
  const auto profile = [](std::string_view cap) {
    return "plugins: [{type: queue-scorer}]\nschedulingProfiles:\n- name: p\n  plugins:\n"
           "  - {pluginRef: queue-scorer, weight: 3, maxContribution: " +
           std::string(cap) + "}\n";
  };
  const Assembly made = assembled(profile("1.5"));
  EXPECT_EQ(made.policy->scheduler->profiles()[0].scorers[0].max_contribution, 1.5);
  EXPECT_THAT(made.policy->effective_config,
              HasSubstr("{PluginRef: queue-scorer, Weight: 3.00, MaxContribution: 1.50}"));
  EXPECT_THAT(
      error_of(profile("-1")),
      HasSubstr("schedulingProfiles[0].plugins[0].maxContribution: must be at least 0, got -1 (line 5)"));
}

TEST_F(AssemblyTest, ParsersAreTakenAsGivenAndInjectedByType) {
  const Assembly a = assembled(
      "plugins: [{name: openaiParser, type: openai-parser}]\nrequestHandler: {parsers: [{pluginRef: "
      "openaiParser}]}\n");
  EXPECT_THAT(*a.effective.parsers, ElementsAre("openaiParser"));
  const Assembly b = assembled(
      "plugins: [{name: myFallback, type: passthrough-parser}]\nrequestHandler: {parsers: [{pluginRef: "
      "openai-parser}, {pluginRef: myFallback}]}\n");
  EXPECT_THAT(*b.effective.parsers, ElementsAre("openai-parser", "myFallback"));
  EXPECT_THAT(b.policy->effective_config, HasSubstr("{Name: openai-parser, Type: openai-parser}"));
  const Assembly c = assembled("plugins: [{type: queue-scorer}]\nparser: {pluginRef: openai-parser}\n");
  EXPECT_TRUE(c.policy->effective_config.ends_with(
      "RequestHandler: {Parsers: [{PluginRef: openai-parser}]}, Parser: {PluginRef: openai-parser}}"));
  EXPECT_THAT(c.policy->warnings, ElementsAre(HasSubstr("DEPRECATION: top-level parser")));
  EXPECT_THAT(error_of("requestHandler: {parsers: [{pluginRef: wrongParser}]}"),
              HasSubstr("system default application failed: failed to apply parser defaults: plugin type "
                        "'wrongParser' not found in registry"));
  EXPECT_THAT(
      error_of("requestHandler: {parsers: [{pluginRef: precise-prefix-cache-producer}]}"),
      HasSubstr(
          "plugin type 'precise-prefix-cache-producer' is known to llm-d-router but not part of this build"));
  EXPECT_THAT(
      error_of("plugins: [{type: test-picker}]\nrequestHandler: {parsers: [{pluginRef: test-picker}]}"),
      HasSubstr("the plugin \"test-picker\" is not a parser plugin"));
}

TEST_F(AssemblyTest, ANewPolicyTakesOverTheWarmIndexUnlessItsParametersChange) {
  WarmState warm;
  options_.warm = &warm;
  const auto index_of = [](const Assembly& a) {
    for (const auto& plugin : a.policy->plugins) {
      if (const auto* p = dynamic_cast<const scheduling::ApproxPrefixCacheProducer*>(plugin.get())) {
        return p->index();
      }
    }
    return std::shared_ptr<kvindex::PrefixIndex>();
  };
  const auto text = [](int capacity) {
    return "plugins: [{type: prefix-cache-scorer}, {type: approx-prefix-cache-producer, parameters: "
           "{lruCapacityPerServer: " +
           std::to_string(capacity) + "}}]\n";
  };
  const auto first = index_of(assembled(text(1000)));
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(index_of(assembled(text(1000))), first);
  EXPECT_NE(error_of(text(2000) + "bogus: 1\n"), "no error");
  EXPECT_EQ(index_of(assembled(text(1000))), first);
  EXPECT_NE(index_of(assembled(text(2000))), first);
  EXPECT_EQ(warm.size(), 1U);
}

TEST_F(AssemblyTest, CheckPrintsTheWholePicture) {
  const std::string text = render_check(assembled(""));
  EXPECT_THAT(text, HasSubstr("effective configuration:\n  " + std::string(kDefaultEffective) + "\n"));
  EXPECT_THAT(text, HasSubstr("profiles:\n  default: filters [] scorers [queue-scorer/queue-scorer x 2, "
                              "kv-cache-utilization-scorer/kv-cache-utilization-scorer x 2, "
                              "prefix-cache-scorer/prefix-cache-scorer x 3] picker "
                              "max-score-picker/max-score-picker\n"));
  EXPECT_THAT(
      text, HasSubstr("auto-created producers:\n  approx-prefix-cache-producer/approx-prefix-cache-producer "
                      "makes PrefixCacheMatchInfoDataKey/approx-prefix-cache-producer for "
                      "prefix-cache-scorer/prefix-cache-scorer\n"));
  EXPECT_THAT(text, HasSubstr("data sources:\n  metrics-data-source/metrics-data-source -> "
                              "[core-metrics-extractor/core-metrics-extractor]\n"));
  EXPECT_THAT(text, HasSubstr("saturation detector:\n  utilization-detector/utilization-detector\n"));
}

}  // namespace
}  // namespace penstock::assembly
