#include "kubernetes/condition_writer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kubernetes/testing.h"

namespace penstock::kubernetes {
namespace {

using testing::FakeAnswer;
using testing::FakeServer;

std::string object(std::string_view condition = "") {
  return fmt::format(
      R"({{"metadata":{{"name":"o","namespace":"a","uid":"u1","resourceVersion":"7","generation":2}},)"
      R"("status":{{"conditions":[{{"type":"Ready","status":"Unknown"}}{}{}]}}}})",
      condition.empty() ? "" : ",", condition);
}

// Runs the writer on the versions of one object until the server was asked so often, or has been quiet since.
std::vector<FakeServer::Request> writes(const std::vector<std::pair<std::string, Acceptance>>& versions,
                                        size_t expected, const FakeServer::Script& script) {
  FakeServer server(script);
  testing::with_client(server.config(), [&](ApiClient& api) -> io::Task<void> {
    ConditionWriter writer(api, [] { return true; });
    for (const auto& [text, acceptance] : versions) {
      JsonDocument document;
      const auto json = document.parse(text);
      EXPECT_TRUE(json.ok()) << text;
      if (!json.ok()) co_return;
      writer.want(kObjectives, "a", *json, acceptance);
    }
    io::CancelSource stop;
    bool ended = false;
    const auto run = [](ConditionWriter& w, io::CancelToken token, bool& over) -> io::Task<void> {
      co_await w.run(token);
      over = true;
    };
    io::spawn(api.loop(), run(writer, stop.token(), ended));
    const TimePoint deadline = api.loop().now() + std::chrono::seconds(10);
    while (server.count() < expected && api.loop().now() < deadline)
      (void)co_await api.loop().sleep(std::chrono::milliseconds(1));
    stop.cancel();
    while (!ended) (void)co_await api.loop().sleep(std::chrono::milliseconds(1));
  });
  return server.requests();
}

FakeAnswer fine(const FakeServer::Request&) {
  return {200, "{}"};
}

TEST(ConditionWriter, AppliesTheConditionWithItsGeneration) {
  const auto asked = writes({{object(), Acceptance()}}, 1, fine);
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(asked[0].method, "PATCH");
  EXPECT_EQ(
      asked[0].target,
      "/apis/llm-d.ai/v1alpha2/namespaces/a/inferenceobjectives/o/status?fieldManager=penstock&force=true");
  EXPECT_NE(asked[0].body.find(R"("type":"Accepted","status":"True","reason":"Accepted","message":"",)"
                               R"("observedGeneration":2,)"),
            std::string::npos)
      << asked[0].body;
}

TEST(ConditionWriter, WhatTheObjectSaysAlreadyIsNotWritten) {
  const std::string same =
      R"({"type":"Accepted","status":"True","reason":"Accepted","message":"","observedGeneration":2})";
  EXPECT_TRUE(writes({{object(same), Acceptance()}}, 0, fine).empty());
  // Somebody else wrote it before we came to it.
  EXPECT_TRUE(writes({{object(), Acceptance()}, {object(same), Acceptance()}}, 0, fine).empty());
}

TEST(ConditionWriter, TheTimeOfAStatusThatStaysIsKept) {
  const std::string older =
      R"({"type":"Accepted","status":"True","reason":"Accepted","message":"","observedGeneration":1,)"
      R"("lastTransitionTime":"2026-01-01T00:00:00Z"})";
  const auto asked = writes({{object(older), Acceptance()}}, 1, fine);
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_NE(asked[0].body.find("\"lastTransitionTime\":\"2026-01-01T00:00:00Z\""), std::string::npos);
}

TEST(ConditionWriter, WhatIsNotAcceptedIsAnEventTooOnce) {
  const Acceptance bad{false, "Invalid", "spec.priority: \"x\" is no number"};
  const auto asked = writes({{object(), bad}, {object(), bad}}, 2, fine);
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_NE(asked[0].body.find(R"("status":"False","reason":"Invalid")"), std::string::npos);
  EXPECT_EQ(asked[1].target, "/api/v1/namespaces/a/events");
  EXPECT_NE(
      asked[1].body.find(R"("involvedObject":{"apiVersion":"llm-d.ai/v1alpha2","kind":"InferenceObjective",)"
                         R"("name":"o","namespace":"a","uid":"u1")"),
      std::string::npos)
      << asked[1].body;
}

TEST(ConditionWriter, AWriteThatFailsIsMadeAgain) {
  int n = 0;
  const auto asked = writes({{object(), Acceptance()}}, 2, [&](const FakeServer::Request&) {
    return ++n == 1 ? FakeAnswer(503, "away") : FakeAnswer(200, "{}");
  });
  EXPECT_EQ(asked.size(), 2U);
}

}  // namespace
}  // namespace penstock::kubernetes
