#include "io/grpc.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "io/detail/grpc_test_support.h"
#include "io/detail/http2_test_support.h"
#include "io/detail/test_support.h"
#include "io/http_server.h"

namespace penstock::io {
namespace {

using testing::echo_messages;

// As echo_messages(), with a coroutine only for what has to wait.
Task<GrpcStatus> echo_at_once(GrpcServerStream& stream) {
  for (;;) {
    GrpcServerStream::Read message = co_await stream.read_message();
    if (!message.ok()) co_return grpc_status_of(message.error());
    if (!message->has_value()) co_return GrpcStatus();
    const std::array<std::string_view, 2> pieces = {"got ", **message};
    const GrpcPieces all(pieces);
    std::optional<Status> written = stream.write_messages_there({&all, 1});
    if (!written) {
      Status waited = co_await stream.write_messages({&all, 1});
      written.emplace(std::move(waited));
    }
    if (!written->ok()) co_return grpc_status_of(written->error());
  }
}

class GrpcOverHttp2 : public ::testing::Test {
 protected:
  GrpcOverHttp2() : loops_(1) {
    auto router = std::make_shared<GrpcRouter>();
    router->add("/test.Echo/Say", echo_messages);
    router->add("/test.Echo/SayAtOnce", echo_at_once);
    router->add("/test.Echo/Never", [](GrpcServerStream& stream) -> Task<GrpcStatus> {
      started.store(true);
      (void)co_await stream.loop().sleep(std::chrono::hours(1), stream.cancel_token());
      cancelled.store(true);
      co_return GrpcStatus();
    });
    router->add("/test.Echo/LeavesEarly", [](GrpcServerStream& stream) -> Task<GrpcStatus> {
      (void)co_await stream.read_message();
      stream.add_trailer("x-more", "said");
      co_return GrpcStatus(GrpcCode::kAborted, "enough 100%");
    });
    router->add_unary(
        "/test.Echo/Big",
        [](GrpcServerStream&, std::string_view request, std::string& response) -> Task<GrpcStatus> {
          response = std::string(request) + std::string(request);
          co_return GrpcStatus();
        });
    loops_.start();
    HttpServerOptions options;
    server_ = std::make_unique<HttpServer>(loops_, options, router);
    auto bound = server_->listen(testing::loopback());
    EXPECT_TRUE(bound.ok());
    to_ = HttpDestination("127.0.0.1", bound->port());
    started.store(false);
    cancelled.store(false);
  }
  ~GrpcOverHttp2() override {
    server_->stop();
    server_.reset();
    loops_.stop();
  }
  // Runs on a loop of its own.
  template <typename F>
  void run(F task) {
    Loop loop;
    HttpClient client(loop);
    block_on(loop, task(client));
  }

  static inline std::atomic<bool> started{false};
  static inline std::atomic<bool> cancelled{false};
  LoopGroup loops_;
  std::unique_ptr<HttpServer> server_;
  HttpDestination to_;
};

TEST_F(GrpcOverHttp2, MessagesGoBothWaysInTurns) {
  run([this](HttpClient& client) -> Task<void> {
    auto opened = co_await GrpcClientStream::open(client, to_, "/test.Echo/Say");
    EXPECT_TRUE(opened.ok());
    GrpcClientStream& call = **opened;
    for (int i = 0; i < 20; ++i) {
      const std::string text = "turn " + std::to_string(i);
      const std::string_view piece = text;
      EXPECT_TRUE((co_await call.write_message(GrpcPieces(&piece, 1))).value());
      const auto answer = co_await call.read_message();
      EXPECT_EQ(answer, "got " + text);
    }
    EXPECT_TRUE((co_await call.half_close()).ok());
    EXPECT_FALSE((co_await call.read_message()).has_value());
    EXPECT_TRUE(call.status().ok()) << call.status().message;
  });
}

TEST_F(GrpcOverHttp2, WhatIsWrittenAtOnceAndWhatHasToWaitKeepTheirOrder) {
  run([this](HttpClient& client) -> Task<void> {
    auto opened = co_await GrpcClientStream::open(client, to_, "/test.Echo/SayAtOnce");
    EXPECT_TRUE(opened.ok());
    GrpcClientStream& call = **opened;
    // More than a stream's window at once, so that small ones come behind one that waits.
    for (const size_t size : {10UL, 600'000UL, 0UL, 20'000UL, 1UL}) {
      const std::string text(size, 'x');
      const std::string_view piece = text;
      EXPECT_TRUE((co_await call.write_message(GrpcPieces(&piece, 1))).value());
    }
    EXPECT_TRUE((co_await call.half_close()).ok());
    for (const size_t size : {10UL, 600'000UL, 0UL, 20'000UL, 1UL}) {
      const auto answer = co_await call.read_message();
      EXPECT_EQ(answer.value_or("").size(), size + 4);
    }
    EXPECT_FALSE((co_await call.read_message()).has_value());
    EXPECT_TRUE(call.status().ok()) << call.status().message;
  });
}

TEST_F(GrpcOverHttp2, LargeUnaryCallsPassWithBackPressure) {
  run([this](HttpClient& client) -> Task<void> {
    const std::string body(1'900'000, 'x');
    const std::string_view piece = body;
    const GrpcReply reply = co_await grpc_unary(client, to_, "/test.Echo/Big", GrpcPieces(&piece, 1));
    EXPECT_TRUE(reply.status.ok()) << reply.status.message;
    EXPECT_EQ(reply.message.size(), 2 * body.size());
    const std::string too_big(5'000'000, 'x');
    const std::string_view much = too_big;
    const GrpcReply refused = co_await grpc_unary(client, to_, "/test.Echo/Big", GrpcPieces(&much, 1));
    EXPECT_EQ(refused.status.code, GrpcCode::kResourceExhausted) << refused.status.message;
  });
}

TEST_F(GrpcOverHttp2, StatusAndTrailersArriveWhenTheMethodLeavesEarly) {
  run([this](HttpClient& client) -> Task<void> {
    auto opened = co_await GrpcClientStream::open(client, to_, "/test.Echo/LeavesEarly");
    GrpcClientStream& call = **opened;
    const std::string_view piece = "one";
    (void)co_await call.write_message(GrpcPieces(&piece, 1));
    EXPECT_FALSE((co_await call.read_message()).has_value());
    EXPECT_EQ(call.status().code, GrpcCode::kAborted);
    EXPECT_EQ(call.status().message, "enough 100%");
    EXPECT_EQ(call.trailer("x-more"), "said");
    const GrpcReply unknown = co_await grpc_unary(client, to_, "/test.Echo/Nothing", GrpcPieces(&piece, 1));
    EXPECT_EQ(unknown.status.code, GrpcCode::kUnimplemented);
  });
}

TEST_F(GrpcOverHttp2, ADeadlineEndsBothSides) {
  run([this](HttpClient& client) -> Task<void> {
    GrpcCallOptions options;
    options.timeout = std::chrono::milliseconds(30);
    const std::string_view piece = "one";
    const GrpcReply reply =
        co_await grpc_unary(client, to_, "/test.Echo/Never", GrpcPieces(&piece, 1), options);
    EXPECT_EQ(reply.status.code, GrpcCode::kDeadlineExceeded);
  });
  EXPECT_TRUE(testing::eventually([] { return cancelled.load(); }));
}

TEST_F(GrpcOverHttp2, ACallerThatLeavesCancelsTheMethod) {
  run([this](HttpClient& client) -> Task<void> {
    auto opened = co_await GrpcClientStream::open(client, to_, "/test.Echo/Never");
    GrpcClientStream& call = **opened;
    const std::string_view piece = "one";
    (void)co_await call.write_message(GrpcPieces(&piece, 1));
    for (int i = 0; i < 10'000 && !started.load(); ++i)
      co_await client.loop().sleep(std::chrono::milliseconds(1));
    call.cancel();
    EXPECT_EQ(call.status().code, GrpcCode::kCancelled);
    for (int i = 0; i < 10'000 && !cancelled.load(); ++i)
      co_await client.loop().sleep(std::chrono::milliseconds(1));
  });
  EXPECT_TRUE(cancelled.load());
}

// A reader and a writer that both wait: the end of the call reaches both, whoever learns of it first.
TEST_F(GrpcOverHttp2, AFailedReadLeavesTheWaitingWriterItsCall) {
  for (const bool by_peer : {true, false}) {
    testing::RawServer raw;
    std::thread peer([&] {
      testing::Http2Wire wire(raw.accept());
      wire.skip_preface();
      wire.settings({{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0}});
      wire.next(NGHTTP2_HEADERS);
      if (by_peer) wire.send(testing::Http2Wire::reset_frame(1, NGHTTP2_INTERNAL_ERROR));
      while (wire.next().type != testing::Http2Frame::kEnd) {
      }
    });
    run([&](HttpClient& client) -> Task<void> {
      const HttpDestination to(raw.address().ip(), raw.address().port());
      auto opened = co_await GrpcClientStream::open(client, to, "/test.Echo/Never");
      EXPECT_TRUE(opened.ok());
      if (!opened.ok()) co_return;
      GrpcClientStream& call = **opened;
      int done = 0;
      spawn(client.loop(), [](GrpcClientStream& c, int& d) -> Task<void> {
        EXPECT_FALSE((co_await c.read_message()).has_value());
        ++d;
      }(call, done));
      spawn(client.loop(), [](GrpcClientStream& c, int& d) -> Task<void> {
        const std::string large(1 << 20, 'x');
        const std::string_view piece = large;
        const Result<bool> sent = co_await c.write_message(GrpcPieces(&piece, 1));
        EXPECT_FALSE(sent.ok() && *sent);
        ++d;
      }(call, done));
      if (!by_peer) {
        co_await client.loop().sleep(std::chrono::milliseconds(20));
        EXPECT_EQ(done, 0);
        call.cancel();
      }
      for (int i = 0; i < 10'000 && done != 2; ++i)
        co_await client.loop().sleep(std::chrono::milliseconds(1));
      EXPECT_EQ(done, 2);
      EXPECT_EQ(call.status().code, by_peer ? GrpcCode::kUnavailable : GrpcCode::kCancelled);
    });
    peer.join();
  }
}

TEST_F(GrpcOverHttp2, NobodyThereIsUnavailable) {
  run([](HttpClient& client) -> Task<void> {
    const std::string_view piece = "one";
    const HttpDestination nobody("127.0.0.1", 1);
    const GrpcReply reply = co_await grpc_unary(client, nobody, "/test.Echo/Say", GrpcPieces(&piece, 1));
    EXPECT_EQ(reply.status.code, GrpcCode::kUnavailable);
  });
}

}  // namespace
}  // namespace penstock::io
