#include "io/http_client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "io/detail/test_support.h"

namespace penstock::io {
namespace {

using std::chrono::milliseconds;
using testing::eventually;
using testing::loopback;
using testing::RawClient;
using testing::RawServer;
using testing::run_on;
using Client = testing::TestClient;
using Upstream = testing::TestServer;

HttpDestination to(const SocketAddress& address) {
  HttpDestination out;
  out.host = address.ip();
  out.port = address.port();
  return out;
}

// Reads a body piece by piece.
Task<Result<std::string>> drain(HttpCall& call) {
  std::string all;
  for (;;) {
    auto piece = co_await call.read();
    if (!piece.ok()) co_return std::move(piece).error();
    all += piece->data;
    if (piece->last) co_return all;
  }
}

Task<void> echo(HttpExchange& exchange) {
  auto body = co_await exchange.read_all(64 << 20);
  if (!body.ok()) co_return;
  const std::string_view piece(body->data(), body->size());
  const HeaderField fields[] = {{"x-method", exchange.request().method},
                                {"x-host", exchange.request().authority}};
  (void)exchange.write_head(200, fields, BodyFraming::of_length(piece.size()));
  (void)co_await exchange.finish({&piece, 1});
}

TEST(HttpClient, ReusesAConnectionAndSaysSo) {
  Upstream upstream(echo);
  Client client;
  run_on(client.loop(), [&]() -> Task<void> {
    for (int i = 0; i < 3; ++i) {
      const std::string_view body[] = {"hel", "lo"};
      HttpRequest request;
      request.method = "POST";
      request.framing = BodyFraming::of_length(5);
      request.body = body;
      auto call = co_await client.client->start(to(upstream.address), request);
      EXPECT_TRUE(call.ok());
      if (!call.ok()) co_return;
      EXPECT_EQ(call->reused(), i > 0);
      auto head = co_await call->response();
      EXPECT_TRUE(head.ok());
      if (!head.ok()) co_return;
      EXPECT_EQ((*head)->status, 200);
      EXPECT_EQ((*head)->fields.get("x-method"), "POST");
      EXPECT_EQ((*head)->fields.get("x-host"), upstream.address.to_string());
      auto text = co_await drain(*call);
      EXPECT_TRUE(text.ok());
      EXPECT_EQ(*text, "hello");
    }
  });
  EXPECT_EQ(client.stats().connections_opened, 1U);
  EXPECT_EQ(client.stats().connections_reused, 2U);
  EXPECT_EQ(client.stats().connections_idle, 1U);
}

TEST(HttpClient, AnAnswerIsTheSameWhereverItsBytesAreSplit) {
  const std::string answer =
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6; e=f\r\n world\r\n0\r\nX-T: "
      "1\r\n\r\n";
  RawServer server;
  Client client;
  for (size_t split = 1; split < answer.size(); ++split) {
    std::thread peer([&] {
      RawClient connection = server.accept();
      connection.read_until("\r\n\r\n");
      connection.send(std::string_view(answer).substr(0, split));
      std::this_thread::yield();
      connection.send(std::string_view(answer).substr(split));
      EXPECT_TRUE(connection.wait_closed());
    });
    run_on(client.loop(), [&]() -> Task<void> {
      auto call = co_await client.client->start(to(server.address()), {});
      EXPECT_TRUE(call.ok());
      auto head = co_await call->response();
      EXPECT_TRUE(head.ok()) << split;
      if (head.ok()) {
        EXPECT_EQ((*head)->status, 200);
        auto text = co_await drain(*call);
        EXPECT_TRUE(text.ok() && *text == "hello world") << split;
        EXPECT_EQ(call->trailers().get("x-t"), "1");
      }
      call->close();
      client.client->drop_idle();
    });
    peer.join();
  }
}

TEST(HttpClient, BodiesDelimitedByClosingEndThere) {
  RawServer server;
  Client client;
  std::thread peer([&] {
    RawClient connection = server.accept();
    connection.read_until("\r\n\r\n");
    connection.send("HTTP/1.1 200 OK\r\n\r\nall of ");
    connection.send("it");
  });
  run_on(client.loop(), [&]() -> Task<void> {
    auto call = co_await client.client->start(to(server.address()), {});
    auto head = co_await call->response();
    EXPECT_TRUE(head.ok());
    EXPECT_FALSE(call->content_length().has_value());
    auto body = co_await call->read_all(100);
    EXPECT_TRUE(body.ok());
    if (body.ok()) {
      EXPECT_EQ(std::string(body->data(), body->size()), "all of it");
    }
  });
  peer.join();
  EXPECT_EQ(client.stats().connections_idle, 0U);
}

TEST(HttpClient, BrokenAnswersAreErrorsAndTheConnectionIsNotPooled) {
  RawServer server;
  Client client;
  for (const std::string answer :
       {"", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", "garbage\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n\r\n"}) {
    std::thread peer([&] {
      RawClient connection = server.accept();
      connection.read_until("\r\n\r\n");
      connection.send(answer);
    });
    run_on(client.loop(), [&]() -> Task<void> {
      auto call = co_await client.client->start(to(server.address()), {});
      EXPECT_TRUE(call.ok());
      auto head = co_await call->response();
      ErrorCode code = ErrorCode::kInternal;
      if (head.ok()) {
        auto text = co_await drain(*call);
        EXPECT_FALSE(text.ok()) << answer;
        if (!text.ok()) code = text.error().code;
      } else {
        code = head.error().code;
      }
      EXPECT_EQ(code, ErrorCode::kBadGateway) << answer;
      EXPECT_FALSE(call->failed_stale());
    });
    peer.join();
    EXPECT_EQ(client.stats().connections_idle, 0U);
    EXPECT_EQ(client.stats().connections_busy, 0U);
  }
}

TEST(HttpClient, AStaleReusedConnectionIsToldApartAndAFreshOneWorks) {
  RawServer server;
  Client client;
  std::thread peer([&] {
    RawClient first = server.accept();
    first.read_until("\r\n\r\n");
    first.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    first.read_until("\r\n\r\n");  // the second request arrives, and is dropped
    first.reset();
    RawClient second = server.accept();
    second.read_until("\r\n\r\n");
    second.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    EXPECT_TRUE(second.wait_closed());
  });
  run_on(client.loop(), [&]() -> Task<void> {
    {
      auto call = co_await client.client->start(to(server.address()), {});
      auto head = co_await call->response();
      EXPECT_TRUE(head.ok());
    }
    {
      auto call = co_await client.client->start(to(server.address()), {});
      EXPECT_TRUE(call->reused());
      auto head = co_await call->response();
      EXPECT_FALSE(head.ok());
      EXPECT_TRUE(call->failed_stale());
    }
    {
      HttpCallOptions fresh;
      fresh.fresh_connection = true;
      auto call = co_await client.client->start(to(server.address()), {}, fresh);
      EXPECT_FALSE(call->reused());
      auto head = co_await call->response();
      EXPECT_TRUE(head.ok());
    }
    client.client->drop_idle(to(server.address()));
  });
  peer.join();
}

TEST(HttpClient, IdleConnectionsGoWhenThePeerClosesOrTheirTimeIsUp) {
  HttpClientOptions options;
  options.idle_timeout = milliseconds(60);
  Client client(options);
  RawServer server;
  const auto one_exchange = [&]() -> Task<void> {
    auto call = co_await client.client->start(to(server.address()), {});
    auto head = co_await call->response();
    EXPECT_TRUE(head.ok());
  };
  std::thread closing([&] {
    RawClient connection = server.accept();
    connection.read_until("\r\n\r\n");
    connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
  });
  run_on(client.loop(), one_exchange);
  closing.join();
  EXPECT_TRUE(eventually([&] { return client.stats().connections_idle == 0; }));
  std::thread waiting([&] {
    RawClient connection = server.accept();
    connection.read_until("\r\n\r\n");
    connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    EXPECT_TRUE(connection.wait_closed());
  });
  run_on(client.loop(), one_exchange);
  waiting.join();
  EXPECT_TRUE(eventually([&] { return client.stats().connections_idle == 0; }));
}

TEST(HttpClient, CancellingOrDroppingACallClosesItsConnectionAtOnce) {
  Client client;
  RawServer server;
  for (const bool by_token : {true, false}) {
    std::atomic<bool> closed{false};
    std::thread peer([&] {
      RawClient connection = server.accept();
      connection.read_until("\r\n\r\n");
      connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
      closed = connection.wait_closed();
    });
    run_on(client.loop(), [&]() -> Task<void> {
      CancelSource source;
      HttpCallOptions options;
      options.token = source.token();
      auto call = co_await client.client->start(to(server.address()), {}, options);
      auto head = co_await call->response();
      EXPECT_TRUE(head.ok());
      auto piece = co_await call->read();
      EXPECT_TRUE(piece.ok());
      if (by_token) {
        spawn(client.loop(), [](Loop& loop, CancelSource& s) -> Task<void> {
          co_await loop.sleep(milliseconds(2));
          s.cancel();
        }(client.loop(), source));
        auto next = co_await call->read();
        EXPECT_FALSE(next.ok());
        if (!next.ok()) {
          EXPECT_EQ(next.error().code, ErrorCode::kCancelled);
        }
      }
    });
    peer.join();
    EXPECT_TRUE(closed);
  }
}

TEST(HttpClient, DeadlinesForConnectingFirstByteAndGaps) {
  Client client;
  RawServer server;
  std::thread peer([&] {
    RawClient silent = server.accept();
    RawClient stalling = server.accept();
    stalling.read_until("\r\n\r\n");
    stalling.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
    EXPECT_TRUE(silent.read_until("\r\n\r\n").find("GET / HTTP/1.1\r\n") == 0);
    EXPECT_TRUE(stalling.wait_closed());
  });
  run_on(client.loop(), [&]() -> Task<void> {
    HttpCallOptions options;
    options.first_byte_timeout = milliseconds(20);
    options.idle_timeout = milliseconds(20);
    auto silent = co_await client.client->start(to(server.address()), {}, options);
    auto head = co_await silent->response();
    EXPECT_FALSE(head.ok());
    if (!head.ok()) {
      EXPECT_EQ(head.error().code, ErrorCode::kGatewayTimeout);
    }
    auto stalling = co_await client.client->start(to(server.address()), {}, options);
    auto second = co_await stalling->response();
    EXPECT_TRUE(second.ok());
    auto text = co_await drain(*stalling);
    EXPECT_FALSE(text.ok());
    if (!text.ok()) {
      EXPECT_EQ(text.error().code, ErrorCode::kGatewayTimeout);
    }
  });
  peer.join();
}

TEST(HttpClient, AHeadThatComesByteByByteHasOneDeadline) {
  Client client;
  RawServer server;
  std::atomic<int> code{-1};
  std::thread peer([&] {
    RawClient accepted = server.accept();
    accepted.read_until("\r\n\r\n");
    accepted.send("HTTP/1.1 200 OK\r\nx: ");
    // Slowly enough for the head to stay below its limit.
    for (int sent = 0; code == -1 && sent < 30'000; ++sent) accepted.send("y");
    EXPECT_TRUE(eventually([&] { return code != -1; }));
  });
  run_on(client.loop(), [&]() -> Task<void> {
    HttpCallOptions options;
    options.first_byte_timeout = milliseconds(100);
    auto call = co_await client.client->start(to(server.address()), {}, options);
    auto head = co_await call->response();
    EXPECT_FALSE(head.ok());
    code = head.ok() ? 0 : static_cast<int>(head.error().code);
  });
  peer.join();
  EXPECT_EQ(code, static_cast<int>(ErrorCode::kGatewayTimeout));
}

TEST(HttpClient, RefusedConnectionsAndUnknownNamesAreBadGateways) {
  Client client;
  SocketAddress gone;
  {
    RawServer closed;
    gone = closed.address();
  }
  run_on(client.loop(), [&]() -> Task<void> {
    auto call = co_await client.client->start(to(gone), {});
    EXPECT_FALSE(call.ok());
    if (!call.ok()) {
      EXPECT_EQ(call.error().code, ErrorCode::kBadGateway);
    }
    HttpDestination nowhere;
    nowhere.host = "name.invalid";
    auto unknown = co_await client.client->start(nowhere, {});
    EXPECT_FALSE(unknown.ok());
  });
  EXPECT_EQ(client.stats().connections_busy, 0U);
}

TEST(HttpClient, LimitsConnectionsPerDestination) {
  HttpClientOptions options;
  options.max_connections_per_destination = 1;
  Client client(options);
  RawServer server;
  run_on(client.loop(), [&]() -> Task<void> {
    auto first = co_await client.client->start(to(server.address()), {});
    EXPECT_TRUE(first.ok());
    auto second = co_await client.client->start(to(server.address()), {});
    EXPECT_FALSE(second.ok());
    if (!second.ok()) {
      EXPECT_EQ(second.error().code, ErrorCode::kResourceExhausted);
    }
  });
}

TEST(HttpClient, AnEarlyAnswerEndsTheUpload) {
  RawServer server;
  Client client;
  std::thread peer([&] {
    RawClient connection = server.accept();
    connection.read_until("\r\n\r\n");
    connection.send("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig");
    EXPECT_TRUE(connection.wait_closed() || true);
    connection.read_to_end();
  });
  run_on(client.loop(), [&]() -> Task<void> {
    HttpRequest request;
    request.method = "POST";
    request.framing = BodyFraming::chunked();
    request.complete = false;
    auto call = co_await client.client->start(to(server.address()), request);
    EXPECT_TRUE(call.ok());
    const std::string piece(1 << 20, 'x');
    const std::string_view view = piece;
    for (int i = 0; i < 1000; ++i) {
      auto sent = co_await call->write({&view, 1});
      EXPECT_TRUE(sent.ok());
      if (!sent.ok() || *sent == HttpCall::Sent::kAnswered) break;
      EXPECT_LT(i, 999);
    }
    auto head = co_await call->response();
    EXPECT_TRUE(head.ok());
    if (head.ok()) {
      EXPECT_EQ((*head)->status, 413);
    }
    auto text = co_await drain(*call);
    EXPECT_TRUE(text.ok() && *text == "big");
  });
  peer.join();
  EXPECT_EQ(client.stats().connections_idle, 0U);
}

TEST(HttpClient, LargeBodiesGoBothWaysWhole) {
  Upstream upstream(echo);
  Client client;
  run_on(client.loop(), [&]() -> Task<void> {
    for (const size_t size : {100UL, 40'000UL, 220'000UL, 3'000'000UL}) {
      std::string body(size, '\0');
      for (size_t i = 0; i < size; ++i) body[i] = static_cast<char>(i * 13 + i / 255);
      const std::string_view view = body;
      for (const bool chunked : {false, true}) {
        HttpRequest request;
        request.method = "POST";
        request.framing = chunked ? BodyFraming::chunked() : BodyFraming::of_length(size);
        request.body = {&view, 1};
        auto call = co_await client.client->start(to(upstream.address), request);
        EXPECT_TRUE(call.ok());
        auto head = co_await call->response();
        EXPECT_TRUE(head.ok());
        if (chunked) {
          auto text = co_await drain(*call);
          EXPECT_TRUE(text.ok() && *text == body);
        } else {
          auto whole = co_await call->read_all(size);
          EXPECT_TRUE(whole.ok());
          if (whole.ok()) {
            EXPECT_TRUE(std::string_view(whole->data(), whole->size()) == body);
          }
        }
      }
    }
    auto limited = co_await client.client->start(to(upstream.address), {});
    auto head = co_await limited->response();
    EXPECT_TRUE(head.ok());
  });
  EXPECT_EQ(client.stats().connections_opened, 1U);
}

TEST(HttpClient, FetchHasOneDeadlineForEverything) {
  Upstream upstream([](HttpExchange& exchange) -> Task<void> {
    if (exchange.request().path == "/slow")
      co_await exchange.loop().sleep(std::chrono::hours(1), exchange.cancel_token());
    (void)co_await exchange.respond(200, "text/plain", "metrics");
  });
  Client client;
  run_on(client.loop(), [&]() -> Task<void> {
    HttpRequest request;
    request.target = "/metrics";
    auto good =
        co_await client.client->fetch(to(upstream.address), request, {}, std::chrono::seconds(5), 1000);
    EXPECT_TRUE(good.ok());
    if (good.ok()) {
      EXPECT_EQ(good->body, "metrics");
    }
    auto large = co_await client.client->fetch(to(upstream.address), request, {}, std::chrono::seconds(5), 3);
    EXPECT_FALSE(large.ok());
    request.target = "/slow";
    auto slow = co_await client.client->fetch(to(upstream.address), request, {}, milliseconds(20), 1000);
    EXPECT_FALSE(slow.ok());
    if (!slow.ok()) {
      EXPECT_EQ(slow.error().code, ErrorCode::kGatewayTimeout);
    }
  });
  auto blocking = http_request_blocking("GET", "http://" + upstream.address.to_string() + "/x");
  ASSERT_TRUE(blocking.ok());
  EXPECT_EQ(blocking->body, "metrics");
}

TEST(Url, IsSplitIntoItsParts) {
  auto url = parse_url("http://[::1]:81?x=1#f");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(url->port, 81);
  EXPECT_EQ(url->target, "/?x=1");
  EXPECT_EQ(parse_url("https://h/p?q")->port, 443);
  for (const char* bad : {"", "h:80", "ftp://h/", "http://", "http:///x", "http://u@h/", "http://h:99999/"})
    EXPECT_FALSE(parse_url(bad).ok()) << bad;
}

}  // namespace
}  // namespace penstock::io
