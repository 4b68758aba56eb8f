#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>

#include "io/detail/http2_served_support.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PENSTOCK_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PENSTOCK_TEST_SANITIZED 1
#endif
#endif
#ifdef PENSTOCK_TEST_SANITIZED
// Of the sanitizers' run-time; GCC ships no header for it.
extern "C" size_t __sanitizer_get_current_allocated_bytes();
#endif

namespace penstock::io {
namespace {

using std::chrono::milliseconds;
using testing::eventually;
using testing::Http2Frame;
using testing::Http2Wire;
using testing::ok;
using testing::Served;
using testing::wait_for_the_end;

TEST(Http2Limits, AHalfClosedStreamIsAnsweredAndAHalfSentOneTimesOut) {
  HttpServerOptions options;
  options.body_timeout = milliseconds(50);
  std::atomic<int> timed_out{0};
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        auto body = co_await exchange.read_all(1000);
        if (!body.ok() && body.error().code == ErrorCode::kRequestTimeout) ++timed_out;
        (void)co_await exchange.respond(body.ok() ? 200 : 408, "", "");
      },
      options);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("POST", "/"), false);
  client.data(1, "half", false);
  EXPECT_EQ(client.answer(1).status, 408);
  EXPECT_EQ(timed_out, 1);
  client.headers(3, Http2Wire::request("POST", "/"), false);
  client.data(3, "", true);
  EXPECT_EQ(client.answer(3).status, 200);
  EXPECT_TRUE(served.quiet());
}

// What a body may still send after it was given up on.
void upload(Http2Wire& client, uint64_t bytes) {
  const std::string piece(16'000, 'x');
  uint64_t sent = 0;
  int rounds = 0;
  while (sent < bytes && rounds < 5) {
    client.ping();
    ++rounds;
    const uint64_t window = client.peer_settings[NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE] + client.windows[1];
    for (; sent < bytes && sent + piece.size() <= window; sent += piece.size(), rounds = 0)
      client.data(1, piece, false);
  }
}

// Bytes the program has allocated and not freed. Unlike resident memory it knows no allocator's reserves:
// ASan keeps up to 256 MiB of freed blocks back.
size_t live_bytes() {
#ifdef PENSTOCK_TEST_SANITIZED
  return __sanitizer_get_current_allocated_bytes();
#else
  const struct mallinfo2 heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
#endif
}

TEST(Http2Limits, ABodyThatWasGivenUpOnIsBoundedByItsWindow) {
  HttpServerOptions options;
  options.body_timeout = milliseconds(30);
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        auto body = co_await exchange.read_all(1000);
        EXPECT_FALSE(body.ok());
        (void)exchange.write_head(408, {}, BodyFraming::chunked());
        (void)co_await exchange.flush();
        co_await wait_for_the_end(exchange);
      },
      options);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("POST", "/"), false);
  EXPECT_EQ(client.next(NGHTTP2_HEADERS).id, 1);
  upload(client, 4U << 20U);
  EXPECT_EQ(client.windows[1], 0U);
}

TEST(Http2Limits, WhatComesAfterTheHandlerHasEndedIsDropped) {
  HttpServerOptions options;
  options.body_timeout = milliseconds(30);
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        auto body = co_await exchange.read_all(1000);
        EXPECT_FALSE(body.ok());
        (void)co_await exchange.respond(408, "text/plain", "too late");
      },
      options);
  Http2Wire client(served.address);
  client.begin({{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0}});
  client.headers(1, Http2Wire::request("POST", "/"), false);
  EXPECT_EQ(client.next(NGHTTP2_HEADERS).id, 1);
  const size_t before = live_bytes();
  upload(client, 64U << 20U);
  EXPECT_GT(client.windows[1], 60U << 20U);
  EXPECT_LT(live_bytes(), before + (8U << 20U));
}

TEST(Http2Limits, ALostConnectionCancelsAllItsExchanges) {
  std::atomic<int> waiting{0};
  std::atomic<int> cancelled{0};
  Served served([&](HttpExchange& exchange) -> Task<void> {
    ++waiting;
    if (exchange.request().path == "/read") {
      auto piece = co_await exchange.read();
      if (!piece.ok() && piece.error().code == ErrorCode::kClientClosed) ++cancelled;
    } else {
      const CancelToken token = exchange.cancel_token();
      const bool slept = co_await exchange.loop().sleep(std::chrono::seconds(60), token);
      if (!slept) ++cancelled;
    }
  });
  for (const bool reset : {false, true}) {
    waiting = cancelled = 0;
    Http2Wire client(served.address);
    client.begin();
    for (int i = 0; i < 20; ++i)
      client.headers(1 + 2 * i, Http2Wire::request("POST", i % 2 == 0 ? "/read" : "/wait"), false);
    ASSERT_TRUE(eventually([&] { return waiting == 20; }));
    if (reset) {
      client.socket().reset();
    } else {
      client.socket().close();
    }
    EXPECT_TRUE(eventually([&] { return cancelled == 20; }));
    EXPECT_TRUE(served.quiet());
    EXPECT_TRUE(eventually([&] { return served.server.stats().connections_open == 0; }));
  }
}

TEST(Http2Limits, DrainingTellsTwiceAndLetsOpenStreamsEnd) {
  std::atomic<bool> go{false};
  Served served([&](HttpExchange& exchange) -> Task<void> {
    while (!go) {
      const bool slept = co_await exchange.loop().sleep(milliseconds(1), exchange.cancel_token());
      if (!slept) co_return;
    }
    co_await ok(exchange);
  });
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("GET", "/"), true);
  EXPECT_TRUE(eventually([&] { return served.server.stats().open_exchanges == 1; }));
  served.server.begin_drain();
  const Http2Frame notice = client.next();
  EXPECT_EQ(notice.type, NGHTTP2_GOAWAY);
  EXPECT_EQ(notice.number(), 0x7fffffffU);
  // One that was on its way is still taken.
  client.headers(3, Http2Wire::request("GET", "/"), true);
  const Http2Frame last = client.next();  // the PING has been answered by then
  EXPECT_EQ(last.type, NGHTTP2_GOAWAY);
  EXPECT_EQ(last.number(4), static_cast<uint32_t>(NGHTTP2_NO_ERROR));
  go = true;
  EXPECT_EQ(client.answer(1).status, 200);
  if (last.number() == 3) {
    EXPECT_EQ(client.answer(3).status, 200);
  }
  EXPECT_EQ(client.next().type, Http2Frame::kEnd);
}

TEST(Http2Limits, StoppingEndsStreamsAndConnections) {
  auto served = std::make_unique<Served>(wait_for_the_end);
  Http2Wire client(served->address);
  client.begin();
  client.headers(1, Http2Wire::request("GET", "/"), true);
  EXPECT_TRUE(eventually([&] { return served->server.stats().open_exchanges == 1; }));
  served->server.stop();
  EXPECT_EQ(served->server.stats().open_exchanges, 0U);
  EXPECT_EQ(served->server.stats().connections_open, 0U);
  Http2Frame got = client.next();
  while (got.type != Http2Frame::kEnd) got = client.next();
}

TEST(Http2Limits, IdleConnectionsAreEndedWithGoaway) {
  HttpServerOptions options;
  options.idle_timeout = milliseconds(40);
  Served served(ok, options);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("GET", "/"), true);
  EXPECT_EQ(client.answer(1).status, 200);
  EXPECT_EQ(client.next().number(), 0x7fffffffU);
  EXPECT_EQ(client.next().number(), 1U);
  EXPECT_EQ(client.next().type, Http2Frame::kEnd);
}

TEST(Http2Limits, OldConnectionsAreEndedWithGoaway) {
  HttpServerOptions options;
  options.http2.max_connection_age = milliseconds(40);
  Served served(ok, options);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("GET", "/"), true);
  EXPECT_EQ(client.answer(1).status, 200);
  EXPECT_EQ(client.next().type, NGHTTP2_GOAWAY);
}

TEST(Http2Limits, ASilentClientIsFoundByPing) {
  HttpServerOptions options;
  options.http2.ping_interval = milliseconds(30);
  options.http2.ping_timeout = milliseconds(60);
  Served served(wait_for_the_end, options);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("GET", "/"), true);
  // It answers nothing: it doesn't read.
  EXPECT_TRUE(eventually([&] { return served.server.stats().http2_ping_timeouts == 1; }));
  EXPECT_TRUE(served.quiet());
}

TEST(Http2Limits, AClientThatSaysSomethingAfterAPingIsAskedAgain) {
  HttpServerOptions options;
  options.http2.ping_interval = milliseconds(30);
  options.http2.ping_timeout = milliseconds(60);
  Served served(wait_for_the_end, options);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("GET", "/"), true);
  // It sends something, but never the answer; then nothing.
  std::string got;
  while (got.find(std::string("\0\0\x08\x06\0", 5)) == std::string::npos) {
    const std::string more = client.socket().receive();
    ASSERT_FALSE(more.empty());
    got += more;
  }
  client.send(Http2Wire::window_frame(0, 1));
  EXPECT_TRUE(eventually([&] { return served.server.stats().http2_ping_timeouts == 1; }));
  EXPECT_TRUE(served.quiet());
}

}  // namespace
}  // namespace penstock::io
