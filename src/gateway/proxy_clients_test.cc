#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "gateway/proxy_test_support.h"

namespace penstock::gateway {
namespace {

using namespace testing;

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
            404);
  EXPECT_EQ(engines[0]->requests() + engines[1]->requests(), 0);
  EXPECT_TRUE(at_rest());
}

}  // namespace
}  // namespace penstock::gateway
