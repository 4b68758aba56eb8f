#include <gtest/gtest.h>

#include <atomic>

#include "io/detail/http2_served_support.h"

namespace penstock::io {
namespace {

using std::chrono::milliseconds;
using testing::eventually;
using testing::frame;
using testing::Http2Frame;
using testing::Http2Wire;
using testing::ok;
using testing::RawClient;
using testing::Served;
using testing::wait_for_the_end;

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

}  // namespace
}  // namespace penstock::io
