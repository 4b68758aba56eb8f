#include "config/endpoint_picker_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::config {
namespace {

using testing::HasSubstr;

EndpointPickerConfig decoded(std::string_view text) {
  auto result = decode_endpoint_picker_config(text, "epp.yaml");
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return result.ok() ? std::move(result->config) : EndpointPickerConfig{};
}

std::string error_of(std::string_view text) {
  auto result = decode_endpoint_picker_config(text, "epp.yaml");
  return result.ok() ? "no error" : result.error().message;
}

TEST(EndpointPickerConfig, PrintsInTheReferencesGrammar) {
  PluginSpec plugin{"test-plugin", "test-type", std::nullopt, 0};
  plugin.parameters = *parse_document(R"({"key":"value"})", "t");
  EXPECT_EQ(to_string(plugin), R"({Name: test-plugin, Type: test-type, Parameters: {"key":"value"}})");
  EXPECT_EQ(to_string(PluginSpec{"", "t", std::nullopt, 0}), "{Type: t}");
  EXPECT_EQ(to_string(ScheduledPlugin{"test-ref", 2.5, 0}), "{PluginRef: test-ref, Weight: 2.50}");
  EXPECT_EQ(to_string(ScheduledPlugin{"test-ref", std::nullopt, 0}), "{PluginRef: test-ref}");

  FlowControlConfig flow;
  flow.max_bytes = 1024;
  flow.default_request_ttl = std::chrono::seconds(30);
  flow.priority_bands.push_back({10, 512, std::nullopt, "", ""});
  flow.saturation_detector = "test-plugin";
  EXPECT_EQ(to_string(flow),
            "{MaxBytes: 1024, MaxRequests: unlimited, DefaultRequestTTL: 30s, PriorityBands: [{Priority: 10, "
            "MaxBytes: 512}], SaturationDetector: {PluginRef: test-plugin}}");

  EndpointPickerConfig config;
  config.plugins.push_back({"p1", "t1", std::nullopt, 0});
  config.flow_control.emplace().saturation_detector = "sd1";
  config.parsers = {"parser1"};
  EXPECT_EQ(to_string(config),
            "{Plugins: [{Name: p1, Type: t1}], FlowControl: {MaxBytes: unlimited, MaxRequests: unlimited, "
            "SaturationDetector: {PluginRef: sd1}}, RequestHandler: {Parsers: [{PluginRef: parser1}]}}");
  EXPECT_EQ(to_string(EndpointPickerConfig{}), "{}");
}

TEST(EndpointPickerConfig, PrintsEveryField) {
  const EndpointPickerConfig config = decoded(R"(
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl, "haPopulateNonLeaderDatastore=false"]
dataLayer:
  injectDefaults: false
  discovery: {pluginRef: fd}
  crossReplicaSyncInterval: 1s
flowControl:
  maxBytes: 2Gi
  maxRequests: 20k
  defaultRequestTTL: 20s
  noEndpointRequestTTL: 10m
  saturationDetector: {pluginRef: cd}
  usageLimitPolicyPluginRef: hb
  enableEviction: true
  defaultPriorityBand: {priority: 0, fairnessPolicyRef: rr}
  defaultNegativePriorityBand: {priority: -1, maxRequests: "50"}
  priorityBands:
  - {priority: 10, maxBytes: 500M, maxRequests: 1k, fairnessPolicyRef: rr, orderingPolicyRef: slo}
  - {priority: 5}
requestHandler: {}
)");
  EXPECT_EQ(
      to_string(config),
      "{FeatureGates: {flowControl,haPopulateNonLeaderDatastore=false}, DataLayer: {Sources: [], Discovery: "
      "{PluginRef: fd}, PeerDiscovery: <nil>, CrossReplicaSyncerPluginRef: , CrossReplicaSyncInterval: 1s}, "
      "FlowControl: {MaxBytes: 2147483648, MaxRequests: 20000, DefaultRequestTTL: 20s, NoEndpointRequestTTL: "
      "10m0s, DefaultPriorityBand: {Priority: 0, FairnessPolicyRef: rr}, DefaultNegativePriorityBand: "
      "{Priority: -1, MaxRequests: 50}, PriorityBands: [{Priority: 10, MaxBytes: 500000000, MaxRequests: "
      "1000, "
      "FairnessPolicyRef: rr, OrderingPolicyRef: slo} {Priority: 5}], UsageLimitPolicyRef: hb, "
      "SaturationDetector: {PluginRef: cd}, EnableEviction: true}, RequestHandler: {}}");
}

TEST(EndpointPickerConfig, AcceptsBothGroupsAndNone) {
  EXPECT_TRUE(decode_endpoint_picker_config("plugins: []", "t").ok());
  EXPECT_TRUE(decode_endpoint_picker_config("kind: EndpointPickerConfig", "t").ok());
  auto old = decode_endpoint_picker_config(
      R"({"apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig"})", "t");
  ASSERT_TRUE(old.ok());
  ASSERT_EQ(old->notices.size(), 1U);
  EXPECT_THAT(old->notices[0],
              HasSubstr("DEPRECATION: apiVersion inference.networking.x-k8s.io/v1alpha1/EndpointPickerConfig "
                        "is deprecated"));
  EXPECT_THAT(error_of("apiVersion: inference.networking.k8s.io/v1alpha1"),
              HasSubstr("failed to decode configuration JSON/YAML: apiVersion"));
  EXPECT_THAT(error_of("kind: Pod"), HasSubstr("got \"Pod\""));
}

TEST(EndpointPickerConfig, NamesFieldValueAndLineInEveryError) {
  EXPECT_EQ(error_of("plugins:\n- testing 1 2 3\n"),
            "failed to decode configuration JSON/YAML: plugins[0]: expected object, got string \"testing 1 2 "
            "3\" (line 2)");
  EXPECT_EQ(error_of("bogus: 1"),
            "failed to decode configuration JSON/YAML: unknown field \"bogus\" (line 1), known: apiVersion, "
            "kind, featureGates, plugins, schedulingProfiles, dataLayer, flowControl, requestHandler, "
            "saturationDetector, parser, penstock");
  EXPECT_THAT(error_of("plugins:\n- type: x\n  Name: y\n"),
              HasSubstr("plugins[0]: unknown field \"Name\" (line 3)"));
  EXPECT_THAT(error_of("flowControl:\n  priorityBands:\n  - {priority: 1, maxByte: 3}\n"),
              HasSubstr("flowControl.priorityBands[0]: unknown field \"maxByte\" (line 3)"));
  EXPECT_THAT(error_of("flowControl: {defaultRequestTTL: 60}"),
              HasSubstr("flowControl.defaultRequestTTL: expected duration"));
  EXPECT_THAT(error_of("flowControl: {defaultRequestTTL: 60x}"), HasSubstr("unknown unit \"x\""));
  EXPECT_THAT(error_of("flowControl: {maxBytes: many}"), HasSubstr("invalid quantity \"many\""));
  EXPECT_THAT(error_of("plugins: [{type: 3}]"),
              HasSubstr("plugins[0].type: expected string, got int 3 (line 1)"));
  EXPECT_THAT(error_of("dataLayer: {sources: [{pluginRef: a, extractors: [x]}]}"),
              HasSubstr("dataLayer.sources[0].extractors[0]: expected object, got string \"x\""));
  EXPECT_THAT(error_of("plugins: []\nplugins: []\n"), HasSubstr("already set at line 1"));
  EXPECT_THAT(error_of("schedulingProfiles: [{name: a, plugins: [{pluginRef: b, weight: heavy}]}]"),
              HasSubstr("schedulingProfiles[0].plugins[0].weight: expected number"));
  EXPECT_THAT(error_of("dataLayer: true"), HasSubstr("dataLayer: expected object, got bool true"));
}

TEST(EndpointPickerConfig, OtherKindsAreRefusedWithTheirLine) {
  EXPECT_THAT(error_of("apiVersion: v1\nkind: ConfigMap\n"),
              testing::AllOf(HasSubstr("kind: expected \"EndpointPickerConfig\", got \"ConfigMap\" (line 2)"),
                             HasSubstr("apiVersion: expected \"llm-d.ai/v1alpha1\", got \"v1\" (line 1)")));
  EXPECT_THAT(error_of("penstock:\n  mode: turbo\n"),
              HasSubstr("\"turbo\" is not compatible or strict (line 2)"));
}

TEST(EndpointPickerConfig, ParametersAreOpaqueAtThisLevel) {
  const EndpointPickerConfig config =
      decoded("plugins:\n- type: t\n  parameters: {z: 1, a: {b: x}}\n- type: u\n  parameters:\n");
  EXPECT_EQ(config.plugins[0].parameters->to_json(), R"({"a":{"b":"x"},"z":1})");
  EXPECT_FALSE(config.plugins[1].parameters.has_value());
}

TEST(EndpointPickerConfig, CopiesDeprecatedFieldsOnlyWhereTheNewOneIsUnset) {
  const EndpointPickerConfig copied =
      decoded("saturationDetector: {pluginRef: old}\nparser: {pluginRef: openai-parser}\n");
  EXPECT_EQ(copied.flow_control->saturation_detector, "old");
  EXPECT_EQ(*copied.parsers, std::vector<std::string>{"openai-parser"});
  EXPECT_THAT(to_string(copied), HasSubstr("RequestHandler: {Parsers: [{PluginRef: openai-parser}]}, "
                                           "SaturationDetector: {PluginRef: old}, Parser: {PluginRef: "
                                           "openai-parser}}"));
  const EndpointPickerConfig kept = decoded(
      "saturationDetector: {pluginRef: old}\nparser: {pluginRef: p}\n"
      "flowControl: {saturationDetector: {pluginRef: new}}\nrequestHandler: {parsers: [{pluginRef: q}]}\n");
  EXPECT_EQ(kept.flow_control->saturation_detector, "new");
  EXPECT_EQ(*kept.parsers, std::vector<std::string>{"q"});
}

TEST(EndpointPickerConfig, TheModeIsCompatibleOrStrictAndShownOnlyWhereItIsSet) {
  auto decoded = decode_endpoint_picker_config("penstock: {mode: strict}\n", "test");
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_TRUE(decoded->config.strict());
  EXPECT_NE(to_string(decoded->config).find("Penstock: {Mode: strict}"), std::string::npos);
  decoded = decode_endpoint_picker_config("penstock: {}\n", "test");
  ASSERT_TRUE(decoded.ok());
  EXPECT_FALSE(decoded->config.strict());
  decoded = decode_endpoint_picker_config("{}", "test");
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(to_string(decoded->config).find("Penstock"), std::string::npos);
  for (const char* wrong :
       {"penstock: {mode: Strict}\n", "penstock: {mode: 1}\n", "penstock: {modes: strict}\n"}) {
    decoded = decode_endpoint_picker_config(wrong, "test");
    ASSERT_FALSE(decoded.ok()) << wrong;
    EXPECT_NE(decoded.error().message.find("penstock"), std::string::npos) << decoded.error().message;
  }
}

TEST(EndpointPickerConfig, ReadsQuantitiesAndDurations) {
  const EndpointPickerConfig config =
      decoded("flowControl: {maxBytes: \"1Gi\", maxRequests: 1k, defaultRequestTTL: 0s}");
  EXPECT_EQ(config.flow_control->max_bytes, 1073741824);
  EXPECT_EQ(config.flow_control->max_requests, 1000);
  EXPECT_EQ(config.flow_control->default_request_ttl, Duration(0));
  EXPECT_EQ(decoded("flowControl: {maxBytes: 1024}").flow_control->max_bytes, 1024);
}

TEST(EndpointPickerConfig, DefaultTextIsTheBuiltInConfiguration) {
  const EndpointPickerConfig config = decoded("");
  EXPECT_EQ(
      to_string(config),
      "{Plugins: [{Type: queue-scorer} {Type: kv-cache-utilization-scorer} {Type: prefix-cache-scorer} "
      "{Type: metrics-data-source} {Type: core-metrics-extractor}], SchedulingProfiles: [{Name: default, "
      "Plugins: [{PluginRef: queue-scorer, Weight: 2.00} {PluginRef: kv-cache-utilization-scorer, Weight: "
      "2.00} {PluginRef: prefix-cache-scorer, Weight: 3.00}]}], DataLayer: {Sources: [{PluginRef: "
      "metrics-data-source, Extractors: [{PluginRef: core-metrics-extractor}]}], Discovery: <nil>, "
      "PeerDiscovery: <nil>, CrossReplicaSyncerPluginRef: , CrossReplicaSyncInterval: <nil>}}");
  EXPECT_EQ(to_string(decoded("\n")), "{}");
}

TEST(FeatureGates, FollowTheReferencesRules) {
  const auto flow = [](std::vector<std::string> entries) {
    EndpointPickerConfig config;
    config.feature_gates = std::move(entries);
    auto gates = resolve_feature_gates(config);
    return gates.ok() ? std::string(gates->flow_control ? "true" : "false") : gates.error().message;
  };
  EXPECT_EQ(flow({}), "false");
  EXPECT_EQ(flow({"flowControl"}), "true");
  EXPECT_EQ(flow({"flowControl=false"}), "false");
  EXPECT_EQ(flow({"flowControl", "flowControl=FALSE"}), "false");
  EXPECT_EQ(flow({"flowControl= True "}), "true");
  EXPECT_EQ(flow({"flowControl=true=x"}), "true");
  EXPECT_EQ(flow({"flowControl=qwerty"}),
            "feature gate validation failed: qwerty is not a valid value for the feature gate flowControl "
            "(error: strconv.ParseBool: parsing \"qwerty\": invalid syntax)");
  EXPECT_EQ(flow({"unknown-gate"}),
            "feature gate validation failed: feature gate 'unknown-gate' is unknown or unregistered");
  EXPECT_THAT(flow({" flowControl"}), HasSubstr("' flowControl' is unknown"));
  EXPECT_THAT(flow({"dataLayer"}), HasSubstr("unknown"));
}

TEST(EndpointPickerConfig, DescribesItself) {
  const auto sections = describe_endpoint_picker_config();
  EXPECT_EQ(sections[0].path, "");
  EXPECT_EQ(sections[0].fields.size(), 11U);
  for (const ConfigSection& section : sections) {
    EXPECT_FALSE(section.fields.empty()) << section.path;
    for (const ParamDoc& field : section.fields) EXPECT_FALSE(field.text.empty()) << field.name;
  }
}

}  // namespace
}  // namespace penstock::config
