#include "kubernetes/api_client.h"

#include <gtest/gtest.h>

#include "base/temporary_folder.h"
#include "kubernetes/testing.h"

namespace penstock::kubernetes {
namespace {

using testing::FakeAnswer;
using testing::FakeServer;
using testing::recorded;
using testing::with_client;

FakeAnswer from_recording(const std::string& name) {
  const testing::Recorded answer = recorded(name);
  return {answer.status, answer.body};
}

TEST(ApiClient, AsksAsTheApiNamesThings) {
  FakeServer server([](const FakeServer::Request&) { return FakeAnswer(200, "{}"); });
  ClusterConfig config = server.config();
  config.token = "secret";
  config.path_prefix = "/k8s/c1";
  with_client(config, [](ApiClient& api) -> io::Task<void> {
    EXPECT_TRUE((co_await api.get(kInferencePools, "models", "llama")).ok());
    ListQuery query;
    query.label_selector = "app=vllm,env in (a,b)";
    query.limit = 2;
    query.metadata_only = true;
    EXPECT_TRUE((co_await api.list(kPods, "models", query)).ok());
    ListQuery next;
    next.continue_token = "a+b";
    next.resource_version = "7";
    EXPECT_TRUE((co_await api.list(kPods, "", next)).ok());
    EXPECT_TRUE((co_await api.create_object(kEvents, "models", "{\"a\":1}")).ok());
    EXPECT_TRUE((co_await api.replace(kLeases, "models", "l", "", "{}")).ok());
    EXPECT_TRUE((co_await api.patch(kObjectives, "models", "o", "status", PatchType::kMerge, "{}")).ok());
    EXPECT_TRUE(
        (co_await api.patch(kObjectives, "models", "o", "status", PatchType::kApply, "{}", "penstock", true))
            .ok());
    EXPECT_TRUE((co_await api.remove(kLeases, "models", "l")).ok());
  });
  const auto asked = server.requests();
  ASSERT_EQ(asked.size(), 8U);
  EXPECT_EQ(asked[0].target,
            "/k8s/c1/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools/llama");
  EXPECT_EQ(asked[0].authorization, "Bearer secret");
  EXPECT_EQ(
      asked[1].target,
      "/k8s/c1/api/v1/namespaces/models/pods?labelSelector=app%3Dvllm%2Cenv%20in%20%28a%2Cb%29&limit=2");
  EXPECT_EQ(asked[1].accept, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
  EXPECT_EQ(asked[2].target, "/k8s/c1/api/v1/pods?continue=a%2Bb");
  EXPECT_EQ(asked[3].method + " " + asked[3].body + " " + asked[3].content_type,
            "POST {\"a\":1} application/json");
  EXPECT_EQ(asked[4].method, "PUT");
  EXPECT_EQ(asked[5].content_type, "application/merge-patch+json");
  EXPECT_EQ(asked[6].content_type, "application/apply-patch+yaml");
  EXPECT_TRUE(asked[6].target.ends_with("/inferenceobjectives/o/status?fieldManager=penstock&force=true"));
  EXPECT_EQ(asked[7].method, "DELETE");
}

TEST(ApiClient, ARefusalNamesVerbResourceAndNamespace) {
  FakeServer server(
      [](const FakeServer::Request&) { return from_recording("list-403-serviceaccount.http"); });
  with_client(server.config(), [](ApiClient& api) -> io::Task<void> {
    const ListQuery query;
    const Answer answer = co_await api.list(kInferencePools, "models", query);
    EXPECT_EQ(answer.failure.reason, Reason::kForbidden);
    EXPECT_TRUE(answer.failure.message.starts_with(
        "forbidden: list inferencepools.inference.networking.k8s.io in namespace \"models\": "))
        << answer.failure.message;
  });
}

TEST(ApiClient, ATokenFileIsReadAgainWhenTheServerRefusesIt) {
  const TemporaryFolder folder;
  const std::string token = folder.write("token", "old\n");
  // The kubelet replaces the token between the two requests.
  FakeServer server([&](const FakeServer::Request& request) {
    if (request.authorization == "Bearer new") return FakeAnswer(200, "{}");
    folder.write("token", "new\n");
    return from_recording("get-401.http");
  });
  ClusterConfig config = server.config();
  config.token_file = token;
  with_client(config, [&](ApiClient& api) -> io::Task<void> {
    // Within a second of its reading a token is not read again.
    Answer answer;
    const TimePoint until = SystemClock().now() + std::chrono::seconds(10);
    do {
      answer = co_await api.get(kPods, "a", "b");
    } while (!answer.ok() && SystemClock().now() < until);
    EXPECT_TRUE(answer.ok()) << answer.failure.message;
  });
  EXPECT_EQ(server.requests().front().authorization, "Bearer old");
}

TEST(ApiClient, NobodyThereIsUnreachable) {
  ClusterConfig config;
  {
    FakeServer server([](const FakeServer::Request&) { return FakeAnswer(200, "{}"); });
    config = server.config();
  }
  with_client(config, [](ApiClient& api) -> io::Task<void> {
    const Answer answer = co_await api.get(kPods, "a", "b");
    EXPECT_EQ(answer.failure.reason, Reason::kUnreachable);
    EXPECT_TRUE(answer.failure.message.starts_with("unreachable: get pods \"b\" in namespace \"a\": "));
  });
}

TEST(ApiClient, AnUpdateThatOthersWereFasterWithIsMadeAgain) {
  int puts = 0;
  FakeServer server([&](const FakeServer::Request& request) {
    if (request.method == "GET")
      return FakeAnswer(200, "{\"metadata\":{\"resourceVersion\":\"" + std::to_string(puts) + "\"}}");
    return ++puts < 3 ? from_recording("put-httproute-status-409-stale.http") : FakeAnswer(200, request.body);
  });
  with_client(server.config(), [](ApiClient& api) -> io::Task<void> {
    ApiClient::Change change = [](Json object) -> Result<std::string> {
      return "v" + std::string(object["metadata"]["resourceVersion"].text());
    };
    const Answer answer = co_await api.update(kObjectives, "a", "b", "status", change);
    EXPECT_TRUE(answer.ok()) << answer.failure.message;
    EXPECT_EQ(answer.body, "v2");
    ApiClient::Change nothing = [](Json) -> Result<std::string> { return std::string(); };
    EXPECT_TRUE((co_await api.update(kObjectives, "a", "b", "status", nothing)).ok());
  });
  EXPECT_EQ(puts, 3);
}

class Collecting final : public WatchListener {
 public:
  bool on_event(const WatchEvent& event) override {
    seen.push_back(std::string(event.object["metadata"]["name"].text()));
    return seen.size() < stop_after;
  }
  void on_batch_end() override { ++batches; }
  void on_heard() override {}
  std::vector<std::string> seen;
  size_t stop_after = 1000;
  int batches = 0;
};

WatchQuery patient() {
  WatchQuery query;
  query.silence = std::chrono::seconds(20);
  return query;
}

TEST(ApiClient, AWatchGivesEventsUntilItEnds) {
  const std::string body = testing::vector_text("watchlist-sendInitialEvents.jsonl");
  FakeServer server([&](const FakeServer::Request&) {
    return FakeAnswer::stream({body.substr(0, 100), body.substr(100, 900), body.substr(1000)});
  });
  with_client(server.config(), [](ApiClient& api) -> io::Task<void> {
    Collecting events;
    WatchQuery query = patient();
    query.resource_version = "5";
    query.send_initial_events = true;
    const Failure end = co_await api.watch(kPods, "a", query, events, {});
    EXPECT_TRUE(end.ok()) << end.message;
    EXPECT_EQ(events.seen, (std::vector<std::string>{"rt", "rt2", ""}));
    events.seen.clear();
    events.stop_after = 1;
    EXPECT_TRUE((co_await api.watch(kPods, "a", query, events, {})).ok());
    EXPECT_EQ(events.seen.size(), 1U);
  });
  EXPECT_EQ(
      server.requests().front().target,
      "/api/v1/namespaces/a/pods?watch=1&allowWatchBookmarks=true&resourceVersion=5&sendInitialEvents=true&"
      "resourceVersionMatch=NotOlderThan&timeoutSeconds=300");
}

TEST(ApiClient, AWatchThatIsTooOldIsCutOrStallsSaysWhich) {
  FakeServer server([](const FakeServer::Request& request) {
    if (request.target.find("/expired/") != std::string::npos)
      return FakeAnswer::stream({recorded("watch-410-too-old.http").body});
    if (request.target.find("/gone/") != std::string::npos) return from_recording("list-exact-410.http");
    FakeAnswer answer = FakeAnswer::stream({"{\"type\":\"AD"});
    answer.cut = request.target.find("/cut/") != std::string::npos;
    answer.held = !answer.cut;
    return answer;
  });
  with_client(server.config(), [](ApiClient& api) -> io::Task<void> {
    Collecting events;
    WatchQuery query = patient();
    EXPECT_EQ((co_await api.watch(kPods, "expired", query, events, {})).reason, Reason::kExpired);
    EXPECT_EQ((co_await api.watch(kPods, "gone", query, events, {})).reason, Reason::kExpired);
    EXPECT_EQ((co_await api.watch(kPods, "cut", query, events, {})).reason, Reason::kUnreachable);
    query.silence = std::chrono::milliseconds(50);
    const Failure stalled = co_await api.watch(kPods, "stalled", query, events, {});
    EXPECT_EQ(stalled.reason, Reason::kTimeout);
    EXPECT_NE(stalled.message.find("silent"), std::string::npos) << stalled.message;
  });
}

TEST(ApiClient, AnAnswerBeyondTheBoundIsRefused) {
  FakeServer server([](const FakeServer::Request&) { return FakeAnswer(200, std::string(5000, ' ')); });
  ApiClientOptions options;
  options.max_body_bytes = 1000;
  with_client(
      server.config(),
      [](ApiClient& api) -> io::Task<void> {
        const Answer answer = co_await api.get(kPods, "a", "b");
        EXPECT_FALSE(answer.ok());
      },
      options);
}

}  // namespace
}  // namespace penstock::kubernetes
