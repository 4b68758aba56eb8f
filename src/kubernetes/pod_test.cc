#include "kubernetes/pod.h"

#include <gtest/gtest.h>

#include "config/manifests.h"
#include "kubernetes/testing.h"

namespace penstock::kubernetes {
namespace {

Result<PodRecord> pod_of(std::string_view text) {
  JsonDocument document;
  const auto json = document.parse(text);
  EXPECT_TRUE(json.ok()) << text;
  return decode_pod(*json);
}

std::vector<size_t> ranks(std::optional<std::string> annotation) {
  PodRecord pod;
  pod.active_ports = std::move(annotation);
  static constexpr uint16_t kPorts[] = {8000, 8001, 8002};
  return active_ranks(pod, kPorts);
}

using Ranks = std::vector<size_t>;

TEST(Pod, ARecordedReadyPodServes) {
  JsonDocument document;
  const testing::Recorded list = testing::recorded("list-pods-ready.http");
  const auto json = document.parse(list.body);
  ASSERT_TRUE(json.ok());
  std::vector<PodRecord> pods;
  (*json)["items"].for_each_item([&](Json item) { pods.push_back(*decode_pod(item)); });
  ASSERT_EQ(pods.size(), 1U);
  EXPECT_TRUE(pods[0].serves());
  EXPECT_EQ(pods[0].ip, "10.244.1.3");
  EXPECT_EQ(pods[0].labels.find("app"), "echo");
  EXPECT_FALSE(pods[0].active_ports.has_value());
}

TEST(Pod, ReadyMeansTheFirstReadyConditionAndNoDeletion) {
  const auto serves = [](const std::string& metadata, const std::string& status) {
    return pod_of("{\"metadata\":{\"name\":\"p\"" + metadata + "},\"status\":{" + status + "}}")->serves();
  };
  const std::string ready = R"("podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True"}])";
  EXPECT_TRUE(serves("", ready));
  EXPECT_FALSE(serves(R"(,"deletionTimestamp":"2026-01-01T00:00:00Z")", ready));
  EXPECT_FALSE(serves("", R"("podIP":"10.0.0.1")"));
  EXPECT_FALSE(serves(
      "",
      R"("podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"False"},{"type":"Ready","status":"True"}])"));
  // Evicted: the address is taken away.
  EXPECT_FALSE(
      serves("", R"("phase":"Failed","podIP":null,"conditions":[{"type":"Ready","status":"True"}])"));
  EXPECT_TRUE(serves("", R"("podIP":"fd00::1","conditions":[{"type":"Ready","status":"True"}])"));
  EXPECT_FALSE(pod_of(R"({"metadata":{"name":"p"},"status":{"podIP":"example.org"}})").ok());
  EXPECT_FALSE(pod_of(R"({"status":{}})").ok());
}

TEST(Pod, ActivePortsAreReadAsTheReferenceDoes) {
  EXPECT_EQ(ranks(std::nullopt), (Ranks{0, 1, 2}));
  EXPECT_EQ(ranks(""), Ranks{});
  EXPECT_EQ(ranks("8000"), (Ranks{0}));
  EXPECT_EQ(ranks("8000, 8001 , 8002"), (Ranks{0, 1, 2}));
  EXPECT_EQ(ranks("8000,invalid,8002"), (Ranks{0, 2}));
  EXPECT_EQ(ranks("8000,-1,8002"), (Ranks{0, 2}));
  EXPECT_EQ(ranks("8000,9000"), (Ranks{0}));
  EXPECT_EQ(ranks("8000,8001,8000"), (Ranks{0, 1}));
  EXPECT_EQ(ranks("8000abc"), (Ranks{0}));
  EXPECT_EQ(ranks("8001"), (Ranks{1}));
}

TEST(Pod, TheNewAnnotationGoesBeforeTheOld) {
  const auto pod =
      pod_of(R"({"metadata":{"name":"p","annotations":{"inference.networking.k8s.io/active-ports":"1",
                              "llm-d.ai/active-ports":"2"}}})");
  EXPECT_EQ(pod->active_ports, "2");
  const auto old =
      pod_of(R"({"metadata":{"name":"p","annotations":{"inference.networking.k8s.io/active-ports":"1"}}})");
  EXPECT_EQ(old->active_ports, "1");
}

TEST(Pod, ARecordOfAnOrdinaryPodIsSmall) {
  PodRecord pod;
  for (int i = 0; i < 16; ++i)
    pod.labels.add("app.kubernetes.io/a-label-number-" + std::to_string(i), "with-a-value-of-some-length");
  EXPECT_EQ(pod.labels.find("app.kubernetes.io/a-label-number-15"), "with-a-value-of-some-length");
  EXPECT_LT(sizeof(PodRecord) + pod.labels.bytes(), 2048U);
}

TEST(LabelSelector, IsCheckedAsKubectlTakesIt) {
  for (const char* good :
       {"app=vllm", "app==vllm", "app!=vllm", "app", "!app", "a.b/c=d", "app=", "env in (a,b)",
        "env notin (a)", "app=vllm,env in (a, b),!canary", " app = vllm "}) {
    EXPECT_TRUE(check_label_selector(good).ok()) << good;
  }
  for (const char* bad :
       {"", "app=vllm,", "=x", "env in a", "env within (a)", "app=a b", "-app", "app=(x)", "app=vllm;x"}) {
    EXPECT_FALSE(check_label_selector(bad).ok()) << bad;
  }
  EXPECT_EQ(selector_text({{"app", "vllm"}, {"env", ""}}), "app=vllm,env=");
}

config::Node node_of(const std::string& name) {
  JsonDocument document;
  const testing::Recorded answer = testing::recorded(name);
  const auto json = document.parse(answer.body);
  EXPECT_TRUE(json.ok());
  return json->to_node();
}

TEST(ClusterObjects, RecordedOnesAreRead) {
  const auto pool = config::decode_cluster_pool(node_of("create-inferencepool-201.http"), false);
  ASSERT_TRUE(pool.ok()) << pool.error().message;
  EXPECT_EQ(pool->meta.full_name(), "vec/pool");
  EXPECT_EQ(pool->selector.at("app"), "vllm");
  EXPECT_EQ(pool->target_ports, std::vector<uint16_t>{8000});
  EXPECT_EQ(pool->app_protocol, "http");
  const auto objective = config::decode_cluster_objective(node_of("create-inferenceobjective-201.http"));
  ASSERT_TRUE(objective.ok()) << objective.error().message;
  EXPECT_TRUE(objective->priority.has_value());
  const auto rewrite = config::decode_cluster_rewrite(node_of("create-inferencemodelrewrite-201.http"));
  ASSERT_TRUE(rewrite.ok()) << rewrite.error().message;
  ASSERT_EQ(rewrite->rules.size(), 1U);
  EXPECT_EQ(rewrite->rules[0].targets[0].weight, 90U);
}

TEST(ClusterObjects, UnknownFieldsAreNoErrorsAndWrongOnesAre) {
  const auto decode = [](const std::string& spec) {
    JsonDocument document;
    const std::string text =
        R"({"metadata":{"name":"llama","namespace":"a","shiny":1},"surprise":{},"spec":)" + spec + "}";
    const auto json = document.parse(text);
    EXPECT_TRUE(json.ok()) << text;
    return config::decode_cluster_pool(json->to_node(), false);
  };
  EXPECT_TRUE(
      decode(
          R"({"selector":{"matchLabels":{"a":"b"},"new":1},"targetPorts":[{"number":1,"name":"x"}],"later":[]})")
          .ok());
  const auto bad = decode(R"({"selector":{"matchLabels":{"a":"b"}},"targetPorts":[{"number":70000}]})");
  ASSERT_FALSE(bad.ok());
  EXPECT_TRUE(bad.error().message.starts_with("InferencePool llama: spec.targetPorts[0]"))
      << bad.error().message;
  EXPECT_FALSE(decode("null").ok());
  EXPECT_FALSE(decode("7").ok());
}

}  // namespace
}  // namespace penstock::kubernetes
