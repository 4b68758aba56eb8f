#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

#include "io/detail/http2_served_support.h"

namespace penstock::io {
namespace {

using std::chrono::milliseconds;
using testing::eventually;
using testing::Fields;
using testing::frame;
using testing::Http2Frame;
using testing::Http2Wire;
using testing::ok;
using testing::Served;
using testing::wait_for_the_end;

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
