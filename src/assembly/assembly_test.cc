#include "assembly/assembly.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "assembly/check.h"
#include "assembly/known_types.h"
#include "scheduling/producers/approx_prefix_cache_producer.h"
#include "telemetry/metrics.h"

namespace penstock::assembly {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Plugins of the test table: a scorer, a filter, a picker and a handler that do nothing, and types that
// declare data as the test's parameters say.
class TestPlugin final : public Plugin {};

class TestScorer final : public Scorer {
 public:
  void score(SchedulingContext&, std::span<const Candidate>, std::span<double>) const override {}
  void explain(const SchedulingContext&, Candidate, std::string&) const override {}
};

class TestFilter final : public Filter {
 public:
  size_t filter(SchedulingContext&, std::span<Candidate> inout) const override { return inout.size(); }
};

class TestPicker final : public Picker {
 public:
  std::span<const Candidate> pick(SchedulingContext&, std::span<const Candidate> candidates,
                                  std::span<const double>) const override {
    return candidates;
  }
};

class TestHandler final : public ProfileHandler {
 public:
  std::span<const uint32_t> pick(SchedulingContext&, std::span<const std::string>, std::span<bool>,
                                 std::span<const ProfileResult* const>) const override {
    return {};
  }
  Result<SchedulingResult> process(SchedulingContext&, std::span<const std::string>,
                                   std::span<const ProfileResult* const>) const override {
    return SchedulingResult{};
  }
};

// A producer (or, as Kind Scorer, a consumer) of the data its parameters name.
struct DataParams {
  std::vector<std::string> produces;
  std::vector<std::string> requires_;
  std::vector<std::string> optional;
  bool as_text = false;
};
DataKey key_of(const std::string& data_type) {
  return {data_type, "test"};
}
void declare(const DataParams& p, DataDeclaration& data) {
  const auto add = [&](auto tag) {
    using T = decltype(tag);
    for (const std::string& k : p.produces) data.produce<T>(key_of(k));
    for (const std::string& k : p.requires_) data.require<T>(key_of(k));
    for (const std::string& k : p.optional) data.optional<T>(key_of(k));
  };
  if (p.as_text) {
    add(std::string());
  } else {
    add(int());
  }
}

class TestProducer final : public DataProducer {
 public:
  explicit TestProducer(DataParams params) : params_(std::move(params)) {}
  Status produce(SchedulingContext&) const override { return {}; }
  void declare_data(DataDeclaration& data) const override { declare(params_, data); }

 private:
  DataParams params_;
};

class TestDataScorer final : public Scorer {
 public:
  explicit TestDataScorer(DataParams params) : params_(std::move(params)) {}
  void score(SchedulingContext&, std::span<const Candidate>, std::span<double>) const override {}
  void explain(const SchedulingContext&, Candidate, std::string&) const override {}
  void declare_data(DataDeclaration& data) const override { declare(params_, data); }
  void bind_slots(const SlotResolver& slots) override {
    for (const std::string& k : params_.requires_) slots_.push_back(slots.slot(key_of(k)));
  }
  const std::vector<AttributeSlot>& slots() const { return slots_; }

 private:
  DataParams params_;
  std::vector<AttributeSlot> slots_;
};

class TestFairness final : public flowcontrol::FairnessPolicy {
 public:
  explicit TestFairness(DataParams params) : params_(std::move(params)) {}
  size_t pick(std::span<const flowcontrol::QueuedItem>, const flowcontrol::OrderingPolicy&) const override {
    return 0;
  }
  void declare_data(DataDeclaration& data) const override { declare(params_, data); }

 private:
  DataParams params_;
};

// Asks for a key it never declared.
class TestTrespasser final : public Scorer {
 public:
  void score(SchedulingContext&, std::span<const Candidate>, std::span<double>) const override {}
  void explain(const SchedulingContext&, Candidate, std::string&) const override {}
  void bind_slots(const SlotResolver& slots) override { slots.slot(key_of("secret")); }
};

template <typename P>
Result<std::unique_ptr<Plugin>> make(const PluginFactoryContext&) {
  return std::unique_ptr<Plugin>(std::make_unique<P>());
}
template <typename P>
Result<std::unique_ptr<Plugin>> make_data(const PluginFactoryContext& context) {
  DataParams p;
  Status s = config::decode_params(context.parameters, context.path, [&](config::Binder& b) {
    b.field("produces", p.produces, "", "");
    b.field("requires", p.requires_, "", "");
    b.field("optional", p.optional, "", "");
    b.field("asText", p.as_text, "", "");
  });
  if (!s.ok()) return std::move(s).error();
  return std::unique_ptr<Plugin>(std::make_unique<P>(std::move(p)));
}
Result<std::unique_ptr<Plugin>> make_test_plugin(const PluginFactoryContext& context) {
  int64_t threshold = 0;
  int64_t block_size = 0;
  std::string dependency;
  Status s = config::decode_params(context.parameters, context.path, [&](config::Binder& b) {
    b.field("threshold", threshold, "", "");
    b.field("blockSize", block_size, "", "");
    b.field("dependency", dependency, "", "");
  });
  if (!s.ok()) return std::move(s).error();
  return std::unique_ptr<Plugin>(std::make_unique<TestPlugin>());
}
std::vector<std::string> dependency_of(const config::Node* parameters) {
  const config::Node* name = parameters != nullptr ? parameters->find("dependency") : nullptr;
  if (name == nullptr) return {};
  return {name->text};
}

constexpr PluginDescriptor kTestPlugins[] = {
    {.type = "test-plugin", .create = &make_test_plugin},
    {.type = "test-with-dependencies", .create = &make_test_plugin, .references = &dependency_of},
    {.type = "test-scorer", .create = &make<TestScorer>},
    {.type = "test-filter", .create = &make<TestFilter>},
    {.type = "test-picker", .create = &make<TestPicker>},
    {.type = "test-profile-handler", .create = &make<TestHandler>},
    {.type = "test-producer", .create = &make_data<TestProducer>},
    {.type = "test-data-scorer", .create = &make_data<TestDataScorer>},
    {.type = "test-fairness", .create = &make_data<TestFairness>},
    {.type = "test-trespasser", .create = &make<TestTrespasser>},
    {.type = "test-alpha", .stability = Stability::kAlpha, .create = &make<TestScorer>},
    {.type = "test-old", .create = &make<TestScorer>, .replaced_by = "test-scorer"},
};

class AssemblyTest : public testing::Test {
 protected:
  AssemblyTest() {
    for (const std::span<const PluginDescriptor> table : builtin_tables()) tables_.push_back(table);
    tables_.push_back(kTestPlugins);
    options_.tables = tables_;
  }

  Assembly assembled(std::string_view text) {
    auto result = assemble(text, "epp.yaml", options_);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    return result.ok() ? std::move(result).value() : Assembly{};
  }
  std::string error_of(std::string_view text) {
    auto result = assemble(text, "epp.yaml", options_);
    return result.ok() ? "no error" : result.error().message;
  }
  static std::vector<std::string> plugin_refs(const Assembly& a, size_t profile = 0) {
    std::vector<std::string> out;
    for (const auto& p : a.effective.scheduling_profiles.at(profile).plugins) out.push_back(p.plugin_ref);
    return out;
  }
  static std::vector<std::string> created(const Assembly& a) {
    std::vector<std::string> out;
    for (const AutoCreatedProducer& p : a.auto_created) out.push_back(p.producer);
    return out;
  }
  static std::vector<std::string> producers(const Assembly& a) {
    std::vector<std::string> out;
    for (const DataProducer* p : a.policy->producers) out.push_back(p->name());
    return out;
  }

  telemetry::MetricRegistry metrics_;
  SystemClock clock_;
  std::vector<std::span<const PluginDescriptor>> tables_;
  static constexpr std::string_view kGates[] = {"test-feature-gate"};
  AssemblyOptions options_{
      .tables = {}, .metrics = metrics_, .clock = clock_, .further_feature_gates = kGates};
};

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
  std::ifstream file(PENSTOCK_SOURCE_DIR "/deploy/examples/epp-seed.yaml");
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

TEST_F(AssemblyTest, StrictModeBringsFreshnessAndNearTiesAndCompatibleModeNeither) {
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

TEST_F(AssemblyTest, FreshnessIsWhatTheConfigurationSaysSignalBySignal) {
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

TEST_F(AssemblyTest, FreshnessThatCannotWorkIsAnErrorThatNamesFieldAndLine) {
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

TEST_F(AssemblyTest, FlowControlIsPlannedWhenItsGateIsOn) {
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

TEST_F(AssemblyTest, PriorityBandsUseTheirOwnInstances) {
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

TEST_F(AssemblyTest, FlowControlBehindAClosedGateRestsAndWarns) {
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

TEST_F(AssemblyTest, TheDataLayerGetsItsDefaultSourceUnlessThereIsOne) {
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

TEST_F(AssemblyTest, DataLayerReferencesMustBeWhatTheySay) {
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

TEST_F(AssemblyTest, SaturationDetectorsAreResolved) {
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

TEST_F(AssemblyTest, AMetricsSourcesOwnIntervalDecidesWhatIsStale) {
  const std::string source =
      "plugins: [{type: metrics-data-source, parameters: {interval: 1s}}, {type: core-metrics-extractor}, "
      "{type: "
      "utilization-detector, parameters: {metricsStalenessThreshold: 500ms}}]\n"
      "dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: "
      "core-metrics-extractor}]}]}\n";
  EXPECT_THAT(error_of(source), HasSubstr("500ms is below the scrape interval 1s"));
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

TEST_F(AssemblyTest, MissingProducersAreCreatedTransitively) {
  const Assembly tiered = assembled(R"(
plugins:
- {name: gpu, type: prefix-cache-scorer}
- {name: cpu, type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: cpu-prefix-cache-producer}}
- {name: cpu-prefix-cache-producer, type: approx-prefix-cache-producer}
)");
  EXPECT_THAT(created(tiered), ElementsAre("approx-prefix-cache-producer/approx-prefix-cache-producer",
                                           "token-producer/token-producer"));
  EXPECT_THAT(producers(tiered),
              ElementsAre("token-producer", "cpu-prefix-cache-producer", "approx-prefix-cache-producer"));
  const Assembly lru = assembled(
      "plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}, {type: prefix-cache-scorer}, "
      "{type: "
      "no-hit-lru-scorer}]\n");
  EXPECT_THAT(producers(lru), ElementsAre("token-producer", "approx-prefix-cache-producer"));
  // The reference can't load this one: UncachedRequestTokensDataKey has no default producer there.
  const Assembly tokens = assembled("plugins: [{type: token-load-scorer}]");
  EXPECT_THAT(created(tokens),
              ElementsAre("inflight-load-producer/inflight-load-producer", "token-producer/token-producer"));
  EXPECT_NE(tokens.policy->load_estimator, nullptr);
}

TEST_F(AssemblyTest, DataFlowsFromProducersToConsumers) {
  const Assembly a = assembled(R"(
plugins:
- {name: C, type: test-producer, parameters: {produces: [c], requires: [b]}}
- {name: B, type: test-producer, parameters: {produces: [b], requires: [a]}}
- {name: A, type: test-producer, parameters: {produces: [a]}}
- {name: S, type: test-data-scorer, parameters: {requires: [c, a]}}
)");
  EXPECT_THAT(producers(a), ElementsAre("A", "B", "C"));
  EXPECT_THAT(a.data_keys, ElementsAre("c/test", "b/test", "a/test"));
  EXPECT_EQ(a.policy->attribute_slots, 3U);
  const auto* scorer =
      dynamic_cast<const TestDataScorer*>(a.policy->scheduler->profiles()[0].scorers[0].scorer);
  EXPECT_THAT(scorer->slots(), ElementsAre(0, 2));

  const Assembly optional = assembled(R"(
plugins:
- {name: first, type: test-producer, parameters: {produces: [x], optional: [y, nobody]}}
- {name: second, type: test-producer, parameters: {produces: [y]}}
)");
  EXPECT_THAT(producers(optional), ElementsAre("second", "first"));
  EXPECT_THAT(optional.notices, ElementsAre(HasSubstr("plugin=first/test-producer dataKey=nobody/test")));
  const Assembly circle = assembled(R"(
plugins:
- {name: first, type: test-producer, parameters: {produces: [x], optional: [y]}}
- {name: second, type: test-producer, parameters: {produces: [y], requires: [x]}}
)");
  EXPECT_THAT(producers(circle), ElementsAre("first", "second"));
}

TEST_F(AssemblyTest, DataThatCannotFlowIsRefused) {
  EXPECT_THAT(error_of(R"(
plugins:
- {name: X, type: test-producer, parameters: {produces: [x], requires: [y]}}
- {name: Y, type: test-producer, parameters: {produces: [y], requires: [x]}}
)"),
              HasSubstr("failed to load the configuration - cycle detected: graph is not a DAG: each of "
                        "X/test-producer, Y/test-producer needs another's data first"));
  EXPECT_THAT(error_of(R"(
plugins:
- {name: A, type: test-producer, parameters: {produces: [a]}}
- {name: S, type: test-data-scorer, parameters: {requires: [a], asText: true}}
)"),
              HasSubstr("data type mismatch between produced and consumed data for key: a/test"));
  EXPECT_THAT(error_of(R"(
plugins:
- {name: A, type: test-producer, parameters: {produces: [a]}}
- {name: S, type: test-data-scorer, parameters: {optional: [a], asText: true}}
)"),
              HasSubstr("data type mismatch between produced and consumed data for key: a/test"));
  EXPECT_THAT(
      error_of(R"(
plugins:
- {name: A, type: test-producer, parameters: {produces: [a]}}
- {name: F, type: test-fairness, parameters: {requires: [a]}}
)"),
      HasSubstr("invalid plugin layer execution order: producer A/test-producer needs to be executed before "
                "consumer F/test-fairness"));
  EXPECT_THAT(error_of("plugins: [{name: S, type: test-data-scorer, parameters: {requires: [a]}}]"),
              HasSubstr("no default producer found for missing data key a/test, consumed by S"));
  EXPECT_THAT(error_of("plugins: [{type: test-trespasser}]"),
              HasSubstr("plugin 'test-trespasser' uses data key secret/test without declaring it"));
}

TEST_F(AssemblyTest, DataOfAnotherKindIsRefusedForOptionalUsesToo) {
  EXPECT_THAT(error_of(R"(
plugins:
- {type: inflight-load-producer}
- type: endpoint-attribute-scorer
  parameters:
    attributeKey: InFlightLoadDataKey
    producer: inflight-load-producer
    algorithm: {type: linear_lower_is_better}
)"),
              HasSubstr("data type mismatch between produced and consumed data for key: "
                        "InFlightLoadDataKey/inflight-load-producer"));
  EXPECT_THAT(error_of(R"(
plugins:
- {type: p2p-source-producer}
- type: session-affinity-scorer
  parameters:
    strategy: session_id
    sessionIdConfig: {sources: [{attribute: best-match, producer: p2p-source-producer}]}
)"),
              HasSubstr("data type mismatch between produced and consumed data for key: "
                        "best-match/p2p-source-producer"));
}

TEST_F(AssemblyTest, ErrorCasesHaveTheReferencesTextAndALine) {
  EXPECT_EQ(
      error_of("plugins:\n- testing 1 2 3\n"),
      "failed to parse config - failed to decode configuration JSON/YAML: plugins[0]: expected object, got "
      "string \"testing 1 2 3\" (line 2)");
  EXPECT_EQ(
      error_of("plugins:\n- name: x\n"),
      "failed to load the configuration - configuration validation failed: plugin 'x' is missing a type "
      "(line 2)");
  EXPECT_THAT(error_of("plugins: [{type: no-such}]"),
              HasSubstr("plugin type 'no-such' is not registered; `penstock plugins` lists them (line 1)"));
  EXPECT_THAT(
      error_of("plugins: [{type: precise-prefix-cache-scorer}]"),
      HasSubstr(
          "plugin type 'precise-prefix-cache-scorer' is known to llm-d-router but not part of this build"));
  EXPECT_EQ(
      error_of("plugins:\n- type: test-plugin\n  parameters:\n    blockSize: asdf\n"),
      "failed to load the configuration - plugin instantiation failed: failed to create plugin 'test-plugin' "
      "(type: test-plugin): plugins[0].parameters.blockSize: expected int, got string \"asdf\" (line 4)");
  EXPECT_EQ(error_of("featureGates: [nope]"),
            "failed to parse config - feature gate validation failed: feature gate 'nope' is unknown or "
            "unregistered (line 1)");
  EXPECT_THAT(error_of("featureGates: [flowControl=qwerty]"), HasSubstr("qwerty is not a valid value"));
  EXPECT_THAT(error_of("plugins: [{type: test-scorer}, {type: test-scorer}]"),
              HasSubstr("duplicate plugin name 'test-scorer'"));
  EXPECT_THAT(error_of("bogus: 1"), HasSubstr("unknown field \"bogus\" (line 1)"));
  const auto profiles = [&](const std::string& list, const std::string& plugins = "[{type: test-scorer}]") {
    return error_of("plugins: " + plugins + "\nschedulingProfiles: " + list + "\n");
  };
  EXPECT_THAT(profiles("[{plugins: []}]"),
              HasSubstr("configuration validation failed: scheduling profile validation failed: "
                        "schedulingProfiles[0] is missing a name (line 2)"));
  EXPECT_THAT(profiles("[{name: a, plugins: [{weight: 1}]}]"),
              HasSubstr("schedulingProfiles[a].plugins[0] is missing a 'pluginRef' (line 2)"));
  EXPECT_THAT(profiles("[{name: a, plugins: [{pluginRef: x}]}]"),
              HasSubstr("schedulingProfiles[a] references undefined plugin 'x' (line 2)"));
  EXPECT_THAT(profiles("[{name: a}, {name: a}]"), HasSubstr("schedulingProfiles[1] has duplicate name 'a'"));
  EXPECT_THAT(profiles("[{name: a}, {name: b}]"), HasSubstr("no profile handler configured"));
  EXPECT_THAT(profiles("[{name: a}, {name: b}]", "[{type: single-profile-handler}]"),
              HasSubstr("SingleProfileHandler cannot support multiple scheduling profiles"));
  EXPECT_THAT(
      profiles("[{name: a}]", "[{type: single-profile-handler}, {type: test-profile-handler}]"),
      HasSubstr("multiple profile handlers found ('single-profile-handler', 'test-profile-handler'); only "
                "one is allowed"));
  EXPECT_THAT(
      profiles("[{name: a, plugins: [{pluginRef: test-picker}, {pluginRef: max}]}]",
               "[{type: test-picker}, {name: max, type: max-score-picker}]"),
      HasSubstr("scheduler config build failed: failed to add plugin 'max' to profile 'a': failed to set "
                "'max/max-score-picker' as picker, already have a registered picker plugin "
                "'test-picker/test-picker'"));
  EXPECT_THAT(
      error_of("plugins: [{name: max-score-picker, type: test-scorer}]"),
      HasSubstr("failed to apply scheduling defaults: the name of default plugin 'max-score-picker' is taken "
                "by a plugin of type 'test-scorer'"));
}

TEST_F(AssemblyTest, AReferenceThatLeadsNowhereIsToldWithItsLine) {
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"flowControl:\n  saturationDetector:\n    {pluginRef: nobody}", "undefined plugin 'nobody' (line 3)"},
      {"\nsaturationDetector: {pluginRef: test-scorer}\nplugins: [{type: test-scorer}]",
       "is not a fwkfc.SaturationDetector (line 2)"},
      {"requestHandler:\n  parsers:\n  - pluginRef: openai-parser\n  - pluginRef: openai-pasrer",
       "plugin type 'openai-pasrer' not found in registry; did you mean 'openai-parser'? (line 4)"},
      {"\n\nparser: {pluginRef: test-scorer}\nplugins: [{type: test-scorer}]",
       "is not a parser plugin (line 3)"},
      {"dataLayer:\n  sources:\n  - pluginRef: nobody", "is not a fwkdl.DataSource (line 3)"},
      {"dataLayer:\n  discovery: {pluginRef: x}", "no plugin found with name \"x\" (line 2)"},
      {"plugins:\n- type: prefix-cache-scorer\n  parameters: {prefixMatchInfoProducerName: nobody}",
       "consumed by prefix-cache-scorer (line 2)"},
      {"plugins:\n- type: file-discovery\n", "'path' parameter is required (line 2)"},
      {"plugins:\n- {type: queue-scorrer}", "is not registered; did you mean 'queue-scorer'? (line 2)"},
      {"plugins:\n- {name: a, type: test-with-dependencies, parameters: {dependency: a}}",
       "graph is not a DAG: 'a' names itself, or a plugin that leads back to it (line 2)"},
  };
  for (const auto& [text, words] : wrong) EXPECT_THAT(error_of(text), HasSubstr(words)) << text;

  const std::vector<std::pair<std::string, std::string>> queues{
      {"  defaultRequestTTL: -1s", "DefaultRequestTTL cannot be negative, but got -1s (line 3)"},
      {"  maxBytes: -1", "global MaxBytes must be non-negative, got -1 (line 3)"},
      {"  priorityBands:\n  - {priority: 1}\n  - {priority: 1}", "duplicate priority level 1 (line 5)"},
      {"  priorityBands:\n  - priority: 1\n    maxRequests: -5",
       "priority band 1 MaxRequests must be non-negative, got -5 (line 5)"},
      {"  priorityBands:\n  - priority: 1\n    fairnessPolicyRef: nobody",
       "plugin \"nobody\" not found (line 5)"},
      {"  usageLimitPolicyPluginRef: fcfs-ordering-policy",
       "does not implement UsageLimitPolicy (actual type: fcfs-ordering-policy) (line 3)"},
  };
  for (const auto& [text, words] : queues)
    EXPECT_THAT(error_of("featureGates: [flowControl]\nflowControl:\n" + text), HasSubstr(words)) << text;
}

TEST_F(AssemblyTest, WarnsOfNumbersThatTheReferenceTakesInSilence) {
  options_.allow_experimental = true;
  const Assembly a = assembled(
      "plugins:\n- type: latency-scorer\n  parameters: {ttftWeight: -1}\n- type: random-picker\n  "
      "parameters: "
      "{maxNumOfEndpoints: 0}\n");
  EXPECT_THAT(
      a.policy->warnings,
      ElementsAre("plugin 'latency-scorer': ttftWeight is -1, below 0: what should count for an endpoint "
                  "counts against it (line 3)",
                  "plugin 'random-picker': maxNumOfEndpoints is 0, which counts as 1 (line 5)"));
}

TEST_F(AssemblyTest, ExperimentalTypesNeedTheirFlag) {
  EXPECT_EQ(error_of("plugins: [{name: x, type: test-alpha}]"),
            "plugin 'x' (type: 'test-alpha') has Alpha stability level, but command line flag "
            "--allow-experimental-plugins is not set (line 1)");
  options_.allow_experimental = true;
  EXPECT_EQ(error_of("plugins: [{name: x, type: test-alpha}]"), "no error");
}

TEST_F(AssemblyTest, WarnsOfWhatHasNoEffect) {
  const Assembly a = assembled(R"(
plugins: [{type: test-plugin}, {type: test-scorer}, {type: test-filter}, {type: test-old}, {type: test-picker}]
schedulingProfiles:
- name: p
  plugins:
  - {pluginRef: test-plugin}
  - {pluginRef: test-filter, weight: 2}
  - {pluginRef: test-scorer, weight: 0}
  - {pluginRef: test-picker}
dataLayer: {peerDiscovery: {pluginRef: x}}
)");
  EXPECT_THAT(
      a.policy->warnings,
      ElementsAre(HasSubstr("DEPRECATION warning: plugin is deprecated, plugin=test-old type=test-old"),
                  HasSubstr("plugin 'test-plugin' is neither filter, scorer nor picker"),
                  HasSubstr("plugin 'test-filter' is no scorer: its weight has no effect (line 7)"),
                  HasSubstr("plugin 'test-scorer' has weight 0 (line 8)"),
                  HasSubstr("plugin 'test-old' is declared but nothing uses it (line 2)"),
                  HasSubstr("dataLayer.peerDiscovery has no effect")));
}

TEST_F(AssemblyTest, APluginThatAnotherNamesInItsParametersIsUsed) {
  const Assembly a = assembled(R"(
plugins:
- {type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 16}}
- {type: prefill-filter}
- {type: decode-filter}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}]}
- {name: decode, plugins: [{pluginRef: decode-filter}]}
)");
  EXPECT_TRUE(a.policy->warnings.empty()) << a.policy->warnings.front();
}

TEST_F(AssemblyTest, WarnsOfAHandlerWhosePrimaryProfileIsNotDefined) {
  const Assembly a = assembled(R"(
plugins:
- {type: disagg-profile-handler}
schedulingProfiles:
- {name: default, plugins: []}
- {name: prefill, plugins: []}
)");
  EXPECT_THAT(
      a.policy->warnings,
      ElementsAre("plugin 'disagg-profile-handler' refuses every request: there is no scheduling profile "
                  "'decode'; defined: default, prefill (line 3)"));
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

TEST(KnownTypes, AreSortedAndFound) {
  const auto types = known_types();
  EXPECT_TRUE(std::is_sorted(types.begin(), types.end(),
                             [](const KnownType& a, const KnownType& b) { return a.type < b.type; }));
  EXPECT_EQ(types.size(), 97U);
  ASSERT_NE(find_known_type("agent-identity"), nullptr);
  EXPECT_EQ(find_known_type("agent-identity")->stability, Stability::kAlpha);
  EXPECT_EQ(find_known_type("tokenizer")->replaced_by, "token-producer");
  EXPECT_EQ(find_known_type("zzz"), nullptr);
}

}  // namespace
}  // namespace penstock::assembly
