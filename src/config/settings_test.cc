#include "config/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace penstock::config {
namespace {

using testing::HasSubstr;

std::string error_of(std::string_view text) {
  auto settings = decode_settings(text, "s.yaml", "/etc/penstock");
  return settings.ok() ? "no error" : settings.error().message;
}

constexpr std::string_view kMinimal =
    "listeners: [{address: \":8080\"}]\npools: [{name: llama, discovery: {static: "
    "[\"http://127.0.0.1:8001\"]}}]\n";

TEST(Settings, AMinimalDocumentHasTheDocumentedDefaults) {
  auto s = decode_settings(kMinimal, "s.yaml", "");
  ASSERT_TRUE(s.ok()) << s.error().message;
  EXPECT_EQ(s->listeners[0].name, "listener-0");
  EXPECT_EQ(s->listeners[0].limits.body_bytes, 64 << 20);
  EXPECT_FALSE(s->listeners[0].tls());
  EXPECT_EQ(s->pools[0].metrics.interval, std::chrono::milliseconds(200));
  EXPECT_EQ(s->pools[0].retries.attempts, 3);
  EXPECT_EQ(s->loops, 0);
  EXPECT_TRUE(s->warnings.empty());
}

TEST(Settings, ReadsEveryField) {
  ::setenv("PENSTOCK_TEST_ENGINE_KEY", "Bearer abc\n", 1);
  auto s = decode_settings(R"(
listeners:
- name: public
  address: "[::]:8443"
  gatewayPort: 443
  tls: {certFile: site.crt, keyFile: /keys/site.key}
  apiKeysFile: keys.yaml
  limits: {bodyBytes: 1Mi, headerBytes: 16Ki, connections: 1k, streams: 500, queuedBytes: 64Mi}
  timeouts: {header: 5s, body: 6s, keepAlive: 7s, write: 8s}
loops: 4
manifests: manifests
routing: {defaultPool: ai/llama}
admin: {address: "127.0.0.1:9090"}
telemetry: {logLevel: debug, accessLog: false, decisions: 10, trustRequestId: false}
sharedState:
  url: rediss://store:6380/2
  user: picker
  passwordFile: store.password
  caFile: /keys/ca.crt
  replica: one
  staleness: 2s
  interval: 100ms
  load: false
  prefixes: false
  prefixBatches: 10
limits: {bufferedBytes: 2Gi, streams: 7}
drainTimeout: 5s
services: [{name: web, urls: ["http://10.0.0.9:80"]}]
pools:
- name: llama
  namespace: ai
  allowExperimentalPlugins: true
  config: {plugins: [{type: queue-scorer}]}
  discovery:
    file: endpoints.yaml
    watchFile: false
    dns: {name: vllm.svc, port: 8000, interval: 10s}
  engine:
    authorization: {env: PENSTOCK_TEST_ENGINE_KEY}
    forwardClientAuthorization: true
    tls: {caFile: ca.crt, serverName: engine}
    idleConnections: 8
  metrics: {interval: 50ms, timeout: 300ms, staleness: 1s}
  deadlines: {connect: 1s, firstByte: 0s, idle: 30s, total: 10m}
  retries: {attempts: 1}
  outlierDetection: {consecutiveFailures: 5, failureRatio: 0, window: 10s, maxEjectedPercent: 10, firstTokenStall: 0s}
  stickyResponses: {entries: 500, expiry: 1h}
- {name: other, config: other.yaml, discovery: {static: ["http://127.0.0.1:1"]}}
)",
                           "s.yaml", "/etc/penstock");
  ASSERT_TRUE(s.ok()) << s.error().message;
  const ListenerSettings& l = s->listeners[0];
  EXPECT_TRUE(l.tls());
  EXPECT_EQ(l.gateway_port, 443);
  EXPECT_EQ(l.cert_file, "/etc/penstock/site.crt");
  EXPECT_EQ(l.key_file, "/keys/site.key");
  EXPECT_EQ(l.api_keys_file, "/etc/penstock/keys.yaml");
  EXPECT_EQ(l.limits.body_bytes, 1 << 20);
  EXPECT_EQ(l.limits.connections, 1000);
  EXPECT_EQ(l.limits.queued_bytes, 64 << 20);
  EXPECT_EQ(l.write_timeout, std::chrono::seconds(8));
  EXPECT_EQ(s->loops, 4);
  EXPECT_EQ(s->manifests, "/etc/penstock/manifests");
  EXPECT_EQ(s->default_pool, "ai/llama");
  EXPECT_EQ(s->admin_address, "127.0.0.1:9090");
  EXPECT_FALSE(s->telemetry.access_log);
  const SharedStateSettings& shared = s->shared_state;
  EXPECT_EQ(shared.url, "rediss://store:6380/2");
  EXPECT_EQ(shared.user, "picker");
  EXPECT_EQ(shared.password_file, "/etc/penstock/store.password");
  EXPECT_EQ(shared.ca_file, "/keys/ca.crt");
  EXPECT_EQ(shared.replica, "one");
  EXPECT_EQ(shared.staleness, std::chrono::seconds(2));
  EXPECT_EQ(shared.interval, std::chrono::milliseconds(100));
  EXPECT_FALSE(shared.load);
  EXPECT_FALSE(shared.prefixes);
  EXPECT_EQ(shared.prefix_batches, 10);
  EXPECT_EQ(s->buffered_bytes, int64_t{2} << 30);
  EXPECT_EQ(s->drain_timeout, std::chrono::seconds(5));
  EXPECT_EQ(s->services[0].urls[0], "http://10.0.0.9:80");
  const PoolSettings& p = s->pools[0];
  EXPECT_EQ(p.ns, "ai");
  ASSERT_TRUE(p.config_inline.has_value());
  EXPECT_EQ(p.discovery.file, "/etc/penstock/endpoints.yaml");
  EXPECT_EQ(p.discovery.dns.port, 8000);
  EXPECT_EQ(p.engine.authorization, "Bearer abc");
  EXPECT_TRUE(p.engine.forward_client_authorization);
  EXPECT_EQ(p.engine.ca_file, "/etc/penstock/ca.crt");
  EXPECT_EQ(p.metrics.interval, std::chrono::milliseconds(50));
  EXPECT_EQ(p.deadlines.first_byte, Duration(0));
  EXPECT_EQ(p.retries.attempts, 1);
  EXPECT_FALSE(p.outlier_detection.enabled.has_value());
  EXPECT_EQ(p.outlier_detection.consecutive_failures, 5);
  EXPECT_EQ(p.outlier_detection.failure_ratio, 0);
  EXPECT_EQ(p.outlier_detection.window, std::chrono::seconds(10));
  EXPECT_EQ(p.outlier_detection.max_ejected_percent, 10);
  EXPECT_EQ(p.outlier_detection.first_token_stall, Duration(0));
  EXPECT_EQ(p.sticky_responses.entries, 500);
  EXPECT_EQ(p.sticky_responses.expiry, std::chrono::hours(1));
  EXPECT_EQ(s->pools[1].config_file, "/etc/penstock/other.yaml");
}

TEST(Settings, NameFieldValueAndLineInEveryError) {
  EXPECT_EQ(
      error_of("listeners: [{addres: \":1\"}]\npools: [{name: a}]\n"),
      "s.yaml: listeners[0]: unknown field \"addres\" (line 1), known: name, address, gatewayPort, tls, "
      "apiKeysFile, http2, trustFairnessHeader, "
      "limits, "
      "timeouts; listeners[0].address: is required (line 1)");
  const std::string listener = "listeners: [{address: \":1\"}]\n";
  const auto pool = [&](const std::string& fields) {
    return error_of(listener + "pools:\n- name: a\n" + fields);
  };
  EXPECT_THAT(pool("  metrics: {interval: 5}\n"), HasSubstr("pools[0].metrics.interval: expected duration"));
  EXPECT_THAT(pool("  metrics: {interval: 1ms}\n"), HasSubstr("1ms is less than 10ms (line 4)"));
  EXPECT_THAT(pool("  metrics: {interval: 1s, staleness: 500ms}\n"),
              HasSubstr("staleness: is below the interval"));
  EXPECT_THAT(pool("  retries: {attempts: 4}\n"),
              HasSubstr("pools[0].retries.attempts: 4 is not in 1..3 (line 4)"));
  EXPECT_THAT(pool("  outlierDetection: {failureRatio: 1.5}\n"),
              HasSubstr("pools[0].outlierDetection.failureRatio: 1.5 is not in 0..1 (line 4)"));
  EXPECT_THAT(pool("  outlierDetection: {maxEjectedPercent: 101}\n"), HasSubstr("101 is not in 0..100"));
  EXPECT_THAT(pool("  outlierDetection: {baseEjection: 1m, maxEjection: 30s}\n"),
              HasSubstr("pools[0].outlierDetection.maxEjection: is below baseEjection (line 4)"));
  EXPECT_THAT(pool("  stickyResponses: {entries: -1}\n"), HasSubstr("-1 is not in 0..10000000"));
  EXPECT_THAT(pool("  stickyResponses: {expiry: 0s}\n"),
              HasSubstr("pools[0].stickyResponses.expiry: 0s is not positive (line 4)"));
  EXPECT_THAT(pool("  outlierDetection: {window: 0s}\n"),
              HasSubstr("outlierDetection.window: 0s is not positive"));
  EXPECT_THAT(pool("  discovery: {static: [\"ftp://x\"]}\n"),
              HasSubstr("discovery.static[0]: invalid endpoint"));
  EXPECT_THAT(pool("  discovery: {dns: {name: x}}\n"), HasSubstr("discovery.dns.port: 0 is not in 1..65535"));
  EXPECT_THAT(
      pool("  config: 7\n"),
      HasSubstr("pools[0].config: expected a file name or an EndpointPickerConfig, got int 7 (line 4)"));
  EXPECT_THAT(pool("  deadlines: {idle: -1s}\n"), HasSubstr("deadlines.idle: -1s is negative"));
  EXPECT_THAT(pool("  engine: {authorization: {}}\n"), HasSubstr("exactly one of env and file"));
  EXPECT_THAT(pool("  engine: {authorization: {env: PENSTOCK_TEST_UNSET}}\n"),
              HasSubstr("environment variable PENSTOCK_TEST_UNSET is not set"));
  EXPECT_THAT(pool("  engine: {authorization: {file: nowhere}}\n"),
              HasSubstr("reading /etc/penstock/nowhere"));
  EXPECT_THAT(pool("- name: a\n"), HasSubstr("\"default/a\" is given twice"));
  EXPECT_THAT(error_of(std::string(kMinimal) + "sharedState: {url: redis://h, staleness: 100ms}\n"),
              HasSubstr("sharedState.staleness: 100ms is not between four times the interval of 50ms and 1m "
                        "(line 3)"));
  EXPECT_THAT(error_of(std::string(kMinimal) + "sharedState: {interval: 1ms}\n"), HasSubstr("is below 10ms"));
  EXPECT_THAT(error_of(std::string(kMinimal) + "sharedState: {prefixBatches: 0}\n"),
              HasSubstr("sharedState.prefixBatches: 0 is not in 1..1000000 (line 3)"));
  EXPECT_THAT(error_of(std::string(kMinimal) + "telemetry: {logLevel: loud}\n"),
              HasSubstr("\"loud\" is not error"));
  EXPECT_THAT(error_of(std::string(kMinimal) + "routing: {defaultPool: x}\n"),
              HasSubstr("\"x\" is not a pool"));
  EXPECT_THAT(error_of(std::string(kMinimal) + "limits: {bufferedBytes: 1}\n"),
              HasSubstr("is less than 1048576"));
  EXPECT_THAT(error_of("listeners: [{address: \":1\", tls: {certFile: a}}]\npools: [{name: a}]\n"),
              HasSubstr("tls.keyFile: is required"));
  EXPECT_THAT(error_of("listeners: [{address: \"::1:80\"}]\npools: [{name: a}]\n"),
              HasSubstr("is not \"host:port\""));
}

TEST(Settings, TellEachMistakeOnceAndAtItsOwnLine) {
  EXPECT_EQ(error_of("listeners:\n- address: 8080\n"),
            "s.yaml: listeners[0].address: expected string, got int 8080 (line 2)");
  EXPECT_EQ(error_of("listeners:\n- name: a\n"), "s.yaml: listeners[0].address: is required (line 2)");
  EXPECT_EQ(error_of("pools:\n- namespace: x\n  name: 5\n"),
            "s.yaml: pools[0].name: expected string, got int 5 (line 3)");
  EXPECT_EQ(error_of("pools:\n- name: a\n  deadlines:\n    connect: 5s\n    idle: -1s\n"),
            "s.yaml: pools[0].deadlines.idle: -1s is negative (line 5)");
  EXPECT_EQ(error_of("pools:\n- name: a\n  metrics:\n    interval: 1s\n    staleness: 0s\n"),
            "s.yaml: pools[0].metrics.staleness: 0s is not positive (line 5)");
  EXPECT_EQ(error_of("loops: 1\ndrainTimeout: -3s\n"), "s.yaml: drainTimeout: -3s is negative (line 2)");
  EXPECT_EQ(error_of("services:\n- name: web\n  urls: 5\n"),
            "s.yaml: services[0].urls: expected list of string, got int 5 (line 3)");
  EXPECT_EQ(error_of("listeners: nowhere\n"),
            "s.yaml: listeners: expected list, got string \"nowhere\" (line 1)");
}

TEST(Settings, RefuseWhatCannotWorkTogether) {
  EXPECT_EQ(error_of("listeners:\n- address: \":80\"\n- address: \":80\"\n"),
            "s.yaml: listeners[1].address: \":80\" is the address of listeners[0] too (line 3)");
  EXPECT_EQ(error_of("listeners: [{address: \":0\"}, {address: \":0\"}]\n"), "no error");
  EXPECT_THAT(error_of("services: [{name: a, urls: [\"http://h:1\"]}, {name: a, urls: [\"http://h:2\"]}]\n"),
              HasSubstr("services[1].name: \"default/a\" is given twice (line 1)"));
  EXPECT_THAT(error_of("pools: [{name: a/b, namespace: \"x y\"}]\n"),
              testing::AllOf(HasSubstr("pools[0].name: \"a/b\" is no name"),
                             HasSubstr("pools[0].namespace: \"x y\" is no name")));
}

TEST(Settings, RememberWhereTheyNameFiles) {
  auto s = decode_settings(
      "listeners:\n- address: \":1\"\n  tls:\n    certFile: a\n    keyFile: b\nmanifests: m\n", "s.yaml", "");
  ASSERT_TRUE(s.ok()) << s.error().message;
  EXPECT_EQ(s->lines.at("listeners[0].tls.certFile"), 4);
  EXPECT_EQ(s->lines.at("listeners[0].tls.keyFile"), 5);
  EXPECT_EQ(s->lines.at("manifests"), 6);
}

TEST(Settings, WarnOfPoolsThatCannotGetEndpoints) {
  auto s = decode_settings(
      "listeners: [{address: \":1\"}]\npools: [{name: a, engine: {tls: {skipVerify: true}}}]\n", "s", "");
  ASSERT_TRUE(s.ok());
  ASSERT_EQ(s->warnings.size(), 2U);
  EXPECT_THAT(s->warnings[0], HasSubstr("has no discovery"));
}

TEST(Settings, TracingNamesItsExporterAndProtocol) {
  const auto with = [](const std::string& tracing) {
    return decode_settings(
        "pools: [{name: p, discovery: {static: ['http://a:1']}}]\ntelemetry: {tracing: " + tracing + "}\n",
        "s.yaml", "");
  };
  const auto good = with(
      "{exporter: otlp, protocol: http/protobuf, endpoint: 'http://c:4318/v1/traces', "
      "sampleRatio: 0.5, parentBased: false, serviceName: edge}");
  ASSERT_TRUE(good.ok()) << good.error().message;
  EXPECT_EQ(good->telemetry.tracing.exporter, "otlp");
  EXPECT_EQ(good->telemetry.tracing.sample_ratio, 0.5);
  EXPECT_EQ(good->telemetry.tracing.parent_based, false);
  EXPECT_THAT(with("{exporter: zipkin}").error().message,
              HasSubstr("telemetry.tracing.exporter: \"zipkin\" is not otlp or console or none (line 2)"));
  EXPECT_THAT(with("{protocol: http/json}").error().message, HasSubstr("telemetry.tracing.protocol"));
  EXPECT_THAT(with("{sampleRatio: 1.5}").error().message, HasSubstr("1.5 is not in 0..1"));
}

TEST(Settings, DescribeEveryFieldWithTypeAndDefault) {
  const auto sections = describe_settings();
  EXPECT_EQ(sections.size(), 23U);
  for (const SettingsSection& section : sections) {
    EXPECT_FALSE(section.fields.empty()) << section.path;
    for (const ParamDoc& field : section.fields)
      EXPECT_FALSE(field.text.empty()) << section.path << field.name;
  }
  EXPECT_EQ(sections[3].fields[0].name, "bodyBytes");
  EXPECT_EQ(sections[3].fields[0].default_value, "67108864");
}

}  // namespace
}  // namespace penstock::config
