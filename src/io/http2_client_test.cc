#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "base/temporary_folder.h"
#include "io/detail/http2_test_support.h"
#include "io/http_client.h"
#include "io/http_server.h"

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
using testing::RawServer;
using testing::run_on;
using Client = testing::TestClient;
using Served = testing::TestServer;

HttpDestination to(const SocketAddress& address) {
  return HttpDestination(address.ip(), address.port(), nullptr, {}, true);
}

// A scripted peer: reads the preface, sends its settings.
struct Peer {
  explicit Peer(const RawServer& server, std::vector<std::pair<uint16_t, uint32_t>> settings = {})
      : wire(server.accept()) {
    wire.skip_preface();
    wire.settings(std::move(settings));
  }
  Http2Wire wire;
};

Task<void> echo(HttpExchange& exchange) {
  auto body = co_await exchange.read_all(8 << 20);
  if (!body.ok()) co_return;
  const std::string text = std::string(exchange.request().method) + " " +
                           std::string(exchange.request().target) + " " +
                           std::string(exchange.request().authority) + " ";
  const std::vector<HeaderField> fields = {{"x-echo", exchange.request().fields.get("x-in")}};
  (void)exchange.write_head(200, fields, BodyFraming::chunked());
  const std::vector<std::string_view> pieces = {text, {body->data(), body->size()}};
  const std::vector<HeaderField> trailers = {{"x-end", "1"}};
  (void)co_await exchange.finish(pieces, trailers);
}

TEST(Http2Client, ExchangesRequestsOverOneConnection) {
  Served served(echo);
  Client client;
  run_on(client.loop(), [&]() -> Task<void> {
    for (int i = 0; i < 3; ++i) {
      const HeaderField in{"X-In", "v"};
      const std::string_view body = "hello";
      HttpRequest request;
      request.method = "POST";
      request.target = "/t";
      request.fields = {&in, 1};
      request.framing = BodyFraming::of_length(5);
      request.body = {&body, 1};
      auto call = co_await client.client->start(to(served.address), request);
      EXPECT_TRUE(call.ok()) << call.error().message;
      if (!call.ok()) co_return;
      auto head = co_await call->response();
      EXPECT_TRUE(head.ok()) << head.error().message;
      if (!head.ok()) co_return;
      EXPECT_EQ((*head)->status, 200);
      EXPECT_EQ((*head)->version, HttpVersion::kHttp2);
      EXPECT_EQ((*head)->fields.get("x-echo"), "v");
      auto all = co_await call->read_all(1000);
      EXPECT_TRUE(all.ok());
      if (!all.ok()) co_return;
      EXPECT_EQ(std::string(all->data(), all->size()), "POST /t " + served.address.to_string() + " hello");
      EXPECT_EQ(call->trailers().get("x-end"), "1");
      EXPECT_EQ(call->reused(), i != 0);
    }
  });
  EXPECT_EQ(client.stats().connections_opened, 1U);
  EXPECT_EQ(client.stats().connections_reused, 2U);
  EXPECT_EQ(served.server.stats().http2_connections, 1U);
  EXPECT_TRUE(eventually([&] { return served.server.stats().open_exchanges == 0; }));
}

TEST(Http2Client, CallsRunAtTheSameTimeOnOneConnection) {
  std::atomic<int> running{0};
  Served served([&](HttpExchange& exchange) -> Task<void> {
    ++running;
    // Answers when all have come.
    while (running < 20) {
      const bool slept = co_await exchange.loop().sleep(milliseconds(1));
      if (!slept) co_return;
    }
    (void)co_await exchange.respond(200, "text/plain", "x");
  });
  Client client;
  std::atomic<int> done{0};
  for (int i = 0; i < 20; ++i) {
    client.loop().post([&] {
      spawn(client.loop(), [](Client& c, const SocketAddress& address, std::atomic<int>& d) -> Task<void> {
        auto got = co_await c.client->fetch(to(address), HttpRequest(), HttpCallOptions(),
                                            std::chrono::seconds(10), 100);
        EXPECT_TRUE(got.ok() && got->status == 200);
        ++d;
      }(client, served.address, done));
    });
  }
  EXPECT_TRUE(eventually([&] { return done == 20; }));
  EXPECT_EQ(client.stats().connections_opened, 1U);
}

TEST(Http2Client, LargeBodiesGoBothWaysThroughSmallWindows) {
  HttpServerOptions options;
  options.http2.stream_window_bytes = 20'000;
  Served served(echo, options);
  HttpClientOptions client_options;
  client_options.http2_stream_window_bytes = 10'000;
  Client client(client_options);
  std::string large(3'000'000, 'a');
  for (size_t i = 0; i < large.size(); i += 997) large[i] = static_cast<char>('b' + i % 20);
  run_on(client.loop(), [&]() -> Task<void> {
    const std::vector<std::string_view> pieces = {std::string_view(large).substr(0, 1'000'000),
                                                  std::string_view(large).substr(1'000'000)};
    HttpRequest request;
    request.method = "POST";
    request.framing = BodyFraming::chunked();
    request.body = pieces;
    auto call = co_await client.client->start(to(served.address), request);
    EXPECT_TRUE(call.ok());
    if (!call.ok()) co_return;
    auto head = co_await call->response();
    EXPECT_TRUE(head.ok());
    if (!head.ok()) co_return;
    std::string all;
    for (;;) {
      auto piece = co_await call->read();
      EXPECT_TRUE(piece.ok());
      if (!piece.ok()) co_return;
      EXPECT_LE(piece->data.size(), 10'000U);
      all += piece->data;
      if (piece->last) break;
    }
    EXPECT_TRUE(std::string_view(all).ends_with(large));
  });
}

TEST(Http2Client, WritesAndReadsAtTheSameTime) {
  Served served([](HttpExchange& exchange) -> Task<void> {
    (void)exchange.write_head(200, {}, BodyFraming::chunked());
    Status flushed = co_await exchange.flush();
    while (flushed.ok()) {
      auto piece = co_await exchange.read();
      if (!piece.ok()) co_return;
      const std::string_view data = piece->data;
      if (piece->last) {
        (void)co_await exchange.finish({&data, 1});
        co_return;
      }
      flushed = co_await exchange.write(data);
    }
  });
  Client client;
  run_on(client.loop(), [&]() -> Task<void> {
    HttpRequest request;
    request.method = "POST";
    request.framing = BodyFraming::chunked();
    request.complete = false;
    auto call = co_await client.client->start(to(served.address), request);
    EXPECT_TRUE(call.ok());
    if (!call.ok()) co_return;
    auto head = co_await call->response();
    EXPECT_TRUE(head.ok());
    for (int i = 0; i < 50; ++i) {
      const std::string text = "message " + std::to_string(i);
      const std::string_view view = text;
      auto sent = co_await call->write({&view, 1});
      EXPECT_TRUE(sent.ok() && *sent == HttpCall::Sent::kAll);
      std::string got;
      while (got.size() < text.size()) {
        auto piece = co_await call->read();
        EXPECT_TRUE(piece.ok());
        if (!piece.ok()) co_return;
        got += piece->data;
      }
      EXPECT_EQ(got, text);
    }
    auto sent = co_await call->finish();
    EXPECT_TRUE(sent.ok());
    auto last = co_await call->read();
    EXPECT_TRUE(last.ok() && last->last && last->data.empty());
  });
}

TEST(Http2Client, ACallGivenUpResetsItsStreamOnly) {
  std::atomic<int> started{0};
  std::atomic<int> cancelled{0};
  Served served([&](HttpExchange& exchange) -> Task<void> {
    if (exchange.request().path == "/slow") {
      ++started;
      const CancelToken token = exchange.cancel_token();
      (void)co_await exchange.loop().sleep(std::chrono::seconds(30), token);
      cancelled += token.cancelled() ? 1 : 0;
      co_return;
    }
    (void)co_await exchange.respond(200, "", "x");
  });
  Client client;
  run_on(client.loop(), [&]() -> Task<void> {
    HttpRequest slow;
    slow.target = "/slow";
    HttpCallOptions options;
    options.first_byte_timeout = milliseconds(20);
    {
      auto call = co_await client.client->start(to(served.address), slow, options);
      EXPECT_TRUE(call.ok());
      auto head = co_await call->response();
      EXPECT_EQ(head.ok() ? ErrorCode::kInternal : head.error().code, ErrorCode::kGatewayTimeout);
      EXPECT_FALSE(call->failed_stale());
    }
    CancelSource source;
    options.first_byte_timeout = Duration::zero();
    options.token = source.token();
    auto call = co_await client.client->start(to(served.address), slow, options);
    EXPECT_TRUE(call.ok());
    while (started < 2) {
      const bool slept = co_await client.loop().sleep(milliseconds(1));
      EXPECT_TRUE(slept);
    }
    source.cancel();
    auto head = co_await call->response();
    EXPECT_EQ(head.ok() ? ErrorCode::kInternal : head.error().code, ErrorCode::kCancelled);
    call->close();
    auto got = co_await client.client->fetch(to(served.address), HttpRequest(), HttpCallOptions(),
                                             std::chrono::seconds(10), 100);
    EXPECT_TRUE(got.ok());
  });
  EXPECT_TRUE(eventually([&] { return cancelled == 2; }));
  EXPECT_EQ(client.stats().connections_opened, 1U);
  EXPECT_TRUE(eventually([&] { return served.server.stats().open_exchanges == 0; }));
}

TEST(Http2Client, RequestsBeyondTheLastOneOfAGoawayMayBeSentAgain) {
  RawServer raw;
  Client client;
  std::thread peer([&] {
    Peer first(raw);
    const Http2Frame one = first.wire.next(NGHTTP2_HEADERS);
    const Http2Frame two = first.wire.next(NGHTTP2_HEADERS);
    EXPECT_EQ(one.id, 1);
    EXPECT_EQ(two.id, 3);
    first.wire.send(frame(NGHTTP2_GOAWAY, 0, 0, number32(1) + number32(NGHTTP2_NO_ERROR)));
    first.wire.headers(1, {{":status", "200"}}, true);
    Peer second(raw);
    EXPECT_EQ(second.wire.next(NGHTTP2_HEADERS).id, 1);
    second.wire.headers(1, {{":status", "201"}}, true);
    second.wire.next();
  });
  run_on(client.loop(), [&]() -> Task<void> {
    auto first = co_await client.client->start(to(raw.address()), HttpRequest());
    auto second = co_await client.client->start(to(raw.address()), HttpRequest());
    EXPECT_TRUE(first.ok() && second.ok());
    auto head = co_await second->response();
    EXPECT_FALSE(head.ok());
    EXPECT_TRUE(second->failed_stale());
    auto other = co_await first->response();
    EXPECT_TRUE(other.ok() && (*other)->status == 200);
    auto again = co_await client.client->start(to(raw.address()), HttpRequest());
    EXPECT_TRUE(again.ok());
    auto last = co_await again->response();
    EXPECT_TRUE(last.ok() && (*last)->status == 201);
    client.client->drop_idle();
    first->close();
    again->close();
    client.client->drop_idle();
  });
  peer.join();
}

TEST(Http2Client, ARefusedStreamMayBeSentAgainAndOtherResetsNot) {
  RawServer raw;
  Client client;
  std::thread peer([&] {
    Peer server(raw);
    server.wire.next(NGHTTP2_HEADERS);
    server.wire.send(Http2Wire::reset_frame(1, NGHTTP2_REFUSED_STREAM));
    server.wire.next(NGHTTP2_HEADERS);
    server.wire.send(Http2Wire::reset_frame(3, NGHTTP2_INTERNAL_ERROR));
    server.wire.next(NGHTTP2_HEADERS);
    server.wire.headers(5, {{":status", "200"}}, false);
    server.wire.data(5, "part", false);
    server.wire.send(Http2Wire::reset_frame(5, NGHTTP2_INTERNAL_ERROR));
    server.wire.next(NGHTTP2_GOAWAY);
  });
  run_on(client.loop(), [&]() -> Task<void> {
    for (const bool stale : {true, false}) {
      auto call = co_await client.client->start(to(raw.address()), HttpRequest());
      EXPECT_TRUE(call.ok());
      auto head = co_await call->response();
      EXPECT_FALSE(head.ok());
      EXPECT_EQ(call->failed_stale(), stale);
    }
    auto call = co_await client.client->start(to(raw.address()), HttpRequest());
    EXPECT_TRUE(call.ok());
    auto head = co_await call->response();
    EXPECT_TRUE(head.ok());
    auto all = co_await call->read_all(100);
    EXPECT_EQ(all.ok() ? ErrorCode::kInternal : all.error().code, ErrorCode::kBadGateway);
    EXPECT_FALSE(call->failed_stale());
    call->close();
    client.client->drop_idle();
  });
  peer.join();
}

TEST(Http2Client, ADeadConnectionEndsItsCallsAndTheNextOnesGetAnother) {
  RawServer raw;
  Client client;
  std::thread peer([&] {
    {
      Peer server(raw);
      server.wire.next(NGHTTP2_HEADERS);
      server.wire.headers(1, {{":status", "200"}}, false);
      server.wire.data(1, "part", false);
      server.wire.socket().shutdown_write();
      while (server.wire.next().type != Http2Frame::kEnd) {
      }
    }
    Peer second(raw);
    second.wire.next(NGHTTP2_HEADERS);
    second.wire.headers(1, {{":status", "200"}}, true);
    second.wire.next(NGHTTP2_GOAWAY);
  });
  run_on(client.loop(), [&]() -> Task<void> {
    auto call = co_await client.client->start(to(raw.address()), HttpRequest());
    EXPECT_TRUE(call.ok());
    auto head = co_await call->response();
    EXPECT_TRUE(head.ok());
    auto all = co_await call->read_all(100);
    EXPECT_EQ(all.ok() ? ErrorCode::kInternal : all.error().code, ErrorCode::kBadGateway);
    call->close();
    auto again = co_await client.client->start(to(raw.address()), HttpRequest());
    EXPECT_TRUE(again.ok());
    auto last = co_await again->response();
    EXPECT_TRUE(last.ok());
    again->close();
    client.client->drop_idle();
  });
  peer.join();
}

TEST(Http2Client, OpensMoreConnectionsUpToItsBoundAndNoMoreThanThePeerAllows) {
  RawServer raw;
  HttpClientOptions options;
  options.http2_connections_per_destination = 2;
  Client client(options);
  std::thread peer([&] {
    // Where a head has come, the settings before it have, too.
    Peer first(raw, {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 1}});
    EXPECT_EQ(first.wire.next(NGHTTP2_HEADERS).id, 1);
    first.wire.headers(1, {{":status", "200"}}, false);
    Peer second(raw, {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 1}});
    EXPECT_EQ(second.wire.next(NGHTTP2_HEADERS).id, 1);
    second.wire.headers(1, {{":status", "200"}}, false);
    // The third call waits for its turn on one of them, whichever it is.
    first.wire.data(1, "", true);
    second.wire.data(1, "", true);
    EXPECT_EQ(second.wire.next(NGHTTP2_HEADERS).id, 3);
    second.wire.headers(3, {{":status", "200"}}, true);
    second.wire.next(NGHTTP2_GOAWAY);
  });
  run_on(client.loop(), [&]() -> Task<void> {
    std::vector<HttpCall> calls;
    for (int i = 0; i < 2; ++i) {
      auto call = co_await client.client->start(to(raw.address()), HttpRequest());
      EXPECT_TRUE(call.ok());
      auto head = co_await call->response();
      EXPECT_TRUE(head.ok());
      calls.push_back(std::move(*call));
    }
    EXPECT_EQ(client.client->stats().connections_opened, 2U);
    auto third = co_await client.client->start(to(raw.address()), HttpRequest());
    EXPECT_TRUE(third.ok());
    auto answer = co_await third->response();
    EXPECT_TRUE(answer.ok());
    EXPECT_EQ(client.client->stats().connections_opened, 2U);
    third->close();
    calls.clear();
    client.client->drop_idle();
  });
  peer.join();
}

TEST(Http2Client, ASilentPeerIsFoundByPing) {
  RawServer raw;
  HttpClientOptions options;
  options.http2_ping_interval = milliseconds(20);
  options.http2_ping_timeout = milliseconds(60);
  Client client(options);
  std::optional<Http2Wire> wire;
  std::thread peer([&] { wire.emplace(raw.accept()); });
  run_on(client.loop(), [&]() -> Task<void> {
    auto call = co_await client.client->start(to(raw.address()), HttpRequest());
    EXPECT_TRUE(call.ok());
    auto head = co_await call->response();
    EXPECT_EQ(head.ok() ? ErrorCode::kInternal : head.error().code, ErrorCode::kBadGateway);
    EXPECT_NE(head.error().message.find("PING"), std::string::npos) << head.error().message;
  });
  peer.join();
}

// gRPC servers hang up on clients that ask too often: on the fourth PING of a silence that is none of theirs
// to break, unless it comes five minutes after the third.
TEST(Http2Client, APeerThatOnlyAnswersPingsIsAskedLessOften) {
  RawServer raw;
  HttpClientOptions options;
  options.http2_ping_interval = milliseconds(20);
  options.http2_ping_rest = milliseconds(300);
  options.http2_ping_timeout = std::chrono::seconds(60);
  options.idle_timeout = milliseconds(300);
  Client client(options);
  std::thread peer([&] {
    Peer server(raw);
    EXPECT_EQ(server.wire.next(NGHTTP2_HEADERS).id, 1);
    server.wire.answers_pings = false;
    auto answered = std::chrono::steady_clock::now() - std::chrono::hours(1);
    const std::vector<int> silences = {20, 40, 80, 300, 300};
    for (size_t i = 0; i < silences.size(); ++i) {
      const Http2Frame asked = server.wire.next(NGHTTP2_PING);
      EXPECT_GE(std::chrono::steady_clock::now() - answered, milliseconds(silences[i]));
      answered = std::chrono::steady_clock::now();
      std::string out = frame(NGHTTP2_PING, NGHTTP2_FLAG_ACK, 0, asked.payload);
      // Whatever else comes before the answer.
      if (i == 1) out = Http2Wire::window_frame(0, 1) + out;
      if (i + 1 == silences.size()) out += server.wire.headers_frame(1, {{":status", "200"}}, true);
      server.wire.send(out);
    }
    // Without calls it isn't asked at all.
    EXPECT_EQ(server.wire.next().type, NGHTTP2_GOAWAY);
  });
  run_on(client.loop(), [&]() -> Task<void> {
    {
      auto call = co_await client.client->start(to(raw.address()), HttpRequest());
      EXPECT_TRUE(call.ok());
      auto head = co_await call->response();
      EXPECT_TRUE(head.ok());
    }
    while (client.client->stats().connections_idle + client.client->stats().connections_busy != 0) {
      const bool slept = co_await client.loop().sleep(milliseconds(5));
      EXPECT_TRUE(slept);
    }
  });
  peer.join();
}

TEST(Http2Client, AFailedAttemptAtAnotherConnectionLeavesItsCallsToThoseThereAre) {
  std::optional<RawServer> raw(std::in_place);
  const HttpDestination destination = to(raw->address());
  HttpClientOptions options;
  options.http2_calls_per_connection = 1;
  Client client(options);
  std::thread peer([&] {
    Peer server(*raw);
    EXPECT_EQ(server.wire.next(NGHTTP2_HEADERS).id, 1);
    raw.reset();  // nobody listens any more
    server.wire.headers(1, {{":status", "200"}}, false);
    for (const int32_t id : {3, 5}) {
      EXPECT_EQ(server.wire.next(NGHTTP2_HEADERS).id, id);
      server.wire.headers(id, {{":status", "200"}}, true);
    }
    server.wire.next(NGHTTP2_GOAWAY);
  });
  run_on(client.loop(), [&]() -> Task<void> {
    auto first = co_await client.client->start(destination, HttpRequest());
    EXPECT_TRUE(first.ok());
    auto head = co_await first->response();
    EXPECT_TRUE(head.ok());
    HttpCallOptions wishes;
    wishes.fresh_connection = true;
    auto fresh = co_await client.client->start(destination, HttpRequest(), wishes);
    EXPECT_EQ(fresh.ok() ? ErrorCode::kInternal : fresh.error().code, ErrorCode::kBadGateway);
    for (int i = 0; i < 2; ++i) {
      auto call = co_await client.client->start(destination, HttpRequest());
      EXPECT_TRUE(call.ok());
      if (!call.ok()) co_return;
      auto answer = co_await call->response();
      EXPECT_TRUE(answer.ok());
    }
    first->close();
    client.client->drop_idle();
  });
  peer.join();
}

TEST(Http2Client, AConnectionOnWhichNothingCameUntilTheTimeOutGetsNoMoreCalls) {
  RawServer raw;
  Client client;
  std::thread peer([&] {
    Peer silent(raw);
    EXPECT_EQ(silent.wire.next(NGHTTP2_HEADERS).id, 1);
    silent.wire.headers(1, {{":status", "200"}}, true);
    EXPECT_EQ(silent.wire.next(NGHTTP2_HEADERS).id, 3);
    // Says nothing more.
    Peer other(raw);
    EXPECT_EQ(other.wire.next(NGHTTP2_HEADERS).id, 1);
    other.wire.headers(1, {{":status", "200"}}, true);
    other.wire.next(NGHTTP2_GOAWAY);
  });
  run_on(client.loop(), [&]() -> Task<void> {
    for (const bool answered : {true, false, true}) {
      HttpCallOptions options;
      if (!answered) options.first_byte_timeout = milliseconds(50);
      auto call = co_await client.client->start(to(raw.address()), HttpRequest(), options);
      EXPECT_TRUE(call.ok());
      if (!call.ok()) co_return;
      auto head = co_await call->response();
      EXPECT_EQ(head.ok(), answered);
    }
    client.client->drop_idle();
  });
  peer.join();
}

TEST(Http2Client, ABodyOfEmptyPiecesIsNoBody) {
  Served served(echo);
  Client client;
  run_on(client.loop(), [&]() -> Task<void> {
    const std::vector<std::string_view> nothing = {"", ""};
    for (const BodyFraming framing :
         {BodyFraming::chunked(), BodyFraming::of_length(0), BodyFraming::none()}) {
      HttpRequest request;
      request.method = "POST";
      request.framing = framing;
      request.body = nothing;
      auto got = co_await client.client->fetch(to(served.address), request, HttpCallOptions(),
                                               std::chrono::seconds(10), 1000);
      EXPECT_TRUE(got.ok() && got->status == 200) << (got.ok() ? "" : got.error().message);
    }
  });
}

TEST(Http2Client, ACallThatIsBrokenOffLetsItsReaderAndItsWriterGo) {
  RawServer raw;
  Client client;
  for (const bool by_peer : {true, false}) {
    std::thread peer([&] {
      Peer server(raw, {{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0}});
      server.wire.next(NGHTTP2_HEADERS);
      if (by_peer) {
        server.wire.send(Http2Wire::reset_frame(1, NGHTTP2_INTERNAL_ERROR));
      } else {
        server.wire.headers(1, {{":status", "200"}}, false);
        EXPECT_EQ(server.wire.next(NGHTTP2_RST_STREAM).number(), static_cast<uint32_t>(NGHTTP2_CANCEL));
      }
      server.wire.next(NGHTTP2_GOAWAY);
    });
    run_on(client.loop(), [&]() -> Task<void> {
      HttpRequest request;
      request.method = "POST";
      request.framing = BodyFraming::chunked();
      request.complete = false;
      auto call = co_await client.client->start(to(raw.address()), request);
      EXPECT_TRUE(call.ok());
      bool written = false;
      spawn(client.loop(), [](HttpCall& c, bool& done) -> Task<void> {
        const std::string large(1 << 20, 'x');
        const std::string_view view = large;
        auto sent = co_await c.write({&view, 1});
        EXPECT_TRUE(sent.ok() && *sent == HttpCall::Sent::kAnswered);
        done = true;
      }(*call, written));
      bool have_head = false;
      bool read = false;
      spawn(client.loop(), [](HttpCall& c, bool answers, bool& headed, bool& done) -> Task<void> {
        auto head = co_await c.response();
        EXPECT_EQ(head.ok(), answers);
        headed = true;
        if (head.ok()) {
          auto piece = co_await c.read();
          EXPECT_EQ(piece.ok() ? ErrorCode::kInternal : piece.error().code, ErrorCode::kBadGateway);
        }
        done = true;
      }(*call, !by_peer, have_head, read));
      if (!by_peer) {
        while (!have_head) {
          const bool slept = co_await client.loop().sleep(milliseconds(1));
          EXPECT_TRUE(slept);
        }
        EXPECT_FALSE(written || read);
        call->break_off();
      }
      while (!written || !read) {
        const bool slept = co_await client.loop().sleep(milliseconds(1));
        EXPECT_TRUE(slept);
      }
      call->close();
      client.client->drop_idle();
      while (client.client->stats().connections_busy != 0) {
        const bool slept = co_await client.loop().sleep(milliseconds(1));
        EXPECT_TRUE(slept);
      }
      client.client->drop_idle();
    });
    peer.join();
  }
}

TEST(Http2Client, MalformedAnswersAreErrorsOfTheCall) {
  RawServer raw;
  HttpClientOptions options;
  options.max_header_bytes = 2000;
  Client client(options);
  std::thread peer([&] {
    Peer server(raw);
    server.wire.next(NGHTTP2_HEADERS);
    server.wire.headers(1, {{"x-no-status", "1"}}, true);
    server.wire.next(NGHTTP2_HEADERS);
    server.wire.headers(3, {{":status", "200"}, {"x-large", std::string(3000, 'x')}}, true);
    server.wire.next(NGHTTP2_HEADERS);
    for (int i = 0; i < 20; ++i) server.wire.headers(5, {{":status", "103"}}, false);
    server.wire.next(NGHTTP2_HEADERS);
    server.wire.headers(7, {{":status", "103"}}, false);
    server.wire.headers(7, {{":status", "204"}}, true);
    server.wire.next(NGHTTP2_GOAWAY);
  });
  run_on(client.loop(), [&]() -> Task<void> {
    for (int i = 0; i < 4; ++i) {
      auto call = co_await client.client->start(to(raw.address()), HttpRequest());
      EXPECT_TRUE(call.ok());
      auto head = co_await call->response();
      EXPECT_EQ(head.ok(), i == 3);
      EXPECT_FALSE(call->failed_stale());
      if (!head.ok()) {
        EXPECT_EQ(head.error().code, ErrorCode::kBadGateway);
      }
    }
    client.client->drop_idle();
  });
  peer.join();
}

TEST(Http2Client, IdleConnectionsAreClosedWithGoaway) {
  RawServer raw;
  HttpClientOptions options;
  options.idle_timeout = milliseconds(30);
  Client client(options);
  std::thread peer([&] {
    Peer server(raw);
    server.wire.next(NGHTTP2_HEADERS);
    server.wire.headers(1, {{":status", "200"}}, true);
    EXPECT_EQ(server.wire.next(NGHTTP2_GOAWAY).type, NGHTTP2_GOAWAY);
    EXPECT_TRUE(server.wire.socket().wait_closed());
  });
  run_on(client.loop(), [&]() -> Task<void> {
    auto got = co_await client.client->fetch(to(raw.address()), HttpRequest(), HttpCallOptions(),
                                             std::chrono::seconds(10), 100);
    EXPECT_TRUE(got.ok());
  });
  peer.join();
  EXPECT_TRUE(eventually([&] { return client.stats().connections_idle == 0; }));
}

TEST(Http2Client, TlsPeersMustChooseHttp2) {
  const TemporaryFolder folder;
  const auto certificate = testing::write_certificate(folder.path(), "h2", "localhost");
  for (const bool speaks : {true, false}) {
    TlsServerOptions options;
    options.certificates = {{certificate.certificate_file, certificate.key_file}};
    if (!speaks) options.alpn = {"http/1.1"};
    auto server_tls = TlsServerContext::create(options);
    ASSERT_TRUE(server_tls.ok());
    Served served(echo, {}, 1, *server_tls);
    TlsClientOptions client_options;
    client_options.verify = false;
    auto client_tls = TlsClientContext::create(client_options);
    ASSERT_TRUE(client_tls.ok());
    Client client;
    run_on(client.loop(), [&]() -> Task<void> {
      HttpDestination destination = to(served.address);
      destination.tls = *client_tls;
      auto got = co_await client.client->fetch(destination, HttpRequest(), HttpCallOptions(),
                                               std::chrono::seconds(10), 1000);
      EXPECT_EQ(got.ok(), speaks);
      if (got.ok()) {
        EXPECT_EQ(got->status, 200);
      } else {
        EXPECT_EQ(got.error().code, ErrorCode::kBadGateway);
      }
    });
    EXPECT_EQ(served.server.stats().http2_connections, speaks ? 1U : 0U);
  }
}

}  // namespace
}  // namespace penstock::io
