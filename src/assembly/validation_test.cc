#include "assembly/assembly_testing.h"

namespace penstock::assembly {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ValidationTest : public AssemblyTest {};

TEST_F(ValidationTest, ErrorCasesHaveTheReferencesTextAndALine) {
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

TEST_F(ValidationTest, AReferenceThatLeadsNowhereIsToldWithItsLine) {
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

TEST_F(ValidationTest, WarnsOfNumbersThatTheReferenceTakesInSilence) {
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

TEST_F(ValidationTest, ExperimentalTypesNeedTheirFlag) {
  EXPECT_EQ(error_of("plugins: [{name: x, type: test-alpha}]"),
            "plugin 'x' (type: 'test-alpha') has Alpha stability level, but command line flag "
            "--allow-experimental-plugins is not set (line 1)");
  options_.allow_experimental = true;
  EXPECT_EQ(error_of("plugins: [{name: x, type: test-alpha}]"), "no error");
}

TEST_F(ValidationTest, WarnsOfWhatHasNoEffect) {
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

TEST_F(ValidationTest, APluginThatAnotherNamesInItsParametersIsUsed) {
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

TEST_F(ValidationTest, PluginsThatWorkUnnamedAreUsedAndThoseOfTheQueueRestWithIt) {
  options_.allow_experimental = true;
  const std::string_view text =
      "plugins:\n- {type: agent-identity}\n- {type: probabilistic-admitter}\n"
      "- {type: destination-endpoint-served-verifier}\n- {type: queue-scorer}\n"
      "- {type: static-usage-limit-policy, parameters: {threshold: 0.8}}\n";
  EXPECT_THAT(
      assembled(text).policy->warnings,
      ElementsAre("plugin 'static-usage-limit-policy' rests: the feature gate flowControl is off (line 6)"));
  options_.flow_control_available = true;
  EXPECT_THAT(assembled(std::string(text) + "featureGates: [flowControl]\n").policy->warnings,
              testing::IsEmpty());
}

TEST_F(ValidationTest, WarnsOfAHandlerWhosePrimaryProfileIsNotDefined) {
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

}  // namespace
}  // namespace penstock::assembly
