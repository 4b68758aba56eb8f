#include <gtest/gtest.h>

#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "director/testing.h"
#include "gateway/gateway.h"
#include "gateway/testing.h"

namespace penstock::gateway {
namespace {

using namespace testing;
using director::testing::TestPolicy;

constexpr std::string_view kBody = R"({"model":"m","prompt":"hello"})";

std::string post(std::string_view body, std::string_view fields = "",
                 std::string_view path = "/v1/completions") {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nhost: gw\r\ncontent-type: application/json\r\ncontent-length: " +
         std::to_string(body.size()) + "\r\n" + std::string(fields) + "\r\n" + std::string(body);
}

class ProxyTest : public ::testing::Test {
 protected:
  ~ProxyTest() override {
    if (gateway != nullptr) gateway->stop(Duration::zero());
    loops.stop(std::chrono::seconds(5));
    gateway.reset();
    std::fclose(access_log_file);
  }
  void keep_access_log() {
    access_log = std::make_unique<director::AccessLog>(
        director::AccessLog::Options{.loops = 1, .fd = ::fileno(access_log_file)});
  }
  // The access log's line of a request, which ended before.
  std::string logged(std::string_view request_id) {
    const std::string mark = "\"request_id\":\"" + std::string(request_id) + "\"";
    std::string line;
    EXPECT_TRUE(eventually([&] {
      std::string text(static_cast<size_t>(::lseek(::fileno(access_log_file), 0, SEEK_END)), '\0');
      const ssize_t got = ::pread(::fileno(access_log_file), text.data(), text.size(), 0);
      text.resize(got < 0 ? 0 : static_cast<size_t>(got));
      const size_t at = text.find(mark);
      if (at == std::string::npos || text.find('\n', at) == std::string::npos) return false;
      const size_t begin = text.rfind('\n', at) + 1;
      line = text.substr(begin, text.find('\n', at) - begin);
      return true;
    })) << mark;
    return line;
  }

  void add_engine(ScriptedEngine::Serve serve) {
    engines.push_back(std::make_unique<ScriptedEngine>(std::move(serve)));
    add_endpoint(engines.back()->port());
  }
  void add_endpoint(uint16_t port) {
    discovery::DiscoveredEndpoint endpoint;
    endpoint.name = "e" + std::to_string(discovered.size());
    endpoint.address = "127.0.0.1";
    endpoint.port = port;
    discovered.push_back(std::move(endpoint));
  }
  // Endpoint `index` has the shortest queue.
  void favour(size_t index) {
    const auto snapshot = members.snapshot();
    for (size_t i = 0; i < snapshot->endpoints.size(); ++i) {
      const auto ticket = signals.attach(snapshot->endpoints[i]->slot, clock.now());
      signals::SignalRow row;
      row.at(Signal::kWaitingRequests) = {i == index ? 0.0 : 5.0, clock.now(), SignalState::kFresh};
      ASSERT_TRUE(signals.write(ticket, row, clock.now()));
    }
  }
  void start(config::Manifests manifests = {}, std::optional<size_t> default_pool = 0) {
    members.apply("test", discovered);
    pool.policy.publish(policy.policy);
    config::OutlierDetectionSettings health;
    health.enabled = true;
    pool.health.configure(health);
    GatewayPool served;
    served.pool = &pool;
    served.members = &members;
    served.signals = &signals;
    served.freshness_budget = std::chrono::hours(1);
    served.upstream = std::make_shared<UpstreamSettings>(upstream);
    gateway = std::make_unique<Gateway>(loops, registry, clock, access_log.get(), options,
                                        std::vector<GatewayPool>{served}, services);
    std::vector<std::string> warnings;
    ASSERT_TRUE(gateway->set_routes(manifests, default_pool, warnings).ok());
    loops.start();
    listener.settings.name = "test";
    listener.address = *io::SocketAddress::parse("127.0.0.1:0");
    auto bound = gateway->listen(listener);
    ASSERT_TRUE(bound.ok()) << bound.error().message;
    port = bound->port();
    favour(0);
  }
  Message exchange(const std::string& request, bool* complete = nullptr) {
    Connection client = Connection::to(port);
    EXPECT_TRUE(client.send(request));
    return read_message(client, complete);
  }
  // Everything that is counted while a request runs is back where it was.
  bool at_rest() {
    return eventually([this] {
      if (gateway->stats().active_requests != 0 || gateway->stats().buffered_bytes != 0) return false;
      for (const auto& endpoint : members.snapshot()->endpoints) {
        if (endpoint->live->load != 0) return false;
      }
      return true;
    });
  }

  SystemClock clock;
  telemetry::MetricRegistry registry;
  director::RequestMetrics metrics{registry};
  director::Pool pool{"pool", "default", metrics, {1, 64}};
  TestPolicy policy;
  discovery::SlotAllocator slots;
  discovery::Pool members{{.name = "pool"}, slots, clock};
  signals::SignalTable signals{Duration::zero()};
  UpstreamSettings upstream;
  GatewayOptions options;
  std::vector<GatewayService> services;
  GatewayListener listener;
  std::vector<std::unique_ptr<ScriptedEngine>> engines;
  std::vector<discovery::DiscoveredEndpoint> discovered;
  io::LoopGroup loops{1};
  std::FILE* access_log_file = std::tmpfile();
  std::unique_ptr<director::AccessLog> access_log;  // nullptr: no lines
  std::unique_ptr<Gateway> gateway;
  uint16_t port = 0;
};

bool echo_ok(Connection& to, const Message& request) {
  return to.send(answer(200, R"({"echo":)" + request.body + "}"));
}

TEST_F(ProxyTest, ARequestReachesTheEngineByteForByteAndItsAnswerComesBack) {
  std::string seen;
  add_engine([&](Connection& to, const Message& request) {
    seen = request.head + request.body;
    return echo_ok(to, request);
  });
  start();
  Connection client = Connection::to(port);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        client.send(post(kBody, "x-request-id: id-7\r\ntraceparent: tp\r\nx-prefiller-host-port: evil\r\n",
                         "/v1/completions?a=b")));
    const Message got = read_message(client);
    EXPECT_EQ(got.status(), 200);
    EXPECT_EQ(got.body, R"({"echo":)" + std::string(kBody) + "}");
    EXPECT_EQ(got.field("x-request-id"), "id-7");
    EXPECT_EQ(got.field("content-length"), std::to_string(got.body.size()));
    EXPECT_EQ(got.field("x-penstock-endpoint"), "127.0.0.1:" + std::to_string(engines[0]->port()));
  }
  EXPECT_TRUE(seen.starts_with("POST /v1/completions?a=b HTTP/1.1\r\n")) << seen;
  EXPECT_TRUE(seen.ends_with(kBody));
  EXPECT_NE(seen.find("traceparent: tp"), std::string::npos);
  EXPECT_EQ(seen.find("evil"), std::string::npos);
  EXPECT_EQ(engines[0]->connections(), 1);
  EXPECT_EQ(engines[0]->requests(), 3);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, RequestsAndAnswersOfOneMomentGoEachItsWayThoughSomeClientsLeave) {
  constexpr size_t kClients = 48;
  std::atomic<size_t> asked{0};
  std::atomic<bool> answers{true};
  add_engine([&](Connection& to, const Message& request) {
    ++asked;
    if (!eventually([&] { return answers.load(); })) return false;
    return echo_ok(to, request);
  });
  start();
  // Holds the loop up, so that it finds what has come meanwhile in one batch of events.
  std::atomic<bool> held{false};
  std::atomic<bool> release{false};
  const auto hold = [&] {
    held = release = false;
    loops.at(0).post([&] {
      held = true;
      while (!release) std::this_thread::yield();
    });
    ASSERT_TRUE(eventually([&] { return held.load(); }));
  };
  const auto body_of = [](size_t i) { return R"({"model":"m","prompt":")" + std::to_string(i) + "\"}"; };
  std::vector<Connection> clients;
  for (size_t i = 0; i < kClients; ++i) {
    clients.push_back(Connection::to(port));
    ASSERT_TRUE(clients.back().send(post(body_of(i))));
    EXPECT_EQ(read_message(clients.back()).status(), 200);
  }
  hold();
  answers = false;
  asked = 0;
  for (size_t i = 0; i < kClients; ++i) {
    ASSERT_TRUE(clients[i].send(post(body_of(i))));
    if (i % 8 == 3) clients[i].reset();
  }
  release = true;
  ASSERT_TRUE(eventually([&] { return asked >= kClients - kClients / 8; }));
  hold();
  answers = true;
  for (size_t i = 5; i < kClients; i += 8) clients[i].reset();
  release = true;
  for (size_t i = 0; i < kClients; ++i) {
    if (i % 8 == 3 || i % 8 == 5) continue;
    const Message got = read_message(clients[i]);
    EXPECT_EQ(got.status(), 200);
    EXPECT_EQ(got.body, R"({"echo":)" + body_of(i) + "}");
  }
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, EachRequestIsDecidedByItsOwnFields) {
  add_engine(echo_ok);
  start();
  for (const char* who : {"aa", "bb", "cc"}) {
    const std::string id = std::string("id-") + who;
    EXPECT_EQ(
        exchange(post(kBody, "x-request-id: " + id + "\r\nx-llm-d-inference-fairness-id: " + who + "\r\n"))
            .status(),
        200);
    ASSERT_TRUE(at_rest());
    EXPECT_NE(pool.log.find_json(id)->find("\"fairness_id\":\"" + std::string(who) + "\""),
              std::string::npos);
  }
}

TEST_F(ProxyTest, AChunkedRequestIsSentWithOneLength) {
  Message seen;
  add_engine([&](Connection& to, const Message& request) {
    seen = request;
    return echo_ok(to, request);
  });
  start();
  std::string request = "POST /v1/completions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n";
  for (size_t i = 0; i < kBody.size(); i += 3) request += chunk(kBody.substr(i, 3));
  EXPECT_EQ(exchange(request + "0\r\n\r\n").status(), 200);
  EXPECT_EQ(seen.body, kBody);
  EXPECT_EQ(seen.field("content-length"), std::to_string(kBody.size()));
  EXPECT_EQ(seen.field("transfer-encoding"), "");
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, AModelRewriteIsSplicedIntoTheBody) {
  std::string seen;
  add_engine([&](Connection& to, const Message& request) {
    seen = request.body;
    return to.send(answer(200, R"({"id":"1","model":"served","choices":[]})"));
  });
  start();
  auto rules = std::make_shared<director::PoolRules>();
  rules->rewrites = director::RewriteTable({{"r", 1, {{{"m"}, false, {{"served", std::nullopt}}}}}});
  pool.rules.publish(rules);
  const Message got = exchange(post(kBody));
  EXPECT_EQ(seen, R"({"model":"served","prompt":"hello"})");
  EXPECT_EQ(got.body, R"({"id":"1","model":"m","choices":[]})");
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, EventsAreStreamedAsTheyCome) {
  std::atomic<bool> first_seen{false};
  add_engine([&](Connection& to, const Message&) {
    to.send(std::string(kSseHead) + chunk("data: {\"a\":1}\n\n"));
    eventually([&] { return first_seen.load(); });
    return to.send(chunk("data: [DONE]\n\n") + "0\r\n\r\n");
  });
  start();
  Connection client = Connection::to(port);
  ASSERT_TRUE(client.send(post(kBody)));
  EXPECT_NE(client.read_to("\"a\":1}\n\n").find("text/event-stream"), std::string::npos);
  first_seen = true;
  EXPECT_NE(client.read_to("0\r\n\r\n").find("[DONE]"), std::string::npos);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, TheHeadOfAStreamDoesNotWaitForItsFirstEvent) {
  std::atomic<bool> head_seen{false};
  add_engine([&](Connection& to, const Message&) {
    to.send(kSseHead);
    eventually([&] { return head_seen.load(); });
    return to.send("0\r\n\r\n");
  });
  start();
  Connection client = Connection::to(port);
  ASSERT_TRUE(client.send(post(kBody)));
  EXPECT_TRUE(client.read_to("\r\n\r\n").starts_with("HTTP/1.1 200"));
  head_seen = true;
  EXPECT_TRUE(at_rest());
}

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

TEST_F(ProxyTest, TheHalfOfAnEventGoesOutWithItsOtherHalf) {
  add_engine([](Connection& to, const Message&) {
    to.send(std::string(kSseHead) + chunk("data: {\"a\"") + chunk(":1}\n") + chunk("\ndata: [DO"));
    return to.send(chunk("NE]") + "0\r\n\r\n");
  });
  start();
  bool complete = false;
  EXPECT_EQ(exchange(post(kBody), &complete).body, "data: {\"a\":1}\n\ndata: [DONE]");
  EXPECT_TRUE(complete);
}

TEST_F(ProxyTest, AClientsCredentialsReachNoEngineUnlessThePoolForwardsThem) {
  std::string seen;
  add_engine([&](Connection& to, const Message& request) {
    seen = request.head;
    return echo_ok(to, request);
  });
  start();
  const std::string request =
      post(kBody, "authorization: Bearer mine\r\nx-api-key: mine\r\napi-key: mine\r\n");
  EXPECT_EQ(exchange(request).status(), 200);
  EXPECT_EQ(seen.find("mine"), std::string::npos) << seen;
  upstream.forward_client_authorization = true;
  gateway->set_upstream(0, std::make_shared<UpstreamSettings>(upstream));
  EXPECT_EQ(exchange(request).status(), 200);
  for (const std::string_view field : {"authorization: Bearer mine", "x-api-key: mine", "\napi-key: mine"}) {
    EXPECT_NE(seen.find(field), std::string::npos) << field << seen;
  }
}

TEST_F(ProxyTest, WhatTheCodecRefusesHasTheShapeOfEveryOtherError) {
  start();
  const Message bad = exchange("GARBAGE\r\n\r\n");
  EXPECT_EQ(bad.status(), 400);
  EXPECT_TRUE(
      bad.body.starts_with(R"({"error":{"message":"inference error: BadRequest - the request can't )"))
      << bad.body;
  EXPECT_NE(bad.body.find(R"("param":null,"code":"BadRequest"},"request_id":")"), std::string::npos)
      << bad.body;
  const Message large = exchange("GET / HTTP/1.1\r\nhost: gw\r\nx: " + std::string(200000, 'x') + "\r\n\r\n");
  EXPECT_EQ(large.status(), 431);
  EXPECT_NE(large.body.find(R"("code":"HeadersTooLarge")"), std::string::npos) << large.body;
  EXPECT_NE(large.body.find("(limits.headerBytes)"), std::string::npos) << large.body;
}

TEST_F(ProxyTest, TheAccessLogTellsTimeoutsApartAndCountsAnswersOfItsOwn) {
  keep_access_log();
  upstream.deadlines.first_byte = std::chrono::milliseconds(50);
  upstream.deadlines.idle = std::chrono::milliseconds(50);
  add_engine([](Connection& to, const Message& request) {
    if (request.field("x-request-id") == "silent") return !to.peer_closed();
    to.send(std::string(kSseHead) + chunk("data: {\"a\":1}\n\n"));
    return !to.peer_closed();
  });
  start();
  const Message silent = exchange(post(kBody, "x-request-id: silent\r\n"));
  EXPECT_EQ(silent.status(), 504);
  const std::string first = logged("silent");
  EXPECT_NE(first.find(R"("reason":"first_byte_timeout")"), std::string::npos) << first;
  EXPECT_NE(first.find("\"bytes_out\":" + std::to_string(silent.body.size()) + ","), std::string::npos)
      << first;
  const Message idle = exchange(post(kBody, "x-request-id: idle\r\n"));
  const std::string second = logged("idle");
  EXPECT_NE(second.find(R"("reason":"idle_timeout")"), std::string::npos) << second;
  EXPECT_NE(second.find("\"bytes_out\":" + std::to_string(idle.body.size()) + ","), std::string::npos)
      << second;
}

TEST_F(ProxyTest, RequestsThatNoRouteTakesAreAnsweredAlikeHoweverOftenTheyCome) {
  keep_access_log();
  add_engine(echo_ok);
  config::Manifests manifests;
  config::HttpRoute route;
  route.meta.name = "r";
  config::HttpRoute::Rule rule;
  rule.matches.emplace_back();
  rule.matches[0].headers.push_back({"x-gateway-model-name", "m", false});
  rule.backends.push_back({config::HttpRoute::BackendRef::Kind::kPool, "default", "pool"});
  route.rules = {rule};
  manifests.routes.push_back(route);
  start(manifests, std::nullopt);
  Connection client = Connection::to(port);
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(client.send("GET /nowhere HTTP/1.1\r\nhost: gw\r\n\r\n"));
    EXPECT_EQ(read_message(client).status(), 404);
    const std::string id = "r" + std::to_string(i);
    ASSERT_TRUE(client.send(post(R"({"model":"other","prompt":"p"})", "x-request-id: " + id + "\r\n")));
    const Message got = read_message(client);
    EXPECT_EQ(got.status(), 404);
    EXPECT_NE(got.body.find("`other`"), std::string::npos) << got.body;
  }
  const std::string line = logged("r49");
  EXPECT_NE(line.find(R"("model":"other")"), std::string::npos) << line;
  EXPECT_NE(line.find(R"("reason":"no_route")"), std::string::npos) << line;
  EXPECT_EQ(engines[0]->requests(), 0);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, LoadAndDroppedLinesAreShownWhenMetricsAreAskedFor) {
  std::atomic<bool> go_on{false};
  add_engine([&](Connection& to, const Message& request) {
    eventually([&] { return go_on.load(); });
    return echo_ok(to, request);
  });
  start();
  Connection client = Connection::to(port);
  ASSERT_TRUE(client.send(post(kBody)));
  ASSERT_TRUE(eventually([&] { return engines[0]->requests() == 1; }));
  const std::string text = registry.render();
  constexpr std::string_view kLabels =
      R"({endpoint_name="e0",namespace="default",producer_name="load",fairness_id="",priority=""})";
  EXPECT_NE(text.find("llm_d_epp_inflight_requests" + std::string(kLabels) + " 1\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("llm_d_epp_inflight_tokens" + std::string(kLabels) + " 100\n"), std::string::npos);
  EXPECT_NE(text.find("penstock_access_log_dropped_lines_total 0\n"), std::string::npos);
  EXPECT_NE(text.find("penstock_log_dropped_lines_total 0\n"), std::string::npos);
  for (const CollectedFamily& family : collected_families()) {
    // The registry may put a level of stability in front of the help.
    const size_t help = text.find("# HELP " + std::string(family.name) + " ");
    ASSERT_NE(help, std::string::npos) << family.name;
    EXPECT_TRUE(std::string_view(text).substr(help, text.find('\n', help) - help).ends_with(family.help));
  }
  go_on = true;
  EXPECT_EQ(read_message(client).status(), 200);
  // The client may have its answer before the accounts of the request are closed.
  EXPECT_TRUE(eventually([&] {
    return registry.render().find("llm_d_epp_response_processing_duration_seconds_count 1\n") !=
           std::string::npos;
  }));
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

TEST_F(ProxyTest, WhenTheClientLeavesTheEngineIsToldWithinAHundredMilliseconds) {
  std::atomic<bool> closed{false};
  std::chrono::steady_clock::time_point noticed;
  add_engine([&](Connection& to, const Message&) {
    to.send(std::string(kSseHead) + chunk("data: {\"a\":1}\n\n"));
    const bool gone = to.peer_closed();
    noticed = std::chrono::steady_clock::now();
    closed = gone;
    return false;
  });
  start();
  // A busy machine may stop any of the three threads for longer, but not at every try.
  bool in_time = false;
  for (int tries = 0; tries < 20 && !in_time; ++tries) {
    closed = false;
    Connection client = Connection::to(port);
    ASSERT_TRUE(client.send(post(kBody)));
    client.read_to("\"a\":1}\n\n");
    const auto left = std::chrono::steady_clock::now();
    client.close();
    ASSERT_TRUE(at_rest());
    ASSERT_TRUE(eventually([&] { return closed.load(); }));
    in_time = noticed - left < std::chrono::milliseconds(100);
  }
  EXPECT_TRUE(in_time);
}

TEST_F(ProxyTest, AClientThatLeavesBeforeTheAnswerFreesItsPlace) {
  std::atomic<bool> asked{false};
  std::atomic<bool> closed{false};
  add_engine([&](Connection& to, const Message&) {
    asked = true;
    closed = to.peer_closed();
    return false;
  });
  start();
  {
    Connection client = Connection::to(port);
    ASSERT_TRUE(client.send(post(kBody)));
    ASSERT_TRUE(eventually([&] { return asked.load(); }));
  }
  EXPECT_TRUE(at_rest());
  EXPECT_TRUE(eventually([&] { return closed.load(); }));
}

TEST_F(ProxyTest, AClientThatStopsReadingHoldsTheEngineBackAndNotOthers) {
  // The engine's thread may still be sending when the test's own variables go.
  static const std::string big(1 << 20, 'x');
  static std::atomic<bool> sent_all;
  sent_all = false;
  add_engine([](Connection& to, const Message& request) {
    if (request.head.find("/big") == std::string::npos) return echo_ok(to, request);
    for (int i = 0; i < 64; ++i) {
      if (!to.send(i == 0 ? "HTTP/1.1 200 OK\r\ncontent-length: 67108864\r\n\r\n" + big : big)) return false;
    }
    sent_all = true;
    return true;
  });
  start();
  Connection slow = Connection::to(port);
  slow.small_receive_buffer();
  ASSERT_TRUE(slow.send(post(kBody, "", "/big")));
  EXPECT_TRUE(slow.read_to("\r\n\r\n").starts_with("HTTP/1.1 200"));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(exchange(post(kBody)).status(), 200);
  EXPECT_FALSE(sent_all);
  slow.close();
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

TEST_F(ProxyTest, MalformedBodiesAndEmptyPoolsAreAnsweredInTheClientsShape) {
  start();
  const Message broken = exchange(post("no json", "x-request-id: id-9\r\n"));
  EXPECT_EQ(broken.status(), 400);
  EXPECT_EQ(broken.field("content-type"), "application/json");
  EXPECT_NE(broken.body.find("\"error\""), std::string::npos);
  EXPECT_NE(broken.body.find("id-9"), std::string::npos);
  const Message nobody = exchange(post(kBody));
  EXPECT_EQ(nobody.status(), 503);
  EXPECT_EQ(nobody.field("x-llm-d-request-dropped-reason"), "rejected-no-endpoints");
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, BodiesOverTheLimitAreA413ThatTheClientReadsWhileItStillSends) {
  listener.settings.limits.body_bytes = 1000;
  add_engine(echo_ok);
  start();
  Connection client = Connection::to(port);
  client.send("POST /v1/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 10000000\r\n\r\n" +
              std::string(100000, 'x'));
  const Message declared = read_message(client);
  EXPECT_EQ(declared.status(), 413);
  EXPECT_NE(declared.body.find("1000"), std::string::npos);
  const Message chunked =
      exchange("POST /v1/completions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n" +
               chunk(std::string(2000, 'x')));
  EXPECT_EQ(chunked.status(), 413);
  EXPECT_EQ(engines[0]->requests(), 0);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, TheGatewayHoldsNoMoreBodiesThanItsLimit) {
  options.buffered_bytes = 10;
  add_engine(echo_ok);
  start();
  const Message got = exchange(post(kBody));
  EXPECT_EQ(got.status(), 503);
  EXPECT_NE(got.body.find("bufferedBytes"), std::string::npos);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, UploadsThatOnlyDeclareTheirLengthTakeNoRoomFromOthers) {
  options.buffered_bytes = 1 << 20;
  add_engine(echo_ok);
  start();
  std::vector<Connection> idle;
  for (int i = 0; i < 16; ++i) {
    idle.push_back(Connection::to(port));
    ASSERT_TRUE(
        idle.back().send("POST /v1/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 60000000\r\n\r\n"));
  }
  ASSERT_TRUE(eventually([&] { return gateway->stats().active_requests == 16; }));
  EXPECT_EQ(exchange(post(kBody)).status(), 200);
  // What arrives counts, whatever the framing, and goes again with its connection.
  const std::string part(300000, 'x');
  ASSERT_TRUE(idle[0].send(part));
  ASSERT_TRUE(eventually([&] { return gateway->stats().buffered_bytes >= 300000; }));
  Connection chunked = Connection::to(port);
  ASSERT_TRUE(chunked.send("POST /v1/completions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n" +
                           chunk(part) + chunk(part) + chunk(part) + chunk(part)));
  EXPECT_EQ(read_message(chunked).status(), 503);
  idle.clear();
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, ABodyThatTakesTooLongIsA408) {
  listener.settings.body_total_timeout = std::chrono::milliseconds(50);
  add_engine(echo_ok);
  start();
  Connection client = Connection::to(port);
  ASSERT_TRUE(client.send("POST /v1/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 1000\r\n\r\n{"));
  EXPECT_EQ(read_message(client).status(), 408);
  EXPECT_EQ(engines[0]->requests(), 0);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, OthersAreServedWhileABulkAnswerRunsAsFastAsItCan) {
  // The engine's thread may still be sending when the test's own variables go.
  static const std::string big(1 << 20, 'x');
  add_engine([](Connection& to, const Message& request) {
    if (request.head.find("/big") == std::string::npos) return echo_ok(to, request);
    to.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
    while (to.send(chunk(big))) {
    }
    return false;
  });
  start();
  Connection bulk = Connection::to(port);
  ASSERT_TRUE(bulk.send(post(kBody, "", "/big")));
  ASSERT_FALSE(bulk.read_to("\r\n\r\n").empty());
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop && bulk.read_exactly(1 << 20).size() == 1 << 20) {
    }
    bulk.close();
  });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(exchange(post(kBody)).status(), 200);
  stop = true;
  reader.join();
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, WithApiKeysOnlyKnownCallersComeInAndTheirKeysStayHere) {
  auto keys = config::ApiKeys::decode(
      "keys:\n  - name: team-a\n    sha256: "
      "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n",
      "keys.yaml");
  ASSERT_TRUE(keys.ok());
  listener.api_keys = *keys;
  upstream.authorization = "Bearer engine-key";
  std::string seen;
  add_engine([&](Connection& to, const Message& request) {
    seen = request.head;
    return echo_ok(to, request);
  });
  start();
  const Message refused = exchange(post(kBody, "authorization: Bearer wrong\r\n"));
  EXPECT_EQ(refused.status(), 401);
  EXPECT_EQ(refused.field("www-authenticate"), "Bearer");
  EXPECT_EQ(exchange(post(kBody, "authorization: Bearer secret\r\nx-request-id: k1\r\n")).status(), 200);
  EXPECT_EQ(seen.find("secret"), std::string::npos);
  EXPECT_NE(seen.find("Bearer engine-key"), std::string::npos);
  EXPECT_NE(pool.log.find_json("k1")->find(R"("identity":"team-a")"), std::string::npos);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, AKeysNameIsItsFlowUnlessTheListenerTrustsTheHeader) {
  auto keys = config::ApiKeys::decode(
      "keys:\n  - name: team-a\n    sha256: "
      "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n",
      "keys.yaml");
  ASSERT_TRUE(keys.ok());
  listener.api_keys = *keys;
  add_engine(echo_ok);
  start();
  listener.settings.trust_fairness_header = true;
  auto second = gateway->listen(listener);
  ASSERT_TRUE(second.ok());
  const std::string fields = "x-api-key: secret\r\nx-llm-d-inference-fairness-id: other\r\n";
  EXPECT_EQ(exchange(post(kBody, fields + "x-request-id: f1\r\n")).status(), 200);
  port = second->port();
  EXPECT_EQ(exchange(post(kBody, fields + "x-request-id: f2\r\n")).status(), 200);
  ASSERT_TRUE(at_rest());
  EXPECT_NE(pool.log.find_json("f1")->find(R"("fairness_id":"team-a")"), std::string::npos);
  EXPECT_NE(pool.log.find_json("f2")->find(R"("fairness_id":"other")"), std::string::npos);
}

TEST_F(ProxyTest, WhatCannotBeRoutedWellIsRefusedAndReachesNoEngine) {
  add_engine(echo_ok);
  add_engine(echo_ok);
  start();
  EXPECT_EQ(
      exchange("GET /v1/realtime HTTP/1.1\r\nhost: gw\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
          .status(),
      501);
  EXPECT_EQ(exchange(post(kBody, "", "/v1/load_lora_adapter")).status(), 501);
  std::string multipart = post("--b\r\n", "", "/v1/audio/transcriptions");
  multipart.replace(multipart.find("application/json"), 16, "multipart/form-data; boundary=b");
  EXPECT_EQ(exchange(multipart).status(), 501);
  EXPECT_EQ(exchange(post(R"({"model":"m","previous_response_id":"resp_1"})", "", "/v1/responses")).status(),
            501);
  EXPECT_EQ(engines[0]->requests() + engines[1]->requests(), 0);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, ModelListsOfAllEnginesAreMerged) {
  add_engine([](Connection& to, const Message&) {
    return to.send(answer(200, R"({"object":"list","data":[{"id":"base","max_model_len":5}]})"));
  });
  add_engine([](Connection& to, const Message&) {
    return to.send(answer(200, R"({"object":"list","data":[{"id":"base"},{"id":"lora","parent":"base"}]})"));
  });
  start();
  EXPECT_EQ(exchange("GET /v1/models HTTP/1.1\r\nhost: gw\r\n\r\n").body,
            R"({"object":"list","data":[{"id":"base","max_model_len":5},{"id":"lora","parent":"base"}]})");
  EXPECT_EQ(exchange("GET /v1/models/lora HTTP/1.1\r\nhost: gw\r\n\r\n").body,
            R"({"id":"lora","parent":"base"})");
  EXPECT_EQ(exchange("GET /v1/models/nope HTTP/1.1\r\nhost: gw\r\n\r\n").status(), 404);
  EXPECT_EQ(engines[0]->requests(), 1);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, AModelListAskedOfFormerMembersIsNotThatOfTheNewOnes) {
  std::atomic<bool> go_on{false};
  add_engine([&](Connection& to, const Message&) {
    eventually([&] { return go_on.load(); });
    return to.send(answer(200, R"({"object":"list","data":[{"id":"old"}]})"));
  });
  start();
  const std::string ask = "GET /v1/models HTTP/1.1\r\nhost: gw\r\n\r\n";
  Connection first = Connection::to(port);
  ASSERT_TRUE(first.send(ask));
  ASSERT_TRUE(eventually([&] { return engines[0]->requests() == 1; }));
  // Another engine takes its place while the question is under way.
  discovered.clear();
  add_engine([](Connection& to, const Message&) {
    return to.send(answer(200, R"({"object":"list","data":[{"id":"new"}]})"));
  });
  members.apply("test", discovered);
  EXPECT_NE(exchange(ask).body.find("\"new\""), std::string::npos);
  go_on = true;
  EXPECT_EQ(read_message(first).status(), 200);
  EXPECT_NE(exchange(ask).body.find("\"new\""), std::string::npos);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, PlainServicesGetBodiesAsTheyComeAndModelsTheirPool) {
  ScriptedEngine service([](Connection& to, const Message& request) {
    return to.send(answer(201, request.body, "x-service: yes\r\n"));
  });
  services.push_back({"default", "svc", {{"127.0.0.1", service.port(), nullptr, ""}}});
  add_engine(echo_ok);
  config::Manifests manifests;
  config::HttpRoute route;
  route.meta.name = "r";
  config::HttpRoute::Rule to_service;
  to_service.matches.emplace_back();
  to_service.matches[0].path = "/svc";
  to_service.backends.push_back({config::HttpRoute::BackendRef::Kind::kService, "default", "svc"});
  config::HttpRoute::Rule to_pool;
  to_pool.matches.emplace_back();
  to_pool.matches[0].headers.push_back({"x-gateway-model-name", "m", false});
  to_pool.backends.push_back({config::HttpRoute::BackendRef::Kind::kPool, "default", "pool"});
  route.rules = {to_service, to_pool};
  manifests.routes.push_back(route);
  start(manifests, std::nullopt);

  const Message plain = exchange(post("not json at all", "", "/svc/x"));
  EXPECT_EQ(plain.status(), 201);
  EXPECT_EQ(plain.body, "not json at all");
  EXPECT_EQ(plain.field("x-service"), "yes");
  EXPECT_EQ(exchange(post(kBody)).status(), 200);
  EXPECT_EQ(exchange(post(R"({"model":"other","prompt":"p"})", "x-gateway-model-name: m\r\n")).status(), 404);
  EXPECT_EQ(exchange("GET /nowhere HTTP/1.1\r\nhost: gw\r\n\r\n").status(), 404);
  EXPECT_TRUE(at_rest());
}

TEST_F(ProxyTest, DrainingFinishesStreamsAndThenCloses) {
  std::atomic<bool> go_on{false};
  add_engine([&](Connection& to, const Message&) {
    to.send(std::string(kSseHead) + chunk("data: {\"a\":1}\n\n"));
    eventually([&] { return go_on.load(); });
    return to.send(chunk("data: [DONE]\n\n") + "0\r\n\r\n");
  });
  start();
  Connection client = Connection::to(port);
  ASSERT_TRUE(client.send(post(kBody)));
  client.read_to("\"a\":1}\n\n");
  gateway->begin_drain();
  go_on = true;
  EXPECT_NE(client.read_to("0\r\n\r\n").find("[DONE]"), std::string::npos);
  EXPECT_TRUE(at_rest());
  gateway->stop(std::chrono::seconds(5));
  EXPECT_TRUE(client.peer_closed());
}

}  // namespace
}  // namespace penstock::gateway
