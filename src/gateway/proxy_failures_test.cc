#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>

#include "gateway/proxy_test_support.h"

namespace penstock::gateway {
namespace {

using namespace testing;

TEST_F(ProxyTest, ARefusedConnectionMeansAnotherEndpoint) {
  uint16_t closed = 0;
  {
    closed = ScriptedEngine([](Connection&, const Message&) { return false; }).port();
  }
  add_endpoint(closed);
  add_engine(echo_ok);
  start();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(exchange(post(kBody)).status(), 200);
  EXPECT_EQ(engines[0]->requests(), 5);
  // After the first failure it is left alone for a while, in spite of its short queue.
  EXPECT_NE(members.snapshot()->endpoints[0]->live->ejected_until_ns, 0);
  EXPECT_EQ(pool.metrics.ejections.with({"pool", "connect"}).value(), 1U);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, WhenNobodyCanBeReachedTheClientGetsA502) {
  uint16_t closed = 0;
  {
    closed = ScriptedEngine([](Connection&, const Message&) { return false; }).port();
  }
  add_endpoint(closed);
  start();
  const Message got = exchange(post(kBody));
  EXPECT_EQ(got.status(), 502);
  EXPECT_NE(got.body.find("\"error\""), std::string::npos);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, A503IsTriedElsewhereAndPassedOnWhenEveryoneSaysIt) {
  const auto busy = [](Connection& to, const Message&) {
    return to.send(answer(503, R"({"busy":1})", "retry-after: 2\r\n"));
  };
  add_engine(busy);
  add_engine(echo_ok);
  start();
  EXPECT_EQ(exchange(post(kBody)).status(), 200);
  EXPECT_EQ(engines[0]->requests(), 1);
  EXPECT_EQ(engines[1]->requests(), 1);
  discovered.pop_back();
  members.apply("test", discovered);
  const Message got = exchange(post(kBody));
  EXPECT_EQ(got.status(), 503);
  EXPECT_EQ(got.body, R"({"busy":1})");
  EXPECT_EQ(got.field("retry-after"), "2");
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, AtMostThreeAttemptsAreMade) {
  for (int i = 0; i < 5; ++i) {
    add_engine([](Connection& to, const Message&) { return to.send(answer(503, "{}")); });
  }
  start();
  EXPECT_EQ(exchange(post(kBody)).status(), 503);
  int requests = 0;
  for (const auto& engine : engines) requests += engine->requests();
  EXPECT_EQ(requests, 3);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, AnIdleConnectionThatTheEngineClosedCostsOneFreshOneAndNoError) {
  std::atomic<int> served{0};
  add_engine([&](Connection& to, const Message& request) {
    // The second request on a connection is never read: it is closed as soon as it comes.
    if (served++ % 2 == 1) {
      to.reset();
      return false;
    }
    return echo_ok(to, request);
  });
  start();
  EXPECT_EQ(exchange(post(kBody)).status(), 200);
  EXPECT_EQ(exchange(post(kBody)).status(), 200);
  EXPECT_EQ(engines[0]->connections(), 2);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, AnEngineThatDiesBeforeAnsweringIsA502AndNotAskedTwice) {
  add_engine([](Connection& to, const Message&) {
    to.reset();
    return false;
  });
  add_engine(echo_ok);
  start();
  EXPECT_EQ(exchange(post(kBody)).status(), 502);
  EXPECT_EQ(engines[0]->requests(), 1);
  EXPECT_EQ(engines[1]->requests(), 0);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, AnEngineThatDiesBetweenHeadAndBodyIsA502AndNotAskedTwice) {
  keep_access_log();
  add_engine([](Connection& to, const Message& request) {
    to.send(request.field("x-request-id") == "chunked"
                ? "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
                : "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n");
    to.close();
    return false;
  });
  add_engine(echo_ok);
  start();
  for (const char* id : {"length", "chunked"}) {
    bool complete = false;
    const Message got = exchange(post(kBody, std::string("x-request-id: ") + id + "\r\n"), &complete);
    EXPECT_EQ(got.status(), 502);
    EXPECT_TRUE(complete);
    EXPECT_NE(got.body.find("\"error\""), std::string::npos) << got.body;
    EXPECT_NE(logged(id).find(R"("status":502)"), std::string::npos) << logged(id);
    EXPECT_NE(logged(id).find(R"("reason":"engine_died")"), std::string::npos) << logged(id);
  }
  EXPECT_EQ(engines[0]->requests(), 2);
  EXPECT_EQ(engines[1]->requests(), 0);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, AnEngineThatFallsSilentBetweenHeadAndBodyIsA504) {
  upstream.deadlines.idle = std::chrono::milliseconds(50);
  add_engine([](Connection& to, const Message&) {
    to.send("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n");
    return !to.peer_closed();
  });
  start();
  EXPECT_EQ(exchange(post(kBody)).status(), 504);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, AnEngineThatDiesInsideAStreamLeavesAnErrorEventAndNoRetry) {
  add_engine([](Connection& to, const Message&) {
    to.send(std::string(kSseHead) + chunk("data: {\"a\":1}\n\n"));
    to.reset();
    return false;
  });
  add_engine(echo_ok);
  start();
  bool complete = false;
  const Message got = exchange(post(kBody), &complete);
  EXPECT_EQ(got.status(), 200);
  EXPECT_TRUE(complete);
  EXPECT_NE(got.body.find("\"error\""), std::string::npos) << got.body;
  EXPECT_EQ(engines[1]->requests(), 0);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, AStreamCutInsideAnEventEndsWithTheErrorEventAlone) {
  keep_access_log();
  add_engine([](Connection& to, const Message&) {
    to.send(std::string(kSseHead) + chunk("data: {\"a\":1}\n\n") + chunk("data: {\"id\":\"chatcmpl-4a26"));
    to.reset();
    return false;
  });
  start();
  bool complete = false;
  const Message got = exchange(post(kBody, "x-request-id: cut\r\n"), &complete);
  EXPECT_TRUE(complete);
  constexpr std::string_view kBefore = "data: {\"a\":1}\n\ndata: {\"error\":";
  EXPECT_TRUE(got.body.empty() || got.body.starts_with(kBefore) || got.body.starts_with("data: {\"error\":"))
      << got.body;
  EXPECT_TRUE(got.body.ends_with("}\n\n")) << got.body;
  EXPECT_EQ(got.body.find("chatcmpl"), std::string::npos) << got.body;
  EXPECT_NE(logged("cut").find(R"("reason":"engine_died")"), std::string::npos);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, AnEngineThatPromisesMoreThanItSendsBreaksTheAnswerOff) {
  add_engine([](Connection& to, const Message&) {
    to.send("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"a\":");
    return false;
  });
  start();
  bool complete = true;
  const Message got = exchange(post(kBody), &complete);
  EXPECT_EQ(got.status(), 200);
  EXPECT_FALSE(complete);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, BothFramingsInOneAnswerAreRefused) {
  add_engine([](Connection& to, const Message&) {
    to.send(
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    return true;
  });
  start();
  EXPECT_EQ(exchange(post(kBody)).status(), 502);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, AnEngineThatNeverAnswersEndsWithA504) {
  upstream.deadlines.first_byte = std::chrono::milliseconds(50);
  add_engine([](Connection& to, const Message&) { return !to.peer_closed(); });
  start();
  const Message got = exchange(post(kBody));
  EXPECT_EQ(got.status(), 504);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, TheTotalDeadlineIsNotPutOffByBytes) {
  upstream.deadlines.total = std::chrono::milliseconds(100);
  add_engine([](Connection& to, const Message&) {
    to.send(kSseHead);
    pollfd end{to.fd(), POLLIN, 0};
    while (to.send(chunk("data: {\"a\":1}\n\n")) && ::poll(&end, 1, 5) == 0) {
    }
    return false;
  });
  start();
  const Message got = exchange(post(kBody));
  EXPECT_NE(got.body.find("deadline"), std::string::npos) << got.body;
  EXPECT_TRUE(at_rest());
}

// Asks what nobody ever answers.
class AsksForever final : public DataProducer, public AskingProducer {
 public:
  struct Unanswered final : Question {};
  bool asks() const override { return true; }
  std::shared_ptr<Question> ask(SchedulingContext&) const override { return std::make_shared<Unanswered>(); }
  Status produce(SchedulingContext&) const override { return {}; }
};

TEST_F(ProxyTest, TheTotalDeadlineCountsTheTimeThatADecisionWaitsForAnAnswer) {
  upstream.deadlines.total = std::chrono::milliseconds(50);
  policy.policy->asking.push_back(policy.add<AsksForever>("asks"));
  add_engine(echo_ok);
  start();
  const Message got = exchange(post(kBody));
  EXPECT_EQ(got.status(), 504);
  EXPECT_NE(got.body.find("deadline"), std::string::npos) << got.body;
  EXPECT_EQ(engines[0]->requests(), 0);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, StatusHeadersAndBodyOfAnEnginesErrorPassUnchanged) {
  const std::string body = R"({"error":{"message":")" + std::string(3000, 'e') + R"("}})";
  add_engine([&](Connection& to, const Message&) {
    return to.send(answer(400, body, "retry-after: 7\r\nset-cookie: a\r\n"));
  });
  start();
  const Message got = exchange(post(kBody));
  EXPECT_EQ(got.status(), 400);
  EXPECT_EQ(got.body, body);
  EXPECT_EQ(got.field("retry-after"), "7");
  EXPECT_EQ(got.field("set-cookie"), "a");
  EXPECT_TRUE(at_rest());
}

}  // namespace
}  // namespace penstock::gateway
