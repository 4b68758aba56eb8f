#include <gtest/gtest.h>

#include <atomic>

#include "io/detail/http2_served_support.h"

namespace penstock::io {
namespace {

using std::chrono::milliseconds;
using testing::eventually;
using testing::expect_goaway;
using testing::Fields;
using testing::frame;
using testing::Http2Frame;
using testing::Http2Wire;
using testing::number32;
using testing::ok;
using testing::Served;
using testing::swallow;
using testing::wait_for_the_end;

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

}  // namespace
}  // namespace penstock::io
