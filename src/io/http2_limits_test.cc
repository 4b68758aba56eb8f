#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "io/detail/http2_test_support.h"
#include "io/http_server.h"

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
using testing::Fields;
using testing::frame;
using testing::Http2Frame;
using testing::Http2Wire;
using testing::loopback;
using testing::number32;
using testing::RawClient;
using Served = testing::TestServer;

Task<void> ok(HttpExchange& exchange) {
  (void)co_await exchange.respond(200, "text/plain", "ok");
}

// Reads the request to its end, then answers.
Task<void> swallow(HttpExchange& exchange) {
  for (;;) {
    auto piece = co_await exchange.read();
    if (!piece.ok()) co_return;
    if (piece->last) break;
  }
  (void)co_await exchange.respond(200, "text/plain", "ok");
}

Task<void> wait_for_the_end(HttpExchange& exchange) {
  const CancelToken token = exchange.cancel_token();
  (void)co_await exchange.loop().sleep(std::chrono::seconds(60), token);
}

void expect_goaway(Http2Wire& client, uint32_t code) {
  const Http2Frame last = client.next(NGHTTP2_GOAWAY);
  ASSERT_EQ(last.type, NGHTTP2_GOAWAY);
  EXPECT_EQ(last.number(4), code);
  EXPECT_EQ(client.next().type, Http2Frame::kEnd);
}

// --- what Envoy does ---

TEST(Http2Limits, AHundredThousandExchangesEndedByAResetAfterTheAnswerAreNoAttack) {
  std::atomic<uint64_t> read{0};
  // As the picker does: answers each message, and waits for the next; the client ends the stream.
  Served served([&](HttpExchange& exchange) -> Task<void> {
    (void)exchange.write_head(200, {}, BodyFraming::chunked());
    for (;;) {
      auto piece = co_await exchange.read();
      if (!piece.ok() || piece->last) break;
      read.fetch_add(piece->data.size(), std::memory_order_relaxed);
      const std::string_view data = piece->data;
      Status written = co_await exchange.write(data);
      if (!written.ok()) break;
    }
  });
  constexpr int kExchanges = 100'000;
  constexpr int kAtOnce = 100;
  Http2Wire client(served.address);
  client.begin({{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 65536}});
  client.send(Http2Wire::window_frame(0, 0x7fffffff - 65535));
  const Fields fields = Http2Wire::request("POST", "/ext");
  client.headers(1, fields, false);  // the fields are in the table from now on
  const std::string block = client.header_block(fields);
  client.send(Http2Wire::reset_frame(1, NGHTTP2_CANCEL));
  std::string out;
  uint64_t answered = 0;
  for (int done = 0; done < kExchanges; done += kAtOnce) {
    out.clear();
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t id = 3 + 2 * (done + i);
      out += frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, id, block);
      out += Http2Wire::data_frame(id, "12345", false);
    }
    client.send(out);
    out.clear();
    for (int i = 0; i < kAtOnce;) {
      const Http2Frame got = client.next();
      ASSERT_NE(got.type, Http2Frame::kEnd);
      ASSERT_NE(got.type, NGHTTP2_GOAWAY);
      if (got.type != NGHTTP2_DATA) continue;
      ++i;
      ++answered;
      out += Http2Wire::reset_frame(got.id, NGHTTP2_INTERNAL_ERROR);
    }
    client.send(out);
  }
  EXPECT_EQ(answered, static_cast<uint64_t>(kExchanges));
  EXPECT_EQ(read.load(), 5U * kExchanges);
  EXPECT_TRUE(served.quiet());
  const HttpServer::Stats stats = served.server.stats();
  EXPECT_LE(stats.http2_early_resets, 1U);
  EXPECT_EQ(stats.http2_reset_floods, 0U);
  EXPECT_EQ(stats.connections_open, 1U);
}

// As many pickers' streams as a busy data plane holds while its answers take long: each has its handler, and
// none is left however they end.
TEST(Http2Limits, TenThousandOpenStreamsOverTenConnectionsEndWithoutARest) {
  constexpr int kConnections = 10;
  constexpr int kStreams = 1000;
  std::atomic<int> live{0};
  std::atomic<int> finished{0};
  struct Alive {
    explicit Alive(std::atomic<int>& n) : count(n) { ++count; }
    Alive(const Alive&) = delete;
    Alive& operator=(const Alive&) = delete;
    ~Alive() { --count; }
    std::atomic<int>& count;
  };
  Served served([&](HttpExchange& exchange) -> Task<void> {
    const Alive alive(live);
    (void)exchange.write_head(200, {}, BodyFraming::chunked());
    Status flushed = co_await exchange.flush();
    if (!flushed.ok()) co_return;
    for (;;) {
      auto piece = co_await exchange.read();
      if (!piece.ok()) co_return;
      if (piece->last) break;
    }
    ++finished;
    (void)co_await exchange.finish();
  });
  std::vector<std::unique_ptr<Http2Wire>> clients;
  for (int c = 0; c < kConnections; ++c) {
    clients.push_back(std::make_unique<Http2Wire>(served.address));
    Http2Wire& client = *clients.back();
    client.begin();
    std::string out;
    for (int i = 0; i < kStreams; ++i)
      out += client.headers_frame(1 + 2 * i, Http2Wire::request("POST", "/ext"), false);
    client.send(out);
    for (int i = 0; i < kStreams; ++i) ASSERT_EQ(client.next().type, NGHTTP2_HEADERS);
  }
  EXPECT_EQ(live, kConnections * kStreams);
  EXPECT_EQ(served.server.stats().open_exchanges, static_cast<uint64_t>(kConnections) * kStreams);
  EXPECT_EQ(served.server.stats().connections_open, static_cast<uint64_t>(kConnections));
  // Some end by the client's last byte, some by its reset, some with their connection.
  std::string ends;
  std::string resets;
  for (int i = 0; i < kStreams; ++i) {
    ends += Http2Wire::data_frame(1 + 2 * i, "", true);
    resets += Http2Wire::reset_frame(1 + 2 * i, NGHTTP2_INTERNAL_ERROR);
  }
  for (int c = 0; c < kConnections; ++c) {
    if (c % 3 == 0) {
      clients[c]->send(ends);
      for (int i = 0; i < kStreams; ++i) ASSERT_TRUE(clients[c]->next(NGHTTP2_DATA).end_stream());
    } else if (c % 3 == 1) {
      clients[c]->send(resets);
      clients[c]->ping();
    } else {
      clients[c].reset();
    }
  }
  EXPECT_TRUE(eventually([&] { return live == 0; }));
  EXPECT_TRUE(served.quiet());
  EXPECT_EQ(finished, 4 * kStreams);
  const HttpServer::Stats stats = served.server.stats();
  EXPECT_EQ(stats.open_exchanges, 0U);
  EXPECT_EQ(stats.http2_refused_streams, 0U);
  EXPECT_EQ(stats.http2_early_resets, 0U);
  EXPECT_EQ(stats.http2_queued_bytes, 0U);
}

TEST(Http2Limits, WhatCameBeforeAResetIsStillRead) {
  std::atomic<int> state{0};
  std::string got;
  Served served([&](HttpExchange& exchange) -> Task<void> {
    (void)exchange.write_head(200, {}, BodyFraming::chunked());
    (void)co_await exchange.flush();
    state = 1;
    for (;;) {
      auto piece = co_await exchange.read();
      if (!piece.ok()) {
        EXPECT_EQ(piece.error().code, ErrorCode::kClientClosed);
        EXPECT_TRUE(exchange.cancel_token().cancelled());
        state = 2;
        co_return;
      }
      got += piece->data;
    }
  });
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("POST", "/"), false);
  ASSERT_TRUE(eventually([&] { return state == 1; }));
  client.send(Http2Wire::data_frame(1, "the end", false) + Http2Wire::reset_frame(1, NGHTTP2_INTERNAL_ERROR));
  ASSERT_TRUE(eventually([&] { return state == 2; }));
  EXPECT_EQ(got, "the end");
}

// --- attacks ---

TEST(Http2Limits, RapidResetsEndTheConnection) {
  HttpServerOptions options;
  options.http2.reset_burst = 200;
  options.http2.resets_per_second = 1;
  std::atomic<int> started{0};
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        ++started;
        co_await wait_for_the_end(exchange);
      },
      options);
  Http2Wire client(served.address);
  client.begin();
  for (int i = 0; i < 300; ++i) {
    const int32_t id = 1 + 2 * i;
    client.send(client.headers_frame(id, Http2Wire::request("GET", "/"), true) +
                Http2Wire::reset_frame(id, NGHTTP2_CANCEL));
  }
  expect_goaway(client, NGHTTP2_ENHANCE_YOUR_CALM);
  EXPECT_TRUE(served.quiet());
  EXPECT_EQ(served.server.stats().http2_reset_floods, 1U);
  EXPECT_EQ(served.server.stats().http2_early_resets, 201U);
  EXPECT_LE(started.load(), 201);
}

TEST(Http2Limits, ResetsFasterThanHandlersEndCountToo) {
  HttpServerOptions options;
  options.http2.max_concurrent_streams = 4;
  options.http2.reset_burst = 50;
  options.http2.resets_per_second = 1;
  Served served(wait_for_the_end, options);
  Http2Wire client(served.address);
  client.begin();
  std::string all;
  for (int i = 0; i < 100; ++i) {
    all += client.headers_frame(1 + 2 * i, Http2Wire::request("GET", "/"), true);
    all += Http2Wire::reset_frame(1 + 2 * i, NGHTTP2_CANCEL);
  }
  client.send(all);
  expect_goaway(client, NGHTTP2_ENHANCE_YOUR_CALM);
  EXPECT_TRUE(served.quiet());
}

TEST(Http2Limits, MakingUsResetStreamsCountsToo) {
  HttpServerOptions options;
  options.http2.reset_burst = 50;
  options.http2.resets_per_second = 1;
  Served served(wait_for_the_end, options);
  Http2Wire client(served.address);
  client.begin();
  for (int i = 0; i < 100; ++i) {
    const int32_t id = 1 + 2 * i;
    // A window beyond 2^31 is an error of that stream.
    client.send(client.headers_frame(id, Http2Wire::request("GET", "/"), true) +
                Http2Wire::window_frame(id, 0x7fffffff));
  }
  expect_goaway(client, NGHTTP2_ENHANCE_YOUR_CALM);
  EXPECT_TRUE(served.quiet());
  EXPECT_EQ(served.server.stats().http2_reset_floods, 1U);
}

TEST(Http2Limits, EndlessContinuationsEndTheConnection) {
  Served served(ok);
  Http2Wire client(served.address);
  client.begin();
  client.ping();  // nothing of ours comes in between
  client.send(frame(NGHTTP2_HEADERS, 0, 1, client.header_block(Http2Wire::request("GET", "/"))));
  for (int i = 0; i < 100; ++i) client.send(frame(NGHTTP2_CONTINUATION, 0, 1, ""));
  expect_goaway(client, NGHTTP2_ENHANCE_YOUR_CALM);
  EXPECT_EQ(served.server.stats().http2_continuation_floods, 1U);
}

TEST(Http2Limits, FramesThatMoveNothingEndTheConnection) {
  HttpServerOptions options;
  options.http2.control_burst = 500;
  options.http2.control_per_second = 10;
  std::string payload(8, 'p');
  const std::vector<std::pair<std::string, std::string>> floods = {
      {"ping", frame(NGHTTP2_PING, 0, 0, payload)},
      {"settings", frame(NGHTTP2_SETTINGS, 0, 0, "")},
      {"priority", frame(NGHTTP2_PRIORITY, 0, 5, number32(0) + "\x10")},
      {"empty data", Http2Wire::data_frame(1, "", false)},
      {"window", Http2Wire::window_frame(0, 1)},
  };
  for (const auto& [name, bytes] : floods) {
    SCOPED_TRACE(name);
    Served served(swallow, options);
    Http2Wire client(served.address);
    client.begin();
    client.headers(1, Http2Wire::request("POST", "/"), false);
    std::string many;
    for (int i = 0; i < 1000; ++i) many += bytes;
    client.send(many);
    Http2Frame last = client.next(NGHTTP2_GOAWAY);
    ASSERT_EQ(last.type, NGHTTP2_GOAWAY);
    EXPECT_EQ(last.number(4), static_cast<uint32_t>(NGHTTP2_ENHANCE_YOUR_CALM));
    EXPECT_TRUE(served.quiet());
    EXPECT_EQ(served.server.stats().http2_control_floods, 1U);
  }
}

TEST(Http2Limits, ControlFramesThatComeWithWorkAreFine) {
  HttpServerOptions options;
  options.http2.control_burst = 100;
  options.http2.control_per_second = 1;
  Served served(swallow, options);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("POST", "/"), false);
  // grpc-go sends a PING with each window update.
  for (int i = 0; i < 2000; ++i)
    client.send(Http2Wire::data_frame(1, "x", false) + frame(NGHTTP2_PING, 0, 0, "12345678") +
                Http2Wire::window_frame(0, 1));
  client.data(1, "", true);
  EXPECT_EQ(client.answer(1).status, 200);
  EXPECT_EQ(served.server.stats().http2_control_floods, 0U);
}

TEST(Http2Limits, AHeaderBlockThatDoesNotEndIsTimedOut) {
  HttpServerOptions options;
  options.header_timeout = milliseconds(60);
  Served served(ok, options);
  Http2Wire client(served.address);
  client.begin();
  client.ping();  // nothing of ours comes in between
  client.send(frame(NGHTTP2_HEADERS, 0, 1, client.header_block(Http2Wire::request("GET", "/"))));
  expect_goaway(client, NGHTTP2_ENHANCE_YOUR_CALM);
  EXPECT_EQ(served.server.stats().http2_header_timeouts, 1U);
}

TEST(Http2Limits, ABombOfIndexedFieldsIsNotStored) {
  HttpServerOptions options;
  options.max_header_bytes = 8192;
  Served served(ok, options);
  Http2Wire client(served.address);
  client.begin();
  Fields fields = Http2Wire::request("GET", "/");
  // Large once, then one byte each.
  for (int i = 0; i < 5000; ++i) fields.emplace_back("x-bomb", std::string(2900, 'b'));
  client.headers(1, fields, true);
  EXPECT_EQ(client.answer(1).reset_code, static_cast<uint32_t>(NGHTTP2_INTERNAL_ERROR));
  client.headers(3, Http2Wire::request("GET", "/"), true);
  EXPECT_EQ(client.answer(3).status, 200);
}

TEST(Http2Limits, MoreStreamsThanAllowedAreRefused) {
  HttpServerOptions options;
  options.http2.max_concurrent_streams = 4;
  Served served(wait_for_the_end, options);
  {
    Http2Wire client(served.address);
    client.begin();
    // Before the client knows the limit.
    for (int i = 0; i < 5; ++i) client.headers(1 + 2 * i, Http2Wire::request("GET", "/"), true);
    const Http2Frame refused = client.next(NGHTTP2_RST_STREAM);
    EXPECT_EQ(refused.id, 9);
    EXPECT_EQ(refused.number(), static_cast<uint32_t>(NGHTTP2_REFUSED_STREAM));
    EXPECT_EQ(served.server.stats().http2_refused_streams, 1U);
  }
  EXPECT_TRUE(served.quiet());
  Http2Wire client(served.address);
  client.begin();
  client.ping();
  client.ping();  // now it knows
  for (int i = 0; i < 5; ++i) client.headers(1 + 2 * i, Http2Wire::request("GET", "/"), true);
  expect_goaway(client, NGHTTP2_PROTOCOL_ERROR);
  EXPECT_TRUE(served.quiet());
}

TEST(Http2Limits, ThousandsOfStreamsAtOnceAreServed) {
  std::atomic<int> started{0};
  HttpServerOptions options;
  options.http2.max_concurrent_streams = 5000;
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        ++started;
        co_await swallow(exchange);
      },
      options);
  Http2Wire client(served.address);
  client.begin();
  constexpr int kStreams = 4000;
  for (int i = 0; i < kStreams; ++i) client.headers(1 + 2 * i, Http2Wire::request("POST", "/"), false);
  ASSERT_TRUE(eventually([&] { return started == kStreams; }));
  for (int i = 0; i < kStreams; ++i) client.data(1 + 2 * i, "x", true);
  for (int i = 0; i < kStreams; ++i) ASSERT_EQ(client.answer(1 + 2 * i).status, 200);
  EXPECT_TRUE(served.quiet());
}

TEST(Http2Limits, ProtocolErrorsOfTheConnectionEndItWithTheirReason) {
  const std::vector<std::pair<std::string, uint32_t>> cases = {
      {Http2Wire::data_frame(1, "on an idle stream", false), NGHTTP2_PROTOCOL_ERROR},
      {frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1, "\xff\xff\xff\xff\xff"),
       NGHTTP2_COMPRESSION_ERROR},
      {frame(NGHTTP2_SETTINGS, 0, 0, "abc"), NGHTTP2_FRAME_SIZE_ERROR},
      {Http2Wire::window_frame(0, 0x7fffffff), NGHTTP2_FLOW_CONTROL_ERROR},
      {frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 2, "\x82"), NGHTTP2_PROTOCOL_ERROR},
      {frame(NGHTTP2_DATA, 0, 1, std::string(20'000, 'x')), NGHTTP2_FRAME_SIZE_ERROR},
  };
  for (const auto& [bytes, code] : cases) {
    Served served(ok);
    Http2Wire client(served.address);
    client.begin();
    client.send(bytes);
    expect_goaway(client, code);
    EXPECT_EQ(served.server.stats().http2_protocol_errors, 1U);
  }
}

TEST(Http2Limits, MalformedRequestsResetTheirStreamOnly) {
  Served served(ok);
  Http2Wire client(served.address);
  client.begin();
  const std::vector<Fields> cases = {
      {{":method", "GET"}, {":scheme", "http"}},                                                 // no path
      {{":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {":path", "/"}},                 // twice
      {{":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {"Upper", "x"}},                 // case
      {{":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {"connection", "close"}},        // HTTP/1
      {{":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {"te", "gzip"}},                 //
      {{":method", "GET"}, {"x", "y"}, {":scheme", "http"}, {":path", "/"}},                     // order
      {{":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {"x", std::string("a\0b", 3)}},  // NUL
      {{":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {"bad name", "x"}},
      {{":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {":status", "200"}},
  };
  int32_t id = 1;
  for (const Fields& fields : cases) {
    client.headers(id, fields, true);
    EXPECT_EQ(client.answer(id).reset_code, static_cast<uint32_t>(NGHTTP2_PROTOCOL_ERROR)) << id;
    id += 2;
  }
  // A body that isn't as long as declared.
  client.headers(id, Http2Wire::request("POST", "/", {{"content-length", "10"}}), false);
  client.data(id, "short", true);
  const auto answer = client.answer(id);
  EXPECT_TRUE(answer.reset_code == NGHTTP2_PROTOCOL_ERROR || answer.whole);
  id += 2;
  client.headers(id, Http2Wire::request("GET", "/"), true);
  EXPECT_EQ(client.answer(id).status, 200);
  EXPECT_GE(served.server.stats().http2_malformed_streams, cases.size());
  EXPECT_TRUE(served.quiet());
}

// --- flow control ---

TEST(Http2Limits, WritersWaitForTheClientsWindowAndAreTimedOut) {
  HttpServerOptions options;
  options.write_timeout = milliseconds(100);
  options.http2.stream_queue_bytes = 20'000;
  std::atomic<int> outcome{0};
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        (void)exchange.write_head(200, {}, BodyFraming::chunked());
        const std::string piece(10'000, 'x');
        for (int i = 0;; ++i) {
          Status written = co_await exchange.write(piece);
          if (!written.ok()) {
            outcome = written.error().code == ErrorCode::kRequestTimeout ? i : -1;
            co_return;
          }
        }
      },
      options);
  Http2Wire client(served.address);
  client.begin({{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 5000}});
  client.headers(1, Http2Wire::request("GET", "/"), true);
  EXPECT_EQ(client.next(NGHTTP2_DATA).payload.size(), 5000U);
  ASSERT_TRUE(eventually([&] { return outcome != 0; }));
  EXPECT_EQ(outcome, 2);  // two pieces fit the window and the queue
  EXPECT_EQ(client.next(NGHTTP2_RST_STREAM).id, 1);
  EXPECT_TRUE(served.quiet());
}

// The bound holds over all connections, is no obstacle to whoever takes its bytes, and is given back.
TEST(Http2Limits, AllConnectionsTogetherQueueNoMoreThanTheirTotal) {
  constexpr size_t kPiece = 10'000;
  HttpServerOptions options;
  options.http2.stream_queue_bytes = 2 * kPiece;
  options.http2.total_queue_bytes = 5 * kPiece;
  std::atomic<int> begun{0};
  std::atomic<int> queued{0};
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        (void)exchange.write_head(200, {}, BodyFraming::chunked());
        const std::string piece(kPiece, 'x');
        for (int i = 0; i < 4; ++i) {
          ++begun;
          Status written = co_await exchange.write(piece);
          if (!written.ok()) co_return;
          ++queued;
        }
        (void)co_await exchange.finish();
      },
      options);
  std::vector<std::unique_ptr<Http2Wire>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Http2Wire>(served.address));
    clients.back()->begin({{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0}});
    clients.back()->headers(1, Http2Wire::request("GET", "/"), true);
    clients.back()->ping();  // its handler has come as far as it can
  }
  EXPECT_EQ(queued, 5);  // two, two, and one where a single connection would take two
  EXPECT_EQ(begun, 8);
  EXPECT_EQ(served.server.stats().http2_queued_bytes, 5 * kPiece);
  clients[2]->send(Http2Wire::window_frame(1, 4 * kPiece + 1));
  EXPECT_EQ(clients[2]->answer(1).body.size(), 4 * kPiece);
  EXPECT_EQ(served.server.stats().http2_queued_bytes, 4 * kPiece);
  clients.clear();
  EXPECT_TRUE(served.quiet());
  EXPECT_EQ(served.server.stats().http2_queued_bytes, 0U);
}

// What the socket doesn't take counts too.
TEST(Http2Limits, BytesThatWaitForTheSocketAreCounted) {
  HttpServerOptions options;
  options.http2.stream_queue_bytes = 1;  // nothing is queued but there
  std::atomic<bool> stop{false};
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        (void)exchange.write_head(200, {}, BodyFraming::chunked());
        const std::string piece(64 * 1024, 'x');
        while (!stop) {
          Status written = co_await exchange.write(piece);
          if (!written.ok()) co_return;
        }
      },
      options);
  {
    Http2Wire client(served.address);
    client.begin({{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0x7fffffff}});
    client.send(Http2Wire::window_frame(0, 0x7fffffff - 65535));
    client.headers(1, Http2Wire::request("GET", "/"), true);
    EXPECT_TRUE(eventually([&] { return served.server.stats().http2_queued_bytes > 1024; }));
    stop = true;
  }
  EXPECT_TRUE(served.quiet());
  EXPECT_EQ(served.server.stats().http2_queued_bytes, 0U);
}

// Its reset has to wait for the socket, too; the handler need not.
TEST(Http2Limits, AbortingEndsAWriteThatWaitsForTheSocket) {
  HttpServerOptions options;
  options.http2.stream_queue_bytes = 1;
  std::atomic<HttpExchange*> writing{nullptr};
  std::atomic<bool> ended{false};
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        writing = &exchange;
        (void)exchange.write_head(200, {}, BodyFraming::chunked());
        const std::string piece(64 * 1024, 'x');
        Status written;
        while (written.ok()) written = co_await exchange.write(piece);
        EXPECT_EQ(written.error().code, ErrorCode::kClientClosed);
        ended = true;
      },
      options);
  {
    Http2Wire client(served.address);
    client.begin({{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0x7fffffff}});
    client.send(Http2Wire::window_frame(0, 0x7fffffff - 65535));
    client.headers(1, Http2Wire::request("GET", "/"), true);
    EXPECT_TRUE(eventually([&] { return served.server.stats().http2_queued_bytes > 1024; }));
    served.loops.at(0).post([&] { writing.load()->abort(); });
    EXPECT_TRUE(eventually([&] { return ended.load(); }));
  }
  EXPECT_TRUE(served.quiet());
}

TEST(Http2Limits, AnswersThatTheClientNeverTakesAreResetAfterTheTimeout) {
  HttpServerOptions options;
  options.write_timeout = milliseconds(60);
  Served served(ok, options);
  Http2Wire client(served.address);
  client.begin({{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0}});
  client.headers(1, Http2Wire::request("GET", "/"), true);
  EXPECT_EQ(client.next(NGHTTP2_RST_STREAM).id, 1);
  EXPECT_TRUE(served.quiet());
  EXPECT_EQ(served.server.stats().http2_stalled_streams, 1U);
}

TEST(Http2Limits, AnEndThatTheClientNeverTakesIsResetToo) {
  HttpServerOptions options;
  options.write_timeout = milliseconds(60);
  std::atomic<bool> taken{false};
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        (void)exchange.write_head(200, {}, BodyFraming::chunked());
        const std::string_view piece = "hello";
        (void)co_await exchange.write(piece);
        while (!taken) {
          const bool slept = co_await exchange.loop().sleep(milliseconds(1), exchange.cancel_token());
          if (!slept) co_return;
        }
        (void)co_await exchange.finish();
      },
      options);
  Http2Wire client(served.address);
  client.begin({{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 5}});
  client.headers(1, Http2Wire::request("GET", "/"), true);
  EXPECT_EQ(client.next(NGHTTP2_DATA).payload, "hello");
  taken = true;
  EXPECT_EQ(client.next(NGHTTP2_RST_STREAM).id, 1);
  EXPECT_TRUE(served.quiet());
  EXPECT_EQ(served.server.stats().http2_stalled_streams, 1U);
}

TEST(Http2Limits, BodiesInManyPiecesAreGatheredWhole) {
  HttpServerOptions options;
  options.http2.stream_queue_bytes = 1;  // all is sent from where it lies
  constexpr size_t kFrame = 16384;
  // By path: one frame in a single piece, or in as many as there can be: pieces that are referred to and
  // pieces that are copied by turns.
  const auto sizes = [](std::string_view path) {
    if (path == "/one") return std::vector<size_t>{kFrame};
    std::vector<size_t> out;
    for (size_t left = kFrame; left != 0; left -= out.back())
      out.push_back(out.size() % 2 == 0 && left >= 2048 ? 2048 : 1);
    return out;
  };
  std::atomic<size_t> writing{0};
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        std::vector<std::string> owned;
        for (const size_t size : sizes(exchange.request().path))
          owned.emplace_back(size, static_cast<char>('a' + owned.size() % 26));
        const std::vector<std::string_view> pieces(owned.begin(), owned.end());
        (void)exchange.write_head(200, {}, BodyFraming::chunked());
        ++writing;
        (void)co_await exchange.finish(pieces, {});
      },
      options);
  Http2Wire client(served.address);
  client.begin({{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0}});
  client.send(Http2Wire::window_frame(0, 0x7fffffff - 65535));
  int32_t id = 1;
  // The number of those in a single piece moves where the last place of the gathering falls.
  for (int ones = 0; ones < 16; ++ones) {
    std::vector<std::string> paths(11, "/many");
    paths.insert(paths.end(), static_cast<size_t>(ones), "/one");
    paths.insert(paths.end(), 2, "/many");
    writing = 0;
    std::string open;
    for (size_t i = 0; i < paths.size(); ++i) {
      const int32_t stream = id + static_cast<int32_t>(2 * i);
      client.headers(stream, Http2Wire::request("GET", paths[i]), true);
      open += Http2Wire::window_frame(stream, kFrame);
    }
    ASSERT_TRUE(eventually([&] { return writing == paths.size(); }));
    client.ping();
    client.send(open);  // all at once
    for (const std::string& path : paths) {
      std::string expected;
      size_t at = 0;
      for (const size_t size : sizes(path)) expected.append(size, static_cast<char>('a' + at++ % 26));
      EXPECT_EQ(client.answer(id).body, expected) << id;
      id += 2;
    }
  }
  EXPECT_TRUE(served.quiet());
}

TEST(Http2Limits, AClientThatReadsNothingIsClosedAfterTheTimeout) {
  HttpServerOptions options;
  options.write_timeout = milliseconds(100);
  Served served(
      [](HttpExchange& exchange) -> Task<void> {
        (void)exchange.write_head(200, {}, BodyFraming::chunked());
        const std::string piece(100'000, 'x');
        for (;;) {
          Status written = co_await exchange.write(piece);
          if (!written.ok()) co_return;
        }
      },
      options);
  RawClient socket(served.address);
  socket.set_receive_buffer(4096);
  Http2Wire client(std::move(socket));
  client.begin({{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0x7fffffff}});
  client.send(Http2Wire::window_frame(0, 0x7fffffff - 65535));
  client.headers(1, Http2Wire::request("GET", "/"), true);
  EXPECT_TRUE(eventually([&] { return served.server.stats().http2_write_timeouts == 1; }));
  EXPECT_TRUE(served.quiet());
  EXPECT_TRUE(eventually([&] { return served.server.stats().connections_open == 0; }));
}

TEST(Http2Limits, TheWindowOpensOnlyAsTheHandlerReads) {
  HttpServerOptions options;
  options.http2.stream_window_bytes = 65'535;
  std::atomic<bool> go{false};
  std::atomic<uint64_t> total{0};
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        while (!go) {
          const bool slept = co_await exchange.loop().sleep(milliseconds(1), exchange.cancel_token());
          if (!slept) co_return;
        }
        for (;;) {
          auto piece = co_await exchange.read();
          if (!piece.ok()) co_return;
          total += piece->data.size();
          if (piece->last) break;
        }
        (void)co_await exchange.respond(200, "", "");
      },
      options);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("POST", "/"), false);
  for (int i = 0; i < 4; ++i) client.data(1, std::string(16'000, 'x'), false);
  client.ping();
  EXPECT_EQ(client.windows[1], 0U);
  go = true;
  ASSERT_TRUE(eventually([&] { return total == 64'000; }));
  client.ping();
  EXPECT_GE(client.windows[1], 32'000U);
  client.data(1, "", true);
  EXPECT_EQ(client.answer(1).status, 200);
}

TEST(Http2Limits, UnreadBodiesGiveTheirPartOfTheConnectionsWindowBack) {
  HttpServerOptions options;
  options.http2.stream_window_bytes = 65'535;
  options.http2.connection_window_bytes = 65'535;
  Served served([](HttpExchange& exchange) -> Task<void> { co_await ok(exchange); }, options);
  Http2Wire client(served.address);
  client.begin();
  for (int i = 0; i < 50; ++i) {
    const int32_t id = 1 + 2 * i;
    client.send(client.headers_frame(id, Http2Wire::request("POST", "/"), false) +
                Http2Wire::data_frame(id, std::string(10'000, 'x'), true));
    EXPECT_EQ(client.answer(id).status, 200);
  }
  client.ping();
  EXPECT_GE(client.windows[0], 500'000U - 65'535U);
}

TEST(Http2Limits, AClientThatSendsMoreThanTheWindowIsStopped) {
  HttpServerOptions options;
  options.http2.stream_window_bytes = 20'000;
  Served served(wait_for_the_end, options);
  Http2Wire client(served.address);
  client.begin();
  client.ping();
  client.ping();
  client.headers(1, Http2Wire::request("POST", "/"), false);
  for (int i = 0; i < 2; ++i) client.data(1, std::string(16'000, 'x'), false);
  const Http2Frame got = client.next(NGHTTP2_RST_STREAM);
  EXPECT_EQ(got.number(), static_cast<uint32_t>(NGHTTP2_FLOW_CONTROL_ERROR));
  EXPECT_TRUE(served.quiet());
}

// --- ends ---

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

// --- loops ---

TEST(Http2Limits, TwoConnectionsUseTwoLoops) {
  std::mutex mutex;
  std::set<size_t> loops;
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        {
          const std::lock_guard<std::mutex> lock(mutex);
          loops.insert(exchange.loop().index());
        }
        co_await ok(exchange);
      },
      {}, 2);
  Http2Wire first(served.address);
  first.begin();
  first.headers(1, Http2Wire::request("GET", "/"), true);
  EXPECT_EQ(first.answer(1).status, 200);
  Http2Wire second(served.address);
  second.begin();
  second.headers(1, Http2Wire::request("GET", "/"), true);
  EXPECT_EQ(second.answer(1).status, 200);
  EXPECT_EQ(loops.size(), 2U);
}

TEST(Http2Limits, AnOverloadedLoopAsksAConnectionToComeAgain) {
  HttpServerOptions options;
  options.http2.rebalance_streams = 8;
  options.http2.rebalance_after = milliseconds(40);
  std::mutex mutex;
  std::map<uint64_t, size_t> loop_of;
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        {
          const std::lock_guard<std::mutex> lock(mutex);
          loop_of[exchange.connection().id] = exchange.loop().index();
        }
        co_await wait_for_the_end(exchange);
      },
      options, 2);
  // Three connections; those two of one loop get all the streams.
  std::vector<std::unique_ptr<Http2Wire>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Http2Wire>(served.address));
    clients.back()->begin();
    clients.back()->headers(1, Http2Wire::request("GET", "/"), true);
    EXPECT_TRUE(eventually([&] {
      const std::lock_guard<std::mutex> lock(mutex);
      return loop_of.size() == static_cast<size_t>(i) + 1;
    }));
  }
  std::vector<size_t> loops;
  for (const auto& [id, loop] : loop_of) loops.push_back(loop);
  const size_t crowded = loops[2];
  for (size_t i = 0; i < 3; ++i)
    for (int more = 1; loops[i] == crowded && more < 12; ++more)
      clients[i]->headers(1 + 2 * more, Http2Wire::request("GET", "/"), true);
  EXPECT_TRUE(eventually([&] { return served.server.stats().http2_rebalanced == 1; }));
}

}  // namespace
}  // namespace penstock::io
