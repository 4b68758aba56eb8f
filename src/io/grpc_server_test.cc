#include "io/grpc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "io/detail/grpc_test_support.h"
#include "io/detail/http2_test_support.h"
#include "io/detail/scripted_exchange.h"
#include "io/http_server.h"

namespace penstock::io {
namespace {

using testing::echo_messages;
using testing::grpc_frame;
using testing::gzip;
using ::testing::HasSubstr;
using testing::ScriptedExchange;

using Script = std::function<void(ScriptedExchange&)>;

// Runs one call against a router and keeps the exchange for looking at.
struct Call {
  explicit Call(const Script& script, GrpcMethod method, const GrpcOptions& options = {}) {
    router = std::make_unique<GrpcRouter>(options);
    router->add("/test.Echo/Say", std::move(method));
    exchange = std::make_unique<ScriptedExchange>(loop);
    script(*exchange);
    block_on(loop, router->handle(*exchange));
  }
  Loop loop;
  std::unique_ptr<GrpcRouter> router;
  std::unique_ptr<ScriptedExchange> exchange;
};

Task<GrpcStatus> unreachable(GrpcServerStream&) {
  ADD_FAILURE() << "the method must not run";
  co_return GrpcStatus();
}

TEST(GrpcServer, AnswersEachMessageAndEndsWithTrailers) {
  const Call call(
      [](ScriptedExchange& client) {
        client.give(grpc_frame("a") + grpc_frame("bc"));
        client.half_close();
      },
      echo_messages);
  EXPECT_EQ(call.exchange->status(), 200);
  EXPECT_EQ(call.exchange->field("content-type"), "application/grpc");
  EXPECT_EQ(call.exchange->field("grpc-accept-encoding"), "identity,gzip");
  EXPECT_EQ(call.exchange->field("grpc-status"), "(missing)");
  EXPECT_EQ(call.exchange->framing().kind, BodyFraming::Kind::kChunked);
  EXPECT_EQ(call.exchange->body(), grpc_frame("got a") + grpc_frame("got bc"));
  EXPECT_EQ(call.exchange->trailer("grpc-status"), "0");
  EXPECT_EQ(call.exchange->trailer("grpc-message"), "(missing)");
}

TEST(GrpcServer, AssemblesMessagesSentByteByByte) {
  const Call call(
      [](ScriptedExchange& client) {
        for (const char c : grpc_frame("slow") + grpc_frame("") + grpc_frame("drip"))
          client.give(std::string(1, c));
        client.half_close();
      },
      echo_messages);
  EXPECT_EQ(call.exchange->body(), grpc_frame("got slow") + grpc_frame("got ") + grpc_frame("got drip"));
  EXPECT_EQ(call.exchange->trailer("grpc-status"), "0");
}

TEST(GrpcServer, WaitsForWhatHasNotComeYet) {
  Loop loop;
  GrpcRouter router;
  router.add("/test.Echo/Say", echo_messages);
  ScriptedExchange client(loop);
  Timer timer(loop);
  struct Later {
    ScriptedExchange* client;
    Timer* timer;
    int step = 0;
    static void next(void* self) {
      auto& later = *static_cast<Later*>(self);
      const std::string bytes = grpc_frame("later");
      switch (later.step++) {
        case 0:
          later.client->give(bytes.substr(0, 3));
          break;
        case 1:
          later.client->give(bytes.substr(3));
          break;
        default:
          later.client->half_close();
          return;
      }
      later.timer->arm(std::chrono::milliseconds(1), &Later::next, self);
    }
  } later{&client, &timer};
  timer.arm(std::chrono::milliseconds(1), &Later::next, &later);
  block_on(loop, router.handle(client));
  EXPECT_EQ(client.body(), grpc_frame("got later"));
  EXPECT_EQ(client.trailer("grpc-status"), "0");
}

TEST(GrpcServer, EndsWithTrailersOnlyWhenNothingWasSent) {
  const Call call([](ScriptedExchange&) {},
                  [](GrpcServerStream&) -> Task<GrpcStatus> {
                    co_return GrpcStatus(GrpcCode::kNotFound, "no\nsuch thing");
                  });
  EXPECT_EQ(call.exchange->status(), 200);
  EXPECT_EQ(call.exchange->framing().kind, BodyFraming::Kind::kNone);
  EXPECT_EQ(call.exchange->field("content-type"), "application/grpc");
  EXPECT_EQ(call.exchange->field("grpc-status"), "5");
  EXPECT_EQ(call.exchange->field("grpc-message"), "no%0Asuch thing");
  EXPECT_EQ(call.exchange->trailer_count(), 0U);
  EXPECT_TRUE(call.exchange->finished());
}

TEST(GrpcServer, SendsSeveralMessagesWithOneWriteAndTrailersOfTheMethod) {
  const Call call([](ScriptedExchange&) {},
                  [](GrpcServerStream& stream) -> Task<GrpcStatus> {
                    std::vector<std::string> texts;
                    for (int i = 0; i < 40; ++i) texts.push_back("message " + std::to_string(i));
                    std::vector<std::array<std::string_view, 2>> pieces;
                    for (const std::string& text : texts) pieces.push_back({text, "!"});
                    std::vector<GrpcPieces> messages(pieces.begin(), pieces.end());
                    EXPECT_TRUE((co_await stream.write_messages(messages)).ok());
                    EXPECT_EQ(stream.messages_sent(), 40U);
                    stream.add_trailer("x-more", "said");
                    GrpcStatus ok;
                    EXPECT_TRUE((co_await stream.finish(ok, std::span(messages).first(1))).ok());
                    EXPECT_FALSE((co_await stream.write_messages(messages)).ok());
                    co_return GrpcStatus(GrpcCode::kInternal, "not sent: the call has ended");
                  });
  EXPECT_EQ(call.exchange->writes(), 1);
  std::string expected;
  for (int i = 0; i < 40; ++i) expected += grpc_frame("message " + std::to_string(i) + "!");
  EXPECT_EQ(call.exchange->body(), expected + grpc_frame("message 0!"));
  EXPECT_EQ(call.exchange->trailer("grpc-status"), "0");
  EXPECT_EQ(call.exchange->trailer("x-more"), "said");
}

TEST(GrpcServer, RefusesToSendMoreThanItsLimit) {
  GrpcOptions options;
  options.max_send_message_bytes = 4;
  const Call call([](ScriptedExchange&) {},
                  [](GrpcServerStream& stream) -> Task<GrpcStatus> {
                    const std::string_view text = "12345";
                    const Status written = co_await stream.write_message(GrpcPieces(&text, 1));
                    EXPECT_EQ(written.error().code, ErrorCode::kPayloadTooLarge);
                    co_return grpc_status_of(written.error());
                  },
                  options);
  EXPECT_EQ(call.exchange->field("grpc-status"), "8");
}

TEST(GrpcServer, TellsTheClientThatItsMessageIsTooLarge) {
  GrpcOptions options;
  options.max_receive_message_bytes = 4;
  const Call call([](ScriptedExchange& client) { client.give(grpc_frame("12345")); }, echo_messages, options);
  EXPECT_EQ(call.exchange->field("grpc-status"), "8");
  EXPECT_THAT(call.exchange->field("grpc-message"), HasSubstr("5 bytes"));
}

TEST(GrpcServer, TakesAHalfCloseInsideAMessageForAnError) {
  const Call call(
      [](ScriptedExchange& client) {
        client.give(grpc_frame("whole") + grpc_frame("cut").substr(0, 6));
        client.half_close();
      },
      echo_messages);
  EXPECT_EQ(call.exchange->body(), grpc_frame("got whole"));
  EXPECT_EQ(call.exchange->trailer("grpc-status"), "13");
}

TEST(GrpcServer, ReadsCompressedMessagesWhenAnnounced) {
  const Call call(
      [](ScriptedExchange& client) {
        client.set_field("grpc-encoding", "gzip");
        client.give(grpc_frame(gzip("small"), 1) + grpc_frame("plain"));
        client.half_close();
      },
      echo_messages);
  EXPECT_EQ(call.exchange->body(), grpc_frame("got small") + grpc_frame("got plain"));
  const Call unknown([](ScriptedExchange& client) { client.set_field("grpc-encoding", "snappy"); },
                     unreachable);
  EXPECT_EQ(unknown.exchange->field("grpc-status"), "12");
  EXPECT_EQ(unknown.exchange->field("grpc-accept-encoding"), "identity,gzip");
}

TEST(GrpcServer, EndsAReadWhenTheClientGoes) {
  Loop loop;
  GrpcRouter router;
  std::optional<ErrorCode> seen;
  bool token_fired = false;
  router.add("/test.Echo/Say", [&](GrpcServerStream& stream) -> Task<GrpcStatus> {
    const GrpcServerStream::Read message = co_await stream.read_message();
    EXPECT_FALSE(message.ok());
    if (!message.ok()) seen = message.error().code;
    const GrpcServerStream::Read again = co_await stream.read_message();
    EXPECT_FALSE(again.ok());
    token_fired = stream.cancel_token().cancelled();
    co_return GrpcStatus(GrpcCode::kCancelled);
  });
  ScriptedExchange client(loop);
  Timer timer(loop);
  timer.arm(
      std::chrono::milliseconds(1), [](void* self) { static_cast<ScriptedExchange*>(self)->go_away(); },
      &client);
  block_on(loop, router.handle(client));
  EXPECT_EQ(seen, ErrorCode::kClientClosed);
  EXPECT_TRUE(token_fired);
}

TEST(GrpcServer, GivesUpWaitingForAMessageAndTakesItLater) {
  Loop loop;
  GrpcRouter router;
  CancelSource enough;
  ScriptedExchange client(loop);
  router.add("/test.Echo/Say", [&](GrpcServerStream& stream) -> Task<GrpcStatus> {
    EXPECT_FALSE(stream.message_ready());
    GrpcServerStream::Read message = co_await stream.read_message(std::chrono::milliseconds(2));
    EXPECT_EQ(message.error().code, ErrorCode::kRequestTimeout);
    EXPECT_FALSE(stream.message_ready());
    enough.cancel();
    message = co_await stream.read_message(Duration::zero(), enough.token());
    EXPECT_EQ(message.error().code, ErrorCode::kCancelled);
    const std::string both = grpc_frame("here") + grpc_frame("it is");
    client.give(both.substr(0, 11));
    client.give(both.substr(11));
    co_await loop.sleep(std::chrono::milliseconds(1));
    EXPECT_TRUE(stream.message_ready());
    message = co_await stream.read_message();
    EXPECT_EQ(message.value(), "here");
    message = co_await stream.read_message();
    EXPECT_EQ(message.value(), "it is");
    EXPECT_EQ(stream.messages_received(), 2U);
    co_return GrpcStatus();
  });
  block_on(loop, router.handle(client));
  EXPECT_EQ(client.field("grpc-status"), "0");
}

TEST(GrpcServer, MayLeaveWhileTheClientCouldStillSend) {
  const Call call([](ScriptedExchange&) {},
                  [](GrpcServerStream& stream) -> Task<GrpcStatus> {
                    EXPECT_FALSE((co_await stream.read_message(std::chrono::milliseconds(1))).ok());
                    co_return GrpcStatus();
                  });
  EXPECT_EQ(call.exchange->field("grpc-status"), "0");
}

TEST(GrpcServer, EndsACallAtItsDeadline) {
  const Call waiting([](ScriptedExchange& client) { client.set_field("grpc-timeout", "3m"); },
                     [](GrpcServerStream& stream) -> Task<GrpcStatus> {
                       const GrpcServerStream::Read message = co_await stream.read_message();
                       EXPECT_EQ(message.error().code, ErrorCode::kRequestTimeout);
                       EXPECT_TRUE(stream.deadline_passed());
                       EXPECT_TRUE(stream.cancel_token().cancelled());
                       EXPECT_FALSE((co_await stream.read_message()).ok());
                       co_return GrpcStatus();
                     });
  EXPECT_EQ(waiting.exchange->field("grpc-status"), "4");
  const Call busy([](ScriptedExchange& client) { client.set_field("grpc-timeout", "3m"); },
                  [](GrpcServerStream& stream) -> Task<GrpcStatus> {
                    EXPECT_FALSE(co_await stream.loop().sleep(std::chrono::hours(1), stream.cancel_token()));
                    co_return GrpcStatus();
                  });
  EXPECT_EQ(busy.exchange->field("grpc-status"), "4");
  const Call in_time([](ScriptedExchange& client) { client.set_field("grpc-timeout", "1H"); },
                     [](GrpcServerStream&) -> Task<GrpcStatus> { co_return GrpcStatus(); });
  EXPECT_EQ(in_time.exchange->field("grpc-status"), "0");
  const Call malformed([](ScriptedExchange& client) { client.set_field("grpc-timeout", "soon"); },
                       unreachable);
  EXPECT_EQ(malformed.exchange->field("grpc-status"), "13");
}

TEST(GrpcRouter, RefusesWhatIsNoCall) {
  const Call json([](ScriptedExchange& client) { client.set_field("content-type", "application/json"); },
                  unreachable);
  EXPECT_EQ(json.exchange->status(), 415);
  const Call other([](ScriptedExchange& client) { client.set_field("content-type", "application/grpcx"); },
                   unreachable);
  EXPECT_EQ(other.exchange->status(), 415);
  const Call get([](ScriptedExchange& client) { client.head().method = "GET"; }, unreachable);
  EXPECT_EQ(get.exchange->status(), 405);
  const Call old([](ScriptedExchange& client) { client.head().version = HttpVersion::kHttp11; }, unreachable);
  EXPECT_EQ(old.exchange->status(), 505);
  const Call unknown([](ScriptedExchange& client) { client.head().path = "/test.Echo/Shout"; }, unreachable);
  EXPECT_EQ(unknown.exchange->status(), 200);
  EXPECT_EQ(unknown.exchange->field("grpc-status"), "12");
  const Call with_codec(
      [](ScriptedExchange& client) {
        client.set_field("content-type", "application/grpc+proto; x=y");
        client.half_close();
      },
      echo_messages);
  EXPECT_EQ(with_codec.exchange->field("grpc-status"), "0");
}

TEST(GrpcRouter, PassesOtherRequestsToItsFallback) {
  Loop loop;
  GrpcRouter router;
  router.set_fallback(HttpServer::handler_of(
      [](HttpExchange& exchange) -> Task<void> { (void)co_await exchange.respond(204, "", ""); }));
  ScriptedExchange client(loop);
  client.set_field("content-type", "text/plain");
  block_on(loop, router.handle(client));
  EXPECT_EQ(client.status(), 204);
}

TEST(GrpcRouter, ServesUnaryCalls) {
  const auto call = [](std::initializer_list<std::string> pieces, ScriptedExchange& client, Loop& loop) {
    GrpcRouter router;
    router.add_unary(
        "/test.Echo/Say",
        [](GrpcServerStream&, std::string_view request, std::string& response) -> Task<GrpcStatus> {
          if (request == "bad") co_return GrpcStatus(GrpcCode::kInvalidArgument, "bad");
          response = "re: " + std::string(request);
          co_return GrpcStatus();
        });
    for (const std::string& piece : pieces) client.give(piece);
    client.half_close();
    block_on(loop, router.handle(client));
  };
  Loop loop;
  ScriptedExchange good(loop);
  call({grpc_frame("hello")}, good, loop);
  EXPECT_EQ(good.body(), grpc_frame("re: hello"));
  EXPECT_EQ(good.trailer("grpc-status"), "0");
  ScriptedExchange bad(loop);
  call({grpc_frame("bad")}, bad, loop);
  EXPECT_EQ(bad.field("grpc-status"), "3");
  ScriptedExchange empty(loop);
  call({}, empty, loop);
  EXPECT_EQ(empty.field("grpc-status"), "13");
}

}  // namespace
}  // namespace penstock::io
