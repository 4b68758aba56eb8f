#pragma once

#include <gtest/gtest.h>

#include "io/detail/http2_test_support.h"
#include "io/http_server.h"

// Handlers that tests of the HTTP/2 server's limits share.
namespace penstock::io::testing {

using Served = TestServer;

inline Task<void> ok(HttpExchange& exchange) {
  (void)co_await exchange.respond(200, "text/plain", "ok");
}

// Reads the request to its end, then answers.
inline Task<void> swallow(HttpExchange& exchange) {
  for (;;) {
    auto piece = co_await exchange.read();
    if (!piece.ok()) co_return;
    if (piece->last) break;
  }
  (void)co_await exchange.respond(200, "text/plain", "ok");
}

inline Task<void> wait_for_the_end(HttpExchange& exchange) {
  const CancelToken token = exchange.cancel_token();
  (void)co_await exchange.loop().sleep(std::chrono::seconds(60), token);
}

inline void expect_goaway(Http2Wire& client, uint32_t code) {
  const Http2Frame last = client.next(NGHTTP2_GOAWAY);
  ASSERT_EQ(last.type, NGHTTP2_GOAWAY);
  EXPECT_EQ(last.number(4), code);
  EXPECT_EQ(client.next().type, Http2Frame::kEnd);
}

}  // namespace penstock::io::testing
