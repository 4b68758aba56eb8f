#include "assembly/tracing_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace penstock::assembly {
namespace {

using Exporter = telemetry::TracingOptions::Exporter;

std::map<std::string, std::string> environment;
const char* fake_variable(const char* name) {
  const auto at = environment.find(name);
  return at == environment.end() ? nullptr : at->second.c_str();
}

telemetry::TracingOptions options_of(const config::TracingSettings& settings,
                                     std::map<std::string, std::string> variables,
                                     Exporter by_default = Exporter::kNone) {
  environment = std::move(variables);
  telemetry::TracingOptions defaults;
  defaults.exporter = by_default;
  std::vector<std::string> warnings;
  telemetry::TracingOptions options = tracing_options(settings, defaults, fake_variable, warnings);
  EXPECT_THAT(warnings, ::testing::IsEmpty());
  return options;
}

TEST(TracingSetup, IsOffUnlessSomethingSwitchesItOn) {
  EXPECT_EQ(options_of({}, {}).exporter, Exporter::kNone);
  EXPECT_EQ(options_of({}, {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1"}}).exporter, Exporter::kNone);
  EXPECT_EQ(options_of({}, {{"OTEL_TRACES_EXPORTER", "otlp"}}).exporter, Exporter::kOtlpGrpc);
  EXPECT_EQ(options_of({}, {}, Exporter::kConsole).exporter, Exporter::kConsole);
  EXPECT_EQ(options_of({}, {{"OTEL_TRACES_EXPORTER", "none"}}, Exporter::kConsole).exporter, Exporter::kNone);
}

TEST(TracingSetup, SettingsWinOverTheEnvironment) {
  config::TracingSettings settings;
  settings.exporter = "otlp";
  settings.protocol = "http/protobuf";
  settings.endpoint = "http://mine:4318/v1/traces";
  settings.sample_ratio = 1.0;
  settings.parent_based = false;
  settings.service_name = "edge";
  const telemetry::TracingOptions options =
      options_of(settings, {{"OTEL_TRACES_EXPORTER", "console"},
                            {"OTEL_TRACES_SAMPLER", "parentbased_always_off"},
                            {"OTEL_SERVICE_NAME", "other"},
                            {"OTEL_EXPORTER_OTLP_HEADERS", "key=value"}});
  EXPECT_EQ(options.exporter, Exporter::kOtlpHttp);
  EXPECT_EQ(options.endpoint, "http://mine:4318/v1/traces");
  EXPECT_EQ(options.sampler, telemetry::TracingOptions::Sampler::kRatio);
  EXPECT_EQ(options.ratio, 1.0);
  EXPECT_FALSE(options.parent_based);
  EXPECT_EQ(options.service_name, "edge");
  EXPECT_EQ(options_of(settings, {{"OTEL_SDK_DISABLED", "true"}}).exporter, Exporter::kNone);
  EXPECT_EQ(options_of(settings, {{"OTEL_SDK_DISABLED", "True"}}).exporter, Exporter::kNone);
  settings.exporter = "none";
  EXPECT_EQ(options_of(settings, {{"OTEL_TRACES_EXPORTER", "otlp"}}).exporter, Exporter::kNone);
}

TEST(TracingSetup, ASettingThatSwitchesTracingOnLeavesTheRestToTheEnvironment) {
  config::TracingSettings settings;
  settings.exporter = "otlp";
  const telemetry::TracingOptions options =
      options_of(settings, {{"OTEL_TRACES_EXPORTER", "none"},
                            {"OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4317"},
                            {"OTEL_EXPORTER_OTLP_HEADERS", "key=value"},
                            {"OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem"},
                            {"OTEL_TRACES_SAMPLER", "always_on"}});
  EXPECT_EQ(options.exporter, Exporter::kOtlpGrpc);
  EXPECT_EQ(options.endpoint, "https://c:4317");
  EXPECT_EQ(options.headers, (telemetry::TracingOptions::Pairs{{"key", "value"}}));
  EXPECT_EQ(options.ca_file, "ca.pem");
  EXPECT_EQ(options.sampler, telemetry::TracingOptions::Sampler::kAlwaysOn);
  EXPECT_EQ(options_of(settings, {{"OTEL_TRACES_EXPORTER", "console"}}, Exporter::kConsole).exporter,
            Exporter::kOtlpGrpc);
}

TEST(TracingSetup, ThePathOfTheCommonEndpointIsOfTheProtocolThatIsSet) {
  config::TracingSettings settings;
  settings.protocol = "http/protobuf";
  std::map<std::string, std::string> variables = {{"OTEL_TRACES_EXPORTER", "otlp"},
                                                  {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"},
                                                  {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"}};
  const telemetry::TracingOptions http = options_of(settings, variables);
  EXPECT_EQ(http.exporter, Exporter::kOtlpHttp);
  EXPECT_EQ(http.endpoint, "http://c:4318/v1/traces");
  settings.exporter = "otlp";
  settings.protocol = "grpc";
  variables["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf";
  const telemetry::TracingOptions grpc = options_of(settings, variables);
  EXPECT_EQ(grpc.exporter, Exporter::kOtlpGrpc);
  EXPECT_EQ(grpc.endpoint, "http://c:4318");
}

TEST(TracingSetup, TakesTheProtocolOfTheEnvironmentWhereTheSettingsNameNone) {
  config::TracingSettings settings;
  settings.exporter = "otlp";
  const telemetry::TracingOptions options = options_of(
      settings,
      {{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"}, {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"}});
  EXPECT_EQ(options.exporter, Exporter::kOtlpHttp);
  EXPECT_EQ(options.endpoint, "http://c:4318/v1/traces");
}

}  // namespace
}  // namespace penstock::assembly
