#include "config/manifests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temporary_folder.h"
#include "config/http_route.h"

namespace penstock::config {
namespace {

using testing::HasSubstr;

Result<Manifests> decode(std::string text) {
  const std::vector<ManifestSource> sources{{"m.yaml", std::move(text), "/etc/penstock"}};
  return decode_manifests(sources);
}

std::string error_of(std::string text) {
  auto result = decode(std::move(text));
  return result.ok() ? "no error" : result.error().message;
}

constexpr const char* kPool = R"(
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llama, namespace: ai, labels: {team: x}}
spec:
  selector: {matchLabels: {app: vllm, tier: a}}
  targetPorts: [{number: 8000}, {number: 8001}]
  endpointPickerRef: {name: epp, port: {number: 9002}}
)";

TEST(Manifests, ReadAnInferencePool) {
  auto objects = decode(kPool);
  ASSERT_TRUE(objects.ok()) << objects.error().message;
  const InferencePool& pool = objects->pools.at(0);
  EXPECT_EQ(pool.meta.full_name(), "ai/llama");
  EXPECT_EQ(pool.target_ports, (std::vector<uint16_t>{8000, 8001}));
  EXPECT_EQ(pool.app_protocol, "");
  EXPECT_EQ(pool.endpoint_picker->port, 9002);
  EXPECT_FALSE(pool.endpoint_picker->fail_open);
  EXPECT_TRUE(pool.selects({{"app", "vllm"}, {"tier", "a"}, {"more", "x"}}));
  EXPECT_FALSE(pool.selects({{"app", "vllm"}}));
  EXPECT_EQ(objects->find_pool("ai", "llama"), &pool);
  EXPECT_EQ(objects->find_pool("default", "llama"), nullptr);
}

TEST(Manifests, ConvertTheLegacyPool) {
  auto objects = decode(R"(
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferencePool
metadata: {name: old}
spec:
  selector: {app: vllm}
  targetPortNumber: 8000
  extensionRef: {name: epp, failureMode: FailOpen}
)");
  ASSERT_TRUE(objects.ok()) << objects.error().message;
  const InferencePool& pool = objects->pools.at(0);
  EXPECT_EQ(pool.meta.ns, "default");
  EXPECT_EQ(pool.target_ports, std::vector<uint16_t>{8000});
  EXPECT_EQ(pool.selector.at("app"), "vllm");
  EXPECT_EQ(pool.endpoint_picker->port, 9002);
  EXPECT_TRUE(pool.endpoint_picker->fail_open);
  EXPECT_THAT(objects->warnings.at(0), HasSubstr("DEPRECATION"));
}

TEST(Manifests, ReadObjectivesAndRewritesOfBothGroups) {
  auto objects = decode(R"(
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {priority: -5, poolRef: {name: llama}}
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {name: plain}
spec: {poolRef: {name: llama}}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: split}
spec:
  poolRef: {name: llama}
  rules:
  - matches: [{model: {value: food}}, {model: {type: Exact, value: drinks}}]
    targets: [{modelRewrite: v1, weight: 90}, {modelRewrite: v2, weight: 10}]
  - targets: [{modelRewrite: base}]
  - matches: [{}]
    targets: [{modelRewrite: never}]
)");
  ASSERT_TRUE(objects.ok()) << objects.error().message;
  EXPECT_EQ(objects->objectives.at(0).priority, -5);
  EXPECT_FALSE(objects->objectives.at(1).priority.has_value());
  EXPECT_EQ(objects->objectives.at(1).pool.group, "inference.networking.k8s.io");
  const auto& rules = objects->rewrites.at(0).rules;
  EXPECT_EQ(rules[0].models, (std::vector<std::string>{"food", "drinks"}));
  EXPECT_EQ(rules[0].targets[1].weight, 10U);
  EXPECT_TRUE(rules[1].generic);
  EXPECT_FALSE(rules[1].targets[0].weight.has_value());
  EXPECT_FALSE(rules[2].generic);
  EXPECT_TRUE(rules[2].models.empty());
  EXPECT_LT(objects->objectives[0].meta.creation_order, objects->objectives[1].meta.creation_order);
}

TEST(Manifests, ReadGatewaysWithCertificatesBesideThem) {
  auto objects = decode(R"(
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: penstock
  listeners:
  - {name: http, port: 80, protocol: HTTP, hostname: "*.example.com", allowedRoutes: {namespaces: {from: All}}}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: site}]}}
)");
  ASSERT_TRUE(objects.ok()) << objects.error().message;
  const auto& listeners = objects->gateways.at(0).listeners;
  EXPECT_EQ(listeners[0].hostname, "*.example.com");
  EXPECT_EQ(listeners[0].routes_from, Gateway::RoutesFrom::kAll);
  EXPECT_EQ(listeners[1].protocol, Gateway::Protocol::kHttps);
  EXPECT_EQ(listeners[1].cert_file, "/etc/penstock/secrets/site/tls.crt");
  EXPECT_EQ(listeners[1].key_file, "/etc/penstock/secrets/site/tls.key");
}

TEST(Manifests, ReadHttpRoutes) {
  auto objects = decode(R"(
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r, namespace: ai}
spec:
  parentRefs: [{name: gw, sectionName: http}]
  hostnames: [llm.example.com]
  rules:
  - matches:
    - path: {type: Exact, value: /v1/models}
      method: GET
      headers: [{name: X-Gateway-Model-Name, value: llama}, {name: x-gateway-model-name, value: other}]
      queryParams: [{name: debug, value: "1"}]
    - path: {value: /v1}
    - path: {type: RegularExpression, value: "/v[12]/.*"}
    backendRefs:
    - {group: inference.networking.k8s.io, kind: InferencePool, name: llama, port: 99, weight: 9}
    - {name: plain, port: 8080, weight: 0}
    timeouts: {request: 1h30m, backendRequest: 10s}
  - {}
)");
  ASSERT_TRUE(objects.ok()) << objects.error().message;
  const HttpRoute& route = objects->routes.at(0);
  EXPECT_EQ(route.parents[0].ns, "ai");
  EXPECT_EQ(route.parents[0].section_name, "http");
  const HttpRoute::Rule& rule = route.rules[0];
  EXPECT_EQ(rule.matches[0].path_kind, HttpRoute::PathKind::kExact);
  ASSERT_EQ(rule.matches[0].headers.size(), 1U);
  EXPECT_EQ(rule.matches[0].headers[0].name, "x-gateway-model-name");
  EXPECT_EQ(rule.matches[0].headers[0].value, "llama");
  EXPECT_EQ(rule.matches[0].query_params[0].name, "debug");
  EXPECT_EQ(rule.matches[1].path_kind, HttpRoute::PathKind::kPrefix);
  EXPECT_EQ(rule.matches[2].path_kind, HttpRoute::PathKind::kRegex);
  EXPECT_EQ(rule.backends[0].kind, HttpRoute::BackendRef::Kind::kPool);
  EXPECT_EQ(rule.backends[0].weight, 9U);
  EXPECT_EQ(rule.backends[1].port, 8080);
  EXPECT_EQ(rule.backends[1].weight, 0U);
  EXPECT_EQ(rule.request_timeout, Duration(std::chrono::minutes(90)));
  EXPECT_EQ(route.rules[1].matches[0].path, "/");
}

TEST(Manifests, RefuseWhatTheyCannotDoByNameValueAndLine) {
  const auto route = [](const std::string& rule) {
    return error_of(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r}\nspec:\n  rules:\n" +
        rule);
  };
  EXPECT_EQ(
      route("  - filters:\n    - type: URLRewrite\n"),
      "m.yaml: HTTPRoute r: spec.rules[0].filters[0].type: filter \"URLRewrite\" is not supported by this "
      "build (line 7)");
  EXPECT_THAT(route("  - retry: {attempts: 1}\n"),
              HasSubstr("spec.rules[0]: unknown field \"retry\" (line 6)"));
  EXPECT_THAT(route("  - matches: [{path: {value: v1}}]\n"),
              HasSubstr("\"v1\" must start with '/' (line 6)"));
  EXPECT_THAT(route("  - matches: [{path: {value: /a//b}}]\n"), HasSubstr("must not contain"));
  EXPECT_THAT(route("  - matches: [{path: {value: \"/a b\"}}]\n"),
              HasSubstr("a character that a path can't"));
  EXPECT_THAT(route("  - matches: [{method: get}]\n"), HasSubstr("\"get\" is not a method"));
  EXPECT_THAT(route("  - backendRefs: [{name: s}]\n"),
              HasSubstr("backendRefs[0].port: is required for a Service"));
  EXPECT_THAT(route("  - backendRefs: [{kind: Bucket, name: s}]\n"),
              HasSubstr("\"/Bucket\" is not supported"));
  EXPECT_THAT(route("  - backendRefs: [{name: s, port: 1, weight: -1}]\n"),
              HasSubstr("weight: -1 is not in"));
  EXPECT_THAT(route("  - timeouts: {request: 1.5s}\n"), HasSubstr("\"1.5s\" is not a duration"));
  EXPECT_THAT(route("  - timeouts: {request: 1s, backendRequest: 2s}\n"), HasSubstr("must not be longer"));
}

TEST(Manifests, RefuseInvalidPools) {
  EXPECT_THAT(
      error_of("apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: p}\n"
               "spec: {selector: {matchLabels: {a: b}}, targetPorts: [{number: 8000}, {number: 8000}], "
               "appProtocol: grpc, endpointPickerRef: {name: x}}\n"),
      testing::AllOf(HasSubstr("port number must be unique"), HasSubstr("\"grpc\" is neither"),
                     HasSubstr("port is required when kind is 'Service'")));
  EXPECT_THAT(
      error_of("apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: p}\n"
               "spec: {}\n"),
      testing::AllOf(HasSubstr("spec.selector: 1 to 64 labels"), HasSubstr("spec.targetPorts: 1 to 8")));
  EXPECT_THAT(
      error_of(
          "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: P_q, x: 1}\n"
          "bogus: 1\n"),
      testing::AllOf(HasSubstr("\"P_q\" is not an object name"), HasSubstr("metadata: unknown field \"x\""),
                     HasSubstr("unknown field \"bogus\""), HasSubstr("spec: is required")));
}

TEST(Manifests, RefuseConflictingListeners) {
  EXPECT_THAT(
      error_of(R"(
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: penstock
  listeners:
  - {name: a, port: 80, protocol: HTTP}
  - {name: a, port: 80, protocol: HTTP}
  - {name: c, port: 80, protocol: HTTPS, tls: {mode: Passthrough}}
  - {name: d, port: 81, protocol: TCP, allowedRoutes: {namespaces: {from: Selector}}}
)"),
      testing::AllOf(HasSubstr("\"a\" is given twice"), HasSubstr("given twice (line 9)"),
                     HasSubstr("already speaks the other protocol"), HasSubstr("\"Passthrough\""),
                     HasSubstr("\"TCP\" is not supported"), HasSubstr("\"Selector\" is not supported")));
}

TEST(Manifests, WarnOfKindsNobodyReadsAndExpandLists) {
  auto objects = decode(std::string("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n---\n") +
                        "apiVersion: v1\nkind: List\nitems:\n- apiVersion: llm-d.ai/v1alpha2\n"
                        "  kind: InferenceObjective\n  metadata: {name: o}\n  spec: {poolRef: {name: p}}\n");
  ASSERT_TRUE(objects.ok()) << objects.error().message;
  EXPECT_EQ(objects->warnings.at(0), "m.yaml: apps/v1 Deployment is not read (line 1)");
  EXPECT_EQ(objects->objectives.size(), 1U);
  EXPECT_THAT(error_of("kind: InferencePool\n"), HasSubstr("apiVersion and kind are required"));
  EXPECT_THAT(error_of(std::string(kPool) + "---" + kPool), HasSubstr("is defined twice"));
}

TEST(Manifests, LoadAFolderInTheOrderOfItsFileNames) {
  const TemporaryFolder folder;
  const auto objective = [](const std::string& name) {
    return "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: " + name +
           "}\nspec: {poolRef: {name: p}}\n";
  };
  folder.write("20.yaml", objective("c"));
  folder.write("10.yml", objective("a") + "---\n" + objective("b"));
  folder.write("notes.txt", "not: [a manifest");
  auto objects = load_manifests(folder.path());
  ASSERT_TRUE(objects.ok()) << objects.error().message;
  ASSERT_EQ(objects->objectives.size(), 3U);
  EXPECT_EQ(objects->objectives[0].meta.name, "a");
  EXPECT_EQ(objects->objectives[2].meta.name, "c");
  EXPECT_FALSE(load_manifests("/nonexistent").ok());
}

TEST(GatewayDuration, FollowsGep2257) {
  EXPECT_EQ(*parse_gateway_duration("10s30m1h"), Duration(std::chrono::seconds(5410)));
  EXPECT_EQ(*parse_gateway_duration("0s"), Duration(0));
  EXPECT_EQ(*parse_gateway_duration("500ms"), Duration(std::chrono::milliseconds(500)));
  for (const char* bad : {"", "0", "1.5h", "1us", "1ns", "-1s", "123456s", "1s1s1s1s1s", "s"}) {
    EXPECT_FALSE(parse_gateway_duration(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace penstock::config
