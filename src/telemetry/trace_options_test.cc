#include "telemetry/tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace penstock::telemetry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::map<std::string, std::string> environment;
const char* fake_variable(const char* name) {
  const auto at = environment.find(name);
  return at == environment.end() ? nullptr : at->second.c_str();
}

TEST(TracingOptions, TakesTheStandardVariables) {
  using Exporter = TracingOptions::Exporter;
  const auto read = [](std::map<std::string, std::string> variables, TracingOptions base = {}) {
    environment = std::move(variables);
    std::vector<std::string> warnings;
    const TracingOptions options = tracing_from_environment(base, {}, fake_variable, warnings);
    EXPECT_THAT(warnings, IsEmpty());
    return options;
  };
  EXPECT_EQ(read({}).exporter, Exporter::kNone);
  EXPECT_EQ(read({{"OTEL_TRACES_EXPORTER", "otlp"}}).exporter, Exporter::kOtlpGrpc);
  EXPECT_EQ(read({{"OTEL_TRACES_EXPORTER", "console"}}).exporter, Exporter::kConsole);
  TracingOptions console;
  console.exporter = Exporter::kConsole;
  EXPECT_EQ(read({{"OTEL_TRACES_EXPORTER", "none"}}, console).exporter, Exporter::kNone);
  EXPECT_EQ(read({{"OTEL_SDK_DISABLED", "true"}}, console).exporter, Exporter::kNone);

  const TracingOptions http = read({{"OTEL_TRACES_EXPORTER", "otlp"},
                                    {"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"},
                                    {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/"},
                                    {"OTEL_EXPORTER_OTLP_HEADERS", "X-Key=a%20b, other=c"},
                                    {"OTEL_EXPORTER_OTLP_TIMEOUT", "2500"},
                                    {"OTEL_TRACES_SAMPLER", "traceidratio"},
                                    {"OTEL_TRACES_SAMPLER_ARG", "0.25"},
                                    {"OTEL_RESOURCE_ATTRIBUTES", "service.name=from-attributes,pod=p1"},
                                    {"OTEL_SERVICE_NAME", "named"},
                                    {"OTEL_BSP_SCHEDULE_DELAY", "100"},
                                    {"OTEL_BSP_MAX_QUEUE_SIZE", "7"},
                                    {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "3"}});
  EXPECT_EQ(http.exporter, Exporter::kOtlpHttp);
  EXPECT_EQ(http.endpoint, "http://collector:4318/v1/traces");
  EXPECT_EQ(http.headers, (TracingOptions::Pairs{{"x-key", "a b"}, {"other", "c"}}));
  EXPECT_EQ(http.timeout, std::chrono::milliseconds(2500));
  EXPECT_FALSE(http.parent_based);
  EXPECT_EQ(http.ratio, 0.25);
  EXPECT_EQ(http.service_name, "named");
  EXPECT_EQ(http.resource_attributes, (TracingOptions::Pairs{{"pod", "p1"}}));
  EXPECT_EQ(http.schedule_delay, std::chrono::milliseconds(100));
  EXPECT_EQ(http.max_queue_spans, 7U);
  EXPECT_EQ(http.max_batch_spans, 3U);

  const TracingOptions own = read({{"OTEL_TRACES_EXPORTER", "otlp"},
                                   {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"},
                                   {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://wrong:1"},
                                   {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://right:2/path"}});
  EXPECT_EQ(own.endpoint, "http://right:2/path");
  EXPECT_EQ(read({{"OTEL_TRACES_EXPORTER", "otlp"}, {"OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317"}}).endpoint,
            "https://c:4317");
  EXPECT_EQ(read({{"OTEL_TRACES_EXPORTER", "otlp"},
                  {"OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317"},
                  {"OTEL_EXPORTER_OTLP_INSECURE", "true"}})
                .endpoint,
            "http://c:4317");
}

TEST(TracingOptions, WarnsOfWhatItCannotUseAndKeepsWhatItHad) {
  environment = {{"OTEL_TRACES_EXPORTER", "zipkin"},           {"OTEL_EXPORTER_OTLP_TIMEOUT", "soon"},
                 {"OTEL_TRACES_SAMPLER", "jaeger_remote"},     {"OTEL_TRACES_SAMPLER_ARG", "2"},
                 {"OTEL_RESOURCE_ATTRIBUTES", "novalue"},      {"OTEL_BSP_MAX_QUEUE_SIZE", "0"},
                 {"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"}, {"OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"}};
  TracingOptions base;
  base.exporter = TracingOptions::Exporter::kOtlpGrpc;
  std::vector<std::string> warnings;
  const TracingOptions options = tracing_from_environment(base, {}, fake_variable, warnings);
  EXPECT_EQ(options.exporter, TracingOptions::Exporter::kOtlpGrpc);
  EXPECT_EQ(options.ratio, 0.1);
  EXPECT_EQ(options.max_queue_spans, 2048U);
  EXPECT_THAT(warnings, SizeIs(8));
}

}  // namespace
}  // namespace penstock::telemetry
