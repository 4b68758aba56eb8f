#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

#include "io/detail/http2_test_support.h"
#include "io/http_server.h"

namespace penstock::io {
namespace {

using testing::echo;
using testing::eventually;
using testing::Fields;
using testing::frame;
using testing::Http2Frame;
using testing::Http2Wire;
using testing::loopback;
using testing::number32;
using testing::RawClient;
using Served = testing::TestServer;

// Sends back each piece as it comes, and the trailers.
Task<void> relay(HttpExchange& exchange) {
  const HeaderField type{"Content-Type", "application/octet-stream"};
  (void)exchange.write_head(200, {&type, 1}, BodyFraming::chunked());
  Status flushed = co_await exchange.flush();
  while (flushed.ok()) {
    auto piece = co_await exchange.read();
    if (!piece.ok()) co_return;
    if (piece->last) {
      const std::string_view rest = piece->data;
      (void)co_await exchange.finish({&rest, 1}, exchange.request_trailers().all());
      co_return;
    }
    Status written = co_await exchange.write(piece->data);
    if (!written.ok()) co_return;
  }
}

TEST(Http2Server, AnswersWithPriorKnowledgeAndKeepsHttp1OnTheSamePort) {
  Served served(echo);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("GET", "/a?b=c"), true);
  auto answer = client.answer(1);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "GET /a?b=c ");
  EXPECT_EQ(answer.get("content-length"), "11");
  EXPECT_EQ(answer.get("content-type"), "text/plain");
  EXPECT_NE(answer.get("date"), "");
  client.headers(3, Http2Wire::request("POST", "/x"), false);
  client.data(3, "hello", true);
  EXPECT_EQ(client.answer(3).body, "POST /x hello");
  EXPECT_EQ(client.peer_settings[NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS], 1024U);

  RawClient old(served.address);
  old.send("GET /old HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_NE(old.read_to_end().find("GET /old "), std::string::npos);
  EXPECT_EQ(served.server.stats().http2_connections, 1U);
  EXPECT_EQ(served.server.stats().requests, 3U);
}

TEST(Http2Server, ThePrefaceMayComeByteByByte) {
  Served served(echo);
  Http2Wire client(served.address);
  for (const char c : std::string_view("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")) client.send({&c, 1});
  for (const char c : frame(NGHTTP2_SETTINGS, 0, 0, "")) client.send({&c, 1});
  for (const char c : client.headers_frame(1, Http2Wire::request("GET", "/slow"), true)) client.send({&c, 1});
  EXPECT_EQ(client.answer(1).body, "GET /slow ");
}

TEST(Http2Server, TakesAnAuthorityThatIsNoHostOnlyWhereItMayBeAnything) {
  const auto with_authority = [](Fields fields) {
    for (auto& [name, value] : fields) {
      if (name == ":authority") value = "outbound|9002||picker.inference.svc.cluster.local";
    }
    return fields;
  };
  HttpServerOptions options;
  options.http2.any_authority = true;
  Served served(echo, options);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, with_authority(Http2Wire::request("GET", "/a")), true);
  EXPECT_EQ(client.answer(1).body, "GET /a ");
  // Fields are checked as ever.
  client.headers(3, with_authority(Http2Wire::request("GET", "/b", {{"Upper", "1"}})), true);
  EXPECT_FALSE(client.answer(3).whole);
  client.headers(5, with_authority(Http2Wire::request("GET", "/c", {{"value", "a\nb"}})), true);
  EXPECT_FALSE(client.answer(5).whole);
  client.headers(7, with_authority(Http2Wire::request("GET", "/d")), true);
  EXPECT_EQ(client.answer(7).body, "GET /d ");

  Served strict(echo);
  Http2Wire other(strict.address);
  other.begin();
  other.headers(1, with_authority(Http2Wire::request("GET", "/a")), true);
  EXPECT_FALSE(other.answer(1).whole);
  other.headers(3, Http2Wire::request("GET", "/b"), true);
  EXPECT_EQ(other.answer(3).body, "GET /b ");
}

TEST(Http2Server, ShowsTheRequestAsTheOtherVersionDoes) {
  std::string seen;
  Served served([&](HttpExchange& exchange) -> Task<void> {
    const RequestHead& head = exchange.request();
    seen = std::string(head.method) + "|" + std::string(head.path) + "|" + std::string(head.query) + "|" +
           std::string(head.authority) + "|" + (head.version == HttpVersion::kHttp2 ? "2" : "1");
    for (const HeaderField& field : head.fields)
      seen += "|" + std::string(field.name) + "=" + std::string(field.value);
    (void)co_await exchange.respond(204, "", "");
  });
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("GET", "/p?q=1", {{"cookie", "a=1"}, {"x-y", "z"}, {"cookie", "b=2"}}),
                 true);
  EXPECT_EQ(client.answer(1).status, 204);
  EXPECT_EQ(seen, "GET|/p|q=1|test.example|2|x-y=z|cookie=a=1; b=2");
  client.headers(3, {{":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {"host", "by.host"}}, true);
  client.answer(3);
  EXPECT_EQ(seen, "GET|/||by.host|2|host=by.host");
}

TEST(Http2Server, ABodyThatIsThereWhenTheHandlerStartsHasALengthUnlessItIsUnknown) {
  std::string seen;
  Served served([&](HttpExchange& exchange) -> Task<void> {
    const auto length = exchange.content_length();
    seen = length ? std::to_string(*length) : "unknown";
    auto body = co_await exchange.read_all(100);
    if (body.ok()) seen += " " + std::string(body->data(), body->size());
    (void)co_await exchange.respond(204, "", "");
  });
  Http2Wire client(served.address);
  client.begin();
  client.send(client.headers_frame(1, Http2Wire::request("POST", "/", {{"content-length", "3"}}), false) +
              Http2Wire::data_frame(1, "abc", true));
  client.answer(1);
  EXPECT_EQ(seen, "3 abc");
  client.send(client.headers_frame(3, Http2Wire::request("POST", "/"), false) +
              Http2Wire::data_frame(3, "abc", true));
  client.answer(3);
  EXPECT_EQ(seen, "unknown abc");
  client.headers(5, Http2Wire::request("POST", "/"), true);
  client.answer(5);
  EXPECT_EQ(seen, "0 ");
}

TEST(Http2Server, CarriesTrailersBothWaysAndLeavesConnectionFieldsOut) {
  Served served(relay);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("POST", "/", {{"te", "trailers"}}), false);
  client.data(1, "one", false);
  client.headers(1, {{"x-sum", "42"}}, true);
  const auto answer = client.answer(1);
  EXPECT_EQ(answer.body, "one");
  ASSERT_EQ(answer.trailers.size(), 1U);
  EXPECT_EQ(answer.trailers[0], (std::pair<std::string, std::string>("x-sum", "42")));
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(answer.get("content-type"), "application/octet-stream");
}

TEST(Http2Server, AHeadWithTheEndIsOneFrame) {
  Served served([](HttpExchange& exchange) -> Task<void> {
    const std::vector<HeaderField> fields = {{"content-type", "application/grpc"},
                                             {"Grpc-Status", "12"},
                                             {"Connection", "close"},
                                             {"x-blank", "  v "}};
    (void)exchange.write_head(200, fields, BodyFraming::chunked());
    (void)co_await exchange.finish();
  });
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("POST", "/"), true);
  const Http2Frame head = client.next(NGHTTP2_HEADERS);
  EXPECT_TRUE(head.end_stream());
  EXPECT_EQ(head.fields, (Fields{{":status", "200"},
                                 {"content-type", "application/grpc"},
                                 {"grpc-status", "12"},
                                 {"x-blank", "v"}}));
}

TEST(Http2Server, HeadRequestsGetTheLengthAndNoBody) {
  Served served(echo);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("HEAD", "/"), true);
  const auto answer = client.answer(1);
  EXPECT_EQ(answer.get("content-length"), "7");
  EXPECT_EQ(answer.body, "");
  EXPECT_TRUE(answer.whole);
}

TEST(Http2Server, ContinueIsSentWhenTheBodyIsRead) {
  Served served(echo);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("POST", "/", {{"expect", "100-continue"}, {"content-length", "2"}}),
                 false);
  EXPECT_EQ(client.next(NGHTTP2_HEADERS).fields[0].second, "100");
  client.data(1, "hi", true);
  EXPECT_EQ(client.answer(1).body, "POST / hi");
}

TEST(Http2Server, InformationalResponsesComeBeforeTheFinalOne) {
  Served served([](HttpExchange& exchange) -> Task<void> {
    const HeaderField link{"Link", "</x>"};
    (void)co_await exchange.write_informational(103, {&link, 1});
    (void)co_await exchange.respond(200, "text/plain", "x");
  });
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("GET", "/"), true);
  const Http2Frame early = client.next(NGHTTP2_HEADERS);
  EXPECT_EQ(early.fields, (Fields{{":status", "103"}, {"link", "</x>"}}));
  EXPECT_FALSE(early.end_stream());
  EXPECT_EQ(client.answer(1).status, 200);
}

TEST(Http2Server, StreamsRunAtTheSameTime) {
  Served served([](HttpExchange& exchange) -> Task<void> {
    // The first to come waits for its body.
    auto body = co_await exchange.read_all(100);
    (void)co_await exchange.respond(200, "text/plain", body.ok() ? exchange.request().path : "?");
  });
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("POST", "/first"), false);
  client.headers(3, Http2Wire::request("GET", "/second"), true);
  EXPECT_EQ(client.answer(3).body, "/second");
  client.data(1, "", true);
  EXPECT_EQ(client.answer(1).body, "/first");
  EXPECT_TRUE(eventually([&] { return served.server.stats().open_exchanges == 0; }));
}

struct Ledger final : BodyBudget {
  bool hold(uint64_t bytes) override {
    if (bytes > limit) return false;
    held = bytes;
    return true;
  }
  uint64_t limit = 100'000;
  std::atomic<uint64_t> held{0};
};

TEST(Http2Server, ABodyHoldsMemoryForWhatHasArrivedAndEndsWhereItsBudgetDoes) {
  Ledger ledger;
  Served served([&](HttpExchange& exchange) -> Task<void> {
    auto body = co_await exchange.read_all_within(1 << 20, ledger);
    const std::string text = body.ok() ? std::to_string(body->size()) : body.error().message;
    (void)co_await exchange.respond(body.ok() ? 200 : 503, "text/plain", text);
  });
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("POST", "/", {{"content-length", "60000"}}), false);
  client.data(1, std::string(16'000, 'x'), false);
  EXPECT_TRUE(eventually([&] { return ledger.held >= 16'000; }));
  EXPECT_LT(ledger.held, 60'000U);
  for (int i = 0; i < 2; ++i) client.data(1, std::string(16'000, 'x'), false);
  client.data(1, std::string(12'000, 'x'), true);
  EXPECT_EQ(client.answer(1).body, "60000");
  client.headers(3, Http2Wire::request("POST", "/"), false);
  for (int i = 0; i < 8; ++i) client.data(3, std::string(16'000, 'x'), false);
  EXPECT_EQ(client.answer(3).status, 503);
}

TEST(Http2Server, ABodyHasOneDeadlineHoweverOftenAByteComes) {
  HttpServerOptions options;
  options.body_total_timeout = std::chrono::milliseconds(50);
  std::atomic<int> code{-1};
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        auto body = co_await exchange.read_all(100'000);
        code = body.ok() ? 0 : static_cast<int>(body.error().code);
        (void)co_await exchange.respond(408, "text/plain", "late");
      },
      options);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("POST", "/"), false);
  EXPECT_TRUE(eventually([&] {
    if (code == -1) client.data(1, "x", false);
    return code != -1;
  }));
  EXPECT_EQ(code, static_cast<int>(ErrorCode::kRequestTimeout));
}

TEST(Http2Server, RefusesHeadsThatAreTooLargeWith431) {
  HttpServerOptions options;
  options.max_header_bytes = 2048;
  options.max_headers = 20;
  Served served(echo, options);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("GET", "/", {{"x-large", std::string(3000, 'x')}}), true);
  EXPECT_EQ(client.answer(1).status, 431);
  Fields many;
  for (int i = 0; i < 30; ++i) many.emplace_back("x-" + std::to_string(i), "y");
  client.headers(3, Http2Wire::request("GET", "/", many), true);
  EXPECT_EQ(client.answer(3).status, 431);
  client.headers(5, Http2Wire::request("GET", "/", {{"x-huge", std::string(30'000, 'x')}}), true);
  EXPECT_EQ(client.answer(5).reset_code, static_cast<uint32_t>(NGHTTP2_INTERNAL_ERROR));
  client.headers(7, Http2Wire::request("GET", "/fine"), true);
  EXPECT_EQ(client.answer(7).status, 200);
  EXPECT_EQ(served.server.stats().bad_requests, 3U);
}

TEST(Http2Server, ABodyBeyondTheLimitIsAnsweredAndItsRestRefused) {
  Served served(echo);
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("POST", "/", {{"content-length", "9000000"}}), false);
  auto answer = client.answer(1);
  EXPECT_EQ(answer.status, 413);
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(client.next(NGHTTP2_RST_STREAM).number(), static_cast<uint32_t>(NGHTTP2_NO_ERROR));
}

TEST(Http2Server, HandlersThatSayNothingOrHalfAreSeenByTheClient) {
  Served served([](HttpExchange& exchange) -> Task<void> {
    if (exchange.request().path == "/nothing") co_return;
    if (exchange.request().path == "/abort") {
      exchange.abort();
      co_return;
    }
    if (exchange.request().path == "/throw") throw std::runtime_error("thrown");
    (void)exchange.write_head(200, {}, BodyFraming::chunked());
    (void)co_await exchange.write("half");
  });
  Http2Wire client(served.address);
  client.begin();
  client.headers(1, Http2Wire::request("GET", "/nothing"), true);
  EXPECT_EQ(client.answer(1).status, 500);
  client.headers(3, Http2Wire::request("GET", "/half"), true);
  const auto half = client.answer(3);
  EXPECT_FALSE(half.whole);
  EXPECT_EQ(half.reset_code, static_cast<uint32_t>(NGHTTP2_INTERNAL_ERROR));
  client.headers(5, Http2Wire::request("GET", "/abort"), true);
  EXPECT_EQ(client.answer(5).reset_code, static_cast<uint32_t>(NGHTTP2_INTERNAL_ERROR));
  client.headers(7, Http2Wire::request("GET", "/throw"), true);
  EXPECT_EQ(client.answer(7).status, 500);
}

}  // namespace
}  // namespace penstock::io
