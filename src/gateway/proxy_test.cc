#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "gateway/proxy_test_support.h"
#include "io/run_on.h"

namespace penstock::gateway {
namespace {

using namespace testing;

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

TEST_F(ProxyTest, NoWinnerIsExplainedWhereNoEndpointIsPicked) {
  add_engine(echo_ok);
  start();
  const auto explained = [&](std::string path) {
    return io::run_on(loops.at(0), [gateway = gateway.get(), path = std::move(path)] {
      return gateway->explain({.path = path, .body = std::string(kBody)});
    });
  };
  const Result<std::string> picked = explained("/v1/completions");
  ASSERT_TRUE(picked.ok()) << picked.error().message;
  EXPECT_NE(picked->find("\"endpoint\":\"default/e0\""), std::string::npos) << *picked;
  EXPECT_EQ(explained("/v1/models").error().message,
            "no endpoint is picked for /v1/models: a GET of it is answered with the models of the pool's "
            "endpoints");
  EXPECT_EQ(explained("/v1/models/m?x=1").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(explained("/v1/load_lora_adapter").error().message,
            "adapters are loaded and unloaded per replica; ask the engines directly");
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
