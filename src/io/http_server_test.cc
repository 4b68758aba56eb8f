#include "io/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "io/detail/test_support.h"

namespace penstock::io {
namespace {

using testing::echo;
using testing::eventually;
using testing::loopback;
using testing::RawClient;
using Served = testing::TestServer;

std::string body_of(const std::string& response) {
  return response.substr(response.find("\r\n\r\n") + 4);
}

TEST(HttpServer, AnswersARequestThatComesByteByByte) {
  Served served(echo);
  RawClient client(served.address);
  for (const char c : std::string_view("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"))
    client.send(std::string_view(&c, 1));
  const std::string response = client.read_until("hello");
  EXPECT_EQ(response.substr(0, 17), "HTTP/1.1 200 OK\r\n");
  EXPECT_EQ(body_of(response), "POST /x hello");
  EXPECT_EQ(response.find("connection: close"), std::string::npos);
}

TEST(HttpServer, AnswersEveryOneOfManyRequestsThatCameAtOnceThoughSomeClientsLeft) {
  Served served(echo);
  std::vector<RawClient> clients;
  for (int i = 0; i < 50; ++i) {
    clients.emplace_back(served.address);
    clients.back().send("POST /first HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\na");
    EXPECT_EQ(body_of(clients.back().read_until("first a")), "POST /first a");
  }
  // While the loop is held up, so that it finds all of them in one batch of events.
  std::atomic<bool> held{false};
  std::atomic<bool> release{false};
  served.loops.at(0).post([&] {
    held = true;
    while (!release) std::this_thread::yield();
  });
  ASSERT_TRUE(eventually([&] { return held.load(); }));
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i].send("POST /" + std::to_string(i) + " HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nb");
    if (i % 7 == 3) clients[i].reset();
    if (i % 7 == 5) clients[i].shutdown_write();
  }
  release = true;
  for (size_t i = 0; i < clients.size(); ++i) {
    if (i % 7 == 3 || i % 7 == 5) continue;
    const std::string body = "POST /" + std::to_string(i) + " b";
    EXPECT_EQ(body_of(clients[i].read_until(body)), body);
  }
}

TEST(HttpServer, KeepsTheConnectionAndAnswersPipelinedRequestsInOrder) {
  Served served(echo);
  RawClient client(served.address);
  client.send(
      "POST /1 HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\naPOST /2 HTTP/1.1\r\nHost: "
      "h\r\nTransfer-Encoding: "
      "chunked\r\n\r\n1\r\nb\r\n1;x\r\nc\r\n0\r\n\r\n\r\nGET /3 HTTP/1.1\r\nHost: h\r\nConnection: "
      "close\r\n\r\n");
  const std::string all = client.read_to_end();
  const size_t first = all.find("POST /1 a");
  const size_t second = all.find("POST /2 bc");
  const size_t third = all.find("GET /3 ");
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
  EXPECT_LT(third, all.size());
  EXPECT_NE(all.find("connection: close"), std::string::npos);
  EXPECT_EQ(served.server.stats().requests, 3U);
  EXPECT_EQ(served.server.stats().connections_accepted, 1U);
}

TEST(HttpServer, RefusesBadRequestsWithTheirOwnStatus) {
  HttpServerOptions options;
  options.max_header_bytes = 4096;
  options.max_headers = 10;
  options.error_body = [](int status, std::string_view) {
    return HttpServerOptions::ErrorBody{"application/json", "{\"status\":" + std::to_string(status) + "}"};
  };
  Served served(echo, options);
  std::string many = "GET / HTTP/1.1\r\nHost: h\r\n";
  for (int i = 0; i < 12; ++i) many += "X: y\r\n";
  const std::vector<std::pair<std::string, int>> cases = {
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: h\n\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"GET / HTTP/3.0\r\nHost: h\r\n\r\n", 505},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"GET / HTTP/1.1\r\nHost: h\r\nExpect: tea\r\n\r\n", 417},
      {"CONNECT a:1 HTTP/1.1\r\nHost: h\r\n\r\n", 501},
      {many + "\r\n", 431},
      {"GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(8000, 'x') + "\r\n\r\n", 431},
  };
  for (const auto& [request, status] : cases) {
    RawClient client(served.address);
    client.send(request);
    const std::string response = client.read_to_end();
    EXPECT_EQ(response.substr(0, 12), "HTTP/1.1 " + std::to_string(status)) << request.substr(0, 80);
    EXPECT_EQ(body_of(response), "{\"status\":" + std::to_string(status) + "}");
    EXPECT_NE(response.find("connection: close"), std::string::npos);
  }
  EXPECT_EQ(served.server.stats().bad_requests, cases.size());
}

TEST(HttpServer, ClientReadsThe413WhileItIsStillUploading) {
  Served served(echo);
  for (const bool chunked : {false, true}) {
    RawClient client(served.address);
    const std::string piece(1 << 16, 'x');
    if (chunked) {
      client.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
      for (int i = 0; i < 64; ++i) client.send("10000\r\n" + piece + "\r\n");
      client.send("0\r\n\r\n");
    } else {
      client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4194304\r\n\r\n");
      for (int i = 0; i < 64; ++i) client.send(piece);
    }
    const std::string response = client.read_to_end();
    EXPECT_EQ(response.substr(0, 12), "HTTP/1.1 413");
    EXPECT_NE(response.find("1048576"), std::string::npos);
  }
}

TEST(HttpServer, SendsContinueOnlyWhenTheBodyIsRead) {
  Served served([](HttpExchange& exchange) -> Task<void> {
    if (exchange.request().path == "/no") {
      (void)co_await exchange.respond(401, "text/plain", "no");
      co_return;
    }
    co_await echo(exchange);
  });
  {
    RawClient client(served.address);
    client.send("POST /yes HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("ok");
    EXPECT_EQ(body_of(client.read_until("/yes ok")), "POST /yes ok");
  }
  RawClient client(served.address);
  client.send("POST /no HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  client.shutdown_write();
  const std::string response = client.read_to_end();
  EXPECT_EQ(response.substr(0, 12), "HTTP/1.1 401");
  EXPECT_NE(response.find("connection: close"), std::string::npos);
}

TEST(HttpServer, HeadAndBodilessStatusesCarryNoBody) {
  Served served([](HttpExchange& exchange) -> Task<void> {
    const int status = exchange.request().path == "/204" ? 204 : 200;
    (void)co_await exchange.respond(status, "text/plain", status == 204 ? "" : "body");
  });
  RawClient client(served.address);
  client.send("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::string head = client.read_until("\r\n\r\n");
  EXPECT_NE(head.find("content-length: 4\r\n"), std::string::npos);
  EXPECT_EQ(body_of(head), "");
  client.send("GET /204 HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::string no_content = client.read_until("\r\n\r\n");
  EXPECT_EQ(no_content.find("content-length"), std::string::npos);
  client.send("GET /200 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(body_of(client.read_to_end()), "body");
}

TEST(HttpServer, ChunkedAnswersHaveTrailersAndHttp10GetsThemDelimitedByClosing) {
  Served served([](HttpExchange& exchange) -> Task<void> {
    const HeaderField type{"content-type", "text/event-stream"};
    (void)exchange.write_head(200, {&type, 1}, BodyFraming::chunked());
    (void)co_await exchange.write("one ");
    const std::string_view pieces[] = {"two ", "", "three"};
    (void)co_await exchange.write(pieces);
    const HeaderField trailer{"x-sum", "7"};
    const std::string_view last = "!";
    (void)co_await exchange.finish({&last, 1}, {&trailer, 1});
  });
  RawClient client(served.address);
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(body_of(client.read_until("x-sum: 7\r\n\r\n")),
            "4\r\none \r\n9\r\ntwo three\r\n1\r\n!\r\n0\r\nx-sum: 7\r\n\r\n");
  RawClient old(served.address);
  old.send("GET / HTTP/1.0\r\n\r\n");
  const std::string response = old.read_to_end();
  EXPECT_EQ(body_of(response), "one two three!");
  EXPECT_EQ(response.find("transfer-encoding"), std::string::npos);
}

TEST(HttpServer, ABodyOfTheWrongLengthBreaksTheConnection) {
  Served served([](HttpExchange& exchange) -> Task<void> {
    (void)exchange.write_head(200, {}, BodyFraming::of_length(10));
    (void)co_await exchange.write("123");
    const Status longer = co_await exchange.write("12345678");
    EXPECT_EQ(longer.error().code, ErrorCode::kInternal);
    const Status shorter = co_await exchange.finish();
    EXPECT_FALSE(shorter.ok());
  });
  RawClient client(served.address);
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(body_of(client.read_to_end()), "123");
}

TEST(HttpServer, AHandlerThatThrowsOrForgetsToAnswerGivesA500) {
  Served served([](HttpExchange& exchange) -> Task<void> {
    if (exchange.request().path == "/throw") throw std::runtime_error("oops");
    co_return;
  });
  for (const char* path : {"/throw", "/forget"}) {
    RawClient client(served.address);
    client.send(std::string("GET ") + path + " HTTP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_EQ(client.read_to_end().substr(0, 12), "HTTP/1.1 500");
  }
}

// The client goes while the handler waits for something else: the token must fire, whatever way it goes.
TEST(HttpServer, NoticesTheClientsEndWhileTheHandlerWaits) {
  std::atomic<int> waiting{0};
  std::atomic<int> cancelled{0};
  Served served([&](HttpExchange& exchange) -> Task<void> {
    auto body = co_await exchange.read_all(100);
    EXPECT_TRUE(body.ok());
    ++waiting;
    if (!co_await exchange.loop().sleep(std::chrono::hours(1), exchange.cancel_token())) ++cancelled;
  });
  const std::string request = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
  int expected = 0;
  for (const int way : {0, 1, 2, 3, 4}) {
    RawClient client(served.address);
    client.send(request.substr(0, 49));
    client.send(request.substr(49));
    ++expected;
    ASSERT_TRUE(eventually([&] { return waiting == expected; }));
    if (way == 3) client.send("GET /pipelined HTTP/1.1\r\nHost: h\r\n\r\n");
    if (way == 0 || way == 3) client.close();
    if (way == 1) client.reset();
    if (way == 2) client.shutdown_write();
    if (way == 4) {
      for (int i = 0; i < 20; ++i) client.send("GET /p HTTP/1.1\r\nHost: h\r\n\r\n");
      client.close();
    }
    EXPECT_TRUE(eventually([&] { return cancelled == expected; })) << way;
  }
  EXPECT_TRUE(eventually([&] { return served.server.stats().connections_open == 0; }));
}

TEST(HttpServer, ASlowReaderHoldsTheWriterBack) {
  std::atomic<size_t> written{0};
  std::atomic<bool> ended{false};
  constexpr size_t kPieces = 512;
  Served served([&](HttpExchange& exchange) -> Task<void> {
    (void)exchange.write_head(200, {}, BodyFraming::chunked());
    const std::string piece(64 * 1024, 'x');
    for (size_t i = 0; i < kPieces; ++i) {
      const Status status = co_await exchange.write(piece);
      if (!status.ok()) co_return;
      written += piece.size();
    }
    (void)co_await exchange.finish();
    ended = true;
  });
  RawClient client(served.address);
  client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return written > 0; }));
  // The kernel takes a few MiB; the rest waits in the handler, which has 32 MiB to send.
  size_t before = 0;
  for (int same = 0; same < 200;) {
    const size_t now = written;
    same = now == before ? same + 1 : 0;
    before = now;
    std::this_thread::yield();
  }
  EXPECT_FALSE(ended);
  EXPECT_LT(written, kPieces * 64 * 1024);
  const std::string all = client.read_to_end();
  EXPECT_TRUE(eventually([&] { return ended.load(); }));
  EXPECT_GT(all.size(), kPieces * 64 * 1024);
}

TEST(HttpServer, AWriterToADeadReaderEndsAtItsDeadline) {
  std::atomic<int> code{-1};
  HttpServerOptions options;
  options.write_timeout = std::chrono::milliseconds(30);
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        (void)exchange.write_head(200, {}, BodyFraming::chunked());
        const std::string piece(1 << 20, 'x');
        Status status;
        while (status.ok()) status = co_await exchange.write(piece);
        code = static_cast<int>(status.error().code);
      },
      options);
  RawClient client(served.address);
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(eventually([&] { return code == static_cast<int>(ErrorCode::kRequestTimeout); }));
}

TEST(HttpServer, DeadlinesForHeadBodyAndIdleConnections) {
  HttpServerOptions options;
  options.header_timeout = std::chrono::milliseconds(40);
  options.body_timeout = std::chrono::milliseconds(40);
  options.idle_timeout = std::chrono::milliseconds(40);
  std::atomic<int> code{-1};
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        auto body = co_await exchange.read_all(100);
        if (!body.ok()) {
          code = static_cast<int>(body.error().code);
          (void)co_await exchange.respond(408, "text/plain", "late");
          co_return;
        }
        (void)co_await exchange.respond(200, "text/plain", "");
      },
      options);
  RawClient head(served.address);
  head.send("GET / HT");
  EXPECT_EQ(head.read_to_end().substr(0, 12), "HTTP/1.1 408");
  RawClient body(served.address);
  body.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\na");
  EXPECT_EQ(body.read_to_end().substr(0, 12), "HTTP/1.1 408");
  EXPECT_EQ(code, static_cast<int>(ErrorCode::kRequestTimeout));
  RawClient idle(served.address);
  idle.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(idle.read_until("\r\n\r\n").substr(0, 12), "HTTP/1.1 200");
  EXPECT_TRUE(idle.wait_closed());
}

TEST(HttpServer, ABodyHasOneDeadlineHoweverOftenAByteComes) {
  HttpServerOptions options;
  options.body_total_timeout = std::chrono::milliseconds(100);
  std::atomic<int> code{-1};
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        auto body = co_await exchange.read_all(100000);
        code = body.ok() ? 0 : static_cast<int>(body.error().code);
        (void)co_await exchange.respond(408, "text/plain", "late");
      },
      options);
  RawClient client(served.address);
  client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999\r\n\r\n");
  EXPECT_TRUE(eventually([&] {
    client.send("x");
    return code != -1;
  }));
  EXPECT_EQ(code, static_cast<int>(ErrorCode::kRequestTimeout));
}

struct Ledger final : BodyBudget {
  explicit Ledger(uint64_t bytes) : limit(bytes) {}
  bool hold(uint64_t bytes) override {
    if (bytes > limit) return false;
    held = bytes;
    return true;
  }
  uint64_t limit;
  std::atomic<uint64_t> held{0};
};

TEST(HttpServer, ABodyHoldsMemoryForWhatHasArrivedNotForWhatItDeclares) {
  constexpr size_t kDeclared = 16 << 20;
  Ledger ledger(~uint64_t{0});
  std::atomic<size_t> read{0};
  Served served([&](HttpExchange& exchange) -> Task<void> {
    auto body = co_await exchange.read_all_within(64 << 20, ledger);
    EXPECT_TRUE(body.ok());
    if (body.ok()) read = body->size();
    (void)co_await exchange.respond(200, "text/plain", "");
  });
  for (const bool chunked : {false, true}) {
    read = 0;
    ledger.held = 1;
    RawClient client(served.address);
    client.send(chunked ? "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1000000\r\n"
                        : "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 16777216\r\n\r\n");
    EXPECT_TRUE(eventually([&] { return ledger.held == 0; })) << ledger.held;
    const std::string part(kDeclared / 16, 'x');
    client.send(part);
    EXPECT_TRUE(eventually([&] { return ledger.held > part.size(); })) << ledger.held;
    EXPECT_LE(ledger.held, 8 * part.size() + 65536);
    for (int i = 1; i < 16; ++i) client.send(part);
    if (chunked) client.send("\r\n0\r\n\r\n");
    EXPECT_EQ(client.read_until("\r\n\r\n").substr(0, 12), "HTTP/1.1 200");
    EXPECT_EQ(read, kDeclared);
    EXPECT_GE(ledger.held, kDeclared);
    EXPECT_LE(ledger.held, chunked ? 2 * kDeclared : kDeclared);
  }
}

TEST(HttpServer, ABodyThatTheBudgetRefusesIsAnErrorBeforeItsMemoryIsTaken) {
  Ledger ledger(100 * 1024);
  std::atomic<int> code{-1};
  Served served([&](HttpExchange& exchange) -> Task<void> {
    auto body = co_await exchange.read_all_within(64 << 20, ledger);
    code = body.ok() ? 0 : static_cast<int>(body.error().code);
    (void)co_await exchange.respond(503, "text/plain", "");
  });
  const std::string data(200 * 1024, 'x');
  for (const std::string& head : {std::string("Content-Length: 204800\r\n\r\n"),
                                  std::string("Transfer-Encoding: chunked\r\n\r\n32000\r\n")}) {
    code = -1;
    RawClient client(served.address);
    client.send("POST / HTTP/1.1\r\nHost: h\r\n" + head + data);
    EXPECT_EQ(client.read_until("\r\n\r\n").substr(0, 12), "HTTP/1.1 503");
    EXPECT_EQ(code, static_cast<int>(ErrorCode::kResourceExhausted));
  }
}

TEST(HttpServer, WhoeverReadsWithoutWaitingLeavesTheLoopToOthersNowAndThen) {
  constexpr size_t kLargest = 512 * 1024;
  std::atomic<size_t> most{0};
  std::atomic<bool> ready{false};
  Served served([&](HttpExchange& exchange) -> Task<void> {
    bool done = false;
    uint64_t turns = 0;
    const auto count = [](Loop& on, const bool& end, uint64_t& n) -> Task<void> {
      while (!end) {
        co_await on.yield();
        ++n;
      }
      n = 0;
    };
    // All that the sockets hold lies there before reading begins.
    while (!ready) (void)co_await exchange.loop().sleep(std::chrono::milliseconds(1));
    spawn(exchange.loop(), count(exchange.loop(), done, turns));
    uint64_t seen = turns;
    size_t bytes = 0;
    for (bool last = false; !last;) {
      auto piece = co_await exchange.read();
      EXPECT_TRUE(piece.ok());
      if (!piece.ok()) break;
      if (turns != seen) bytes = 0;
      seen = turns;
      bytes += piece->data.size();
      most = std::max(most.load(), bytes);
      last = piece->last;
    }
    done = true;
    while (turns != 0) co_await exchange.loop().yield();
    (void)co_await exchange.respond(200, "text/plain", "");
  });
  RawClient client(served.address);
  client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2097152\r\n\r\n");
  client.send(std::string(1 << 20, 'x'));
  ready = true;
  client.send(std::string(1 << 20, 'x'));
  EXPECT_EQ(client.read_until("\r\n\r\n").substr(0, 12), "HTTP/1.1 200");
  EXPECT_GT(most, 0U);
  EXPECT_LE(most, kLargest);
}

TEST(HttpServer, LargeBodiesArriveWholeHoweverTheyAreRead) {
  Served served([](HttpExchange& exchange) -> Task<void> {
    uint64_t sum = 0;
    size_t size = 0;
    const auto add = [&](std::string_view data) {
      size += data.size();
      for (const char c : data) sum = sum * 31 + static_cast<unsigned char>(c);
    };
    if (exchange.request().path == "/all") {
      auto body = co_await exchange.read_all(64 << 20);
      EXPECT_TRUE(body.ok());
      add({body->data(), body->size()});
    } else {
      for (bool last = false; !last;) {
        auto piece = co_await exchange.read();
        EXPECT_TRUE(piece.ok());
        if (!piece.ok()) co_return;
        add(piece->data);
        last = piece->last;
      }
    }
    (void)co_await exchange.respond(200, "text/plain", std::to_string(size) + " " + std::to_string(sum));
  });
  for (const size_t size : {0UL, 1UL, 32'700UL, 32'767UL, 32'768UL, 65'537UL, 1'014'506UL, 5'000'000UL}) {
    std::string body(size, '\0');
    uint64_t sum = 0;
    for (size_t i = 0; i < size; ++i) {
      body[i] = static_cast<char>(i * 7 + i / 251);
      sum = sum * 31 + static_cast<unsigned char>(body[i]);
    }
    std::string chunked;
    for (size_t at = 0; at < size;) {
      const size_t take = std::min<size_t>(size - at, 1 + at % 9000);
      char head[32];
      std::snprintf(head, sizeof(head), "%zx\r\n", take);
      chunked += head + body.substr(at, take) + "\r\n";
      at += take;
    }
    chunked += "0\r\n\r\n";
    RawClient client(served.address);
    for (const char* path : {"/all", "/pieces"}) {
      const std::string expected = std::to_string(size) + " " + std::to_string(sum);
      client.send(std::string("POST ") + path +
                  " HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(size) + "\r\n\r\n" + body);
      EXPECT_EQ(body_of(client.read_until(expected)), expected) << path << size;
      client.send(std::string("POST ") + path + " HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" +
                  chunked);
      EXPECT_EQ(body_of(client.read_until(expected)), expected) << path << size;
    }
  }
}

TEST(HttpServer, DrainingLetsARunningExchangeEndAndSaysClose) {
  std::atomic<bool> started{false};
  std::atomic<bool> go{false};
  auto served = std::make_unique<Served>([&](HttpExchange& exchange) -> Task<void> {
    started = true;
    while (!go) co_await exchange.loop().sleep(std::chrono::milliseconds(1));
    (void)co_await exchange.respond(200, "text/plain", "done");
  });
  RawClient client(served->address);
  RawClient idle(served->address);
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return started.load(); }));
  std::thread stopper([&] { served->server.stop(std::chrono::seconds(10)); });
  EXPECT_TRUE(idle.wait_closed());
  go = true;
  const std::string response = client.read_to_end();
  stopper.join();
  EXPECT_EQ(body_of(response), "done");
  EXPECT_NE(response.find("connection: close"), std::string::npos);
}

TEST(HttpServer, StoppingHardCancelsWhatRuns) {
  std::atomic<bool> started{false};
  std::atomic<bool> cancelled{false};
  auto served = std::make_unique<Served>([&](HttpExchange& exchange) -> Task<void> {
    started = true;
    cancelled = !co_await exchange.loop().sleep(std::chrono::hours(1), exchange.cancel_token());
  });
  RawClient client(served->address);
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return started.load(); }));
  served.reset();
  EXPECT_TRUE(cancelled);
}

TEST(HttpServer, SpreadsConnectionsOverLoops) {
  std::array<std::atomic<int>, 3> per_loop{};
  Served served(
      [&](HttpExchange& exchange) -> Task<void> {
        ++per_loop[exchange.loop().index()];
        (void)co_await exchange.respond(200, "text/plain", "x");
      },
      {}, 3);
  std::vector<RawClient> clients;
  for (int i = 0; i < 9; ++i) {
    clients.emplace_back(served.address);
    clients.back().send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    clients.back().read_until("\r\n\r\nx");
    ASSERT_TRUE(eventually([&] { return served.server.stats().open_exchanges == 0; }));
  }
  for (const auto& count : per_loop) EXPECT_EQ(count, 3);
}

TEST(HttpServer, RefusesConnectionsBeyondTheLimit) {
  HttpServerOptions options;
  options.max_connections = 2;
  Served served(echo, options);
  RawClient a(served.address);
  RawClient b(served.address);
  ASSERT_TRUE(eventually([&] { return served.server.stats().connections_open == 2; }));
  RawClient c(served.address);
  EXPECT_TRUE(c.wait_closed());
  EXPECT_EQ(served.server.stats().connections_refused, 1U);
}

TEST(HttpServer, ListensOnIpv6) {
  LoopGroup loops(1);
  HttpServer server(loops, {}, HttpServer::handler_of(echo));
  loops.start();
  auto bound = server.listen(*SocketAddress::parse("[::1]:0"));
  if (!bound.ok()) {
    // A machine without IPv6 is told so.
    EXPECT_NE(bound.error().message.find("[::1]"), std::string::npos) << bound.error().message;
    server.stop();
    return;
  }
  RawClient client(*bound);
  client.send("GET /six HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(body_of(client.read_until("GET /six ")), "GET /six ");
  server.stop();
}

}  // namespace
}  // namespace penstock::io
