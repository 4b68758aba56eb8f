#include "io/grpc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <atomic>
#include <thread>

#include "base/escapes.h"
#include "io/detail/http2_test_support.h"
#include "io/detail/scripted_exchange.h"
#include "io/detail/test_support.h"
#include "io/http_server.h"

namespace penstock::io {
namespace {

using testing::grpc_frame;
using ::testing::HasSubstr;
using testing::ScriptedExchange;

std::string gzip(std::string_view plain) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, plain.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

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

Task<GrpcStatus> echo(GrpcServerStream& stream) {
  for (;;) {
    GrpcServerStream::Read message = co_await stream.read_message();
    if (!message.ok()) co_return grpc_status_of(message.error());
    if (!message->has_value()) co_return GrpcStatus();
    const std::array<std::string_view, 2> pieces = {"got ", **message};
    const Status written = co_await stream.write_message(pieces);
    if (!written.ok()) co_return grpc_status_of(written.error());
  }
}

// As echo(), with a coroutine only for what has to wait.
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

Task<GrpcStatus> unreachable(GrpcServerStream&) {
  ADD_FAILURE() << "the method must not run";
  co_return GrpcStatus();
}

std::vector<std::string> decode(GrpcFrameDecoder& decoder, std::string_view bytes, size_t step) {
  std::vector<std::string> out;
  for (size_t at = 0; at < bytes.size(); at += step) {
    const std::string piece(bytes.substr(at, step));
    decoder.feed(piece);
    for (;;) {
      const bool ready = decoder.ready();
      auto message = decoder.next();
      EXPECT_EQ(ready, !message.ok() || message->has_value());
      if (!message.ok()) {
        out.push_back("error " + std::to_string(static_cast<int>(message.error().code)));
        return out;
      }
      if (!message->has_value()) break;
      out.emplace_back(**message);
    }
  }
  return out;
}

std::string error_text(ErrorCode code) {
  return "error " + std::to_string(static_cast<int>(code));
}

TEST(GrpcFrameDecoder, GivesTheSameMessagesWhateverTheSplits) {
  const std::string big(100'000, 'b');
  const std::string packed = gzip("packed and packed and packed");
  const std::string bytes =
      grpc_frame("one") + grpc_frame("") + grpc_frame(packed, 1) + grpc_frame(big) + grpc_frame("last");
  for (const size_t step : {1UL, 2UL, 3UL, 4UL, 5UL, 6UL, 7UL, 64UL, 16'384UL, bytes.size()}) {
    GrpcFrameDecoder decoder(1UL << 20U, GrpcFrameDecoder::Encoding::kGzip);
    EXPECT_THAT(decode(decoder, bytes, step),
                ::testing::ElementsAre("one", "", "packed and packed and packed", big, "last"))
        << step;
    EXPECT_TRUE(decoder.at_boundary());
  }
}

TEST(GrpcFrameDecoder, DoesNotCopyAMessageThatLiesWholeInOnePiece) {
  GrpcFrameDecoder decoder(100);
  const std::string bytes = grpc_frame("first") + grpc_frame("second");
  decoder.feed(bytes);
  EXPECT_EQ((*decoder.next().value()).data(), bytes.data() + 5);
  EXPECT_EQ((*decoder.next().value()).data(), bytes.data() + 15);
}

TEST(GrpcFrameDecoder, KnowsThatAMessageIsUnfinished) {
  for (size_t cut = 1; cut < 9; ++cut) {
    GrpcFrameDecoder decoder(100);
    EXPECT_TRUE(decode(decoder, grpc_frame("four").substr(0, cut), 100).empty());
    EXPECT_FALSE(decoder.at_boundary()) << cut;
  }
}

TEST(GrpcFrameDecoder, RefusesAMessageOverTheLimitAtItsPrefix) {
  GrpcFrameDecoder decoder(8);
  EXPECT_THAT(decode(decoder, grpc_frame("12345678") + grpc_frame("123456789").substr(0, 5), 1),
              ::testing::ElementsAre("12345678", error_text(ErrorCode::kPayloadTooLarge)));
}

TEST(GrpcFrameDecoder, KeepsNothingOfALargeMessageWhileItWaitsForTheNext) {
  GrpcFrameDecoder decoder(4 << 20);
  const std::string bytes = grpc_frame(std::string(1 << 20, 'x'));
  decoder.feed(std::string_view(bytes).substr(0, 100));
  EXPECT_FALSE(decoder.next().value().has_value());
  decoder.feed(std::string_view(bytes).substr(100));
  EXPECT_EQ(decoder.next().value()->size(), 1U << 20U);
  EXPECT_GE(decoder.held_bytes(), 1U << 20U);
  EXPECT_FALSE(decoder.next().value().has_value());
  EXPECT_LE(decoder.held_bytes(), 4096U);
}

TEST(GrpcFrameDecoder, TakesNoMemoryForWhatWasOnlyPromised) {
  GrpcFrameDecoder decoder(UINT32_MAX - 1);
  std::string promise(5, '\xff');
  promise[0] = 0;
  promise[4] = '\0';
  decoder.feed(promise);
  EXPECT_FALSE(decoder.next().value().has_value());
}

TEST(GrpcFrameDecoder, RefusesUnknownFlagsAndUnannouncedCompression) {
  GrpcFrameDecoder flags(100);
  EXPECT_THAT(decode(flags, grpc_frame("x", 2), 100),
              ::testing::ElementsAre(error_text(ErrorCode::kInternal)));
  GrpcFrameDecoder identity(100);
  EXPECT_THAT(decode(identity, grpc_frame(gzip("x"), 1), 100),
              ::testing::ElementsAre(error_text(ErrorCode::kInternal)));
  GrpcFrameDecoder other(100, GrpcFrameDecoder::Encoding::kUnsupported);
  EXPECT_THAT(decode(other, grpc_frame("plain") + grpc_frame("x", 1), 100),
              ::testing::ElementsAre("plain", error_text(ErrorCode::kNotImplemented)));
}

TEST(GrpcFrameDecoder, RefusesBrokenCutAndTrailedGzip) {
  const std::string good = gzip("some text that is long enough to be cut");
  std::string wrong_sum = good;
  wrong_sum[wrong_sum.size() - 5] ^= 1;
  for (const std::string& bad : {good.substr(0, good.size() - 1), good.substr(0, 12), std::string("no gzip"),
                                 wrong_sum, good + "x", std::string()}) {
    GrpcFrameDecoder decoder(1000, GrpcFrameDecoder::Encoding::kGzip);
    EXPECT_THAT(decode(decoder, grpc_frame(bad, 1), 1000),
                ::testing::ElementsAre(error_text(ErrorCode::kInternal)));
  }
}

TEST(GrpcFrameDecoder, StopsUnpackingAtTheLimit) {
  const std::string bomb = gzip(std::string(64UL << 20U, '\0'));
  ASSERT_LT(bomb.size(), 100'000U);
  GrpcFrameDecoder decoder(100'000, GrpcFrameDecoder::Encoding::kGzip);
  EXPECT_THAT(decode(decoder, grpc_frame(bomb, 1), bomb.size() + 5),
              ::testing::ElementsAre(error_text(ErrorCode::kPayloadTooLarge)));
  GrpcFrameDecoder exact(100'000, GrpcFrameDecoder::Encoding::kGzip);
  const std::string fits(100'000, '\0');
  EXPECT_THAT(decode(exact, grpc_frame(gzip(fits), 1), 200'000), ::testing::ElementsAre(fits));
}

TEST(GrpcText, PercentEncodesWhatAHeaderCannotCarry) {
  EXPECT_EQ(grpc_encode_message("plain text, 100%"), "plain text, 100%25");
  EXPECT_EQ(grpc_encode_message("line\nend ü\x7f"), "line%0Aend %C3%BC%7F");
  EXPECT_EQ(percent_decode("line%0aend %C3%BC%7F"), "line\nend ü\x7f");
  EXPECT_EQ(percent_decode("%"), "%");
  EXPECT_EQ(percent_decode("%4"), "%4");
  EXPECT_EQ(percent_decode("%zz%41"), "%zzA");
}

TEST(GrpcText, ReadsAndWritesTimeouts) {
  using namespace std::chrono_literals;
  EXPECT_EQ(parse_grpc_timeout("1S"), Duration(1s));
  EXPECT_EQ(parse_grpc_timeout("99999999m"), Duration(99999999ms));
  EXPECT_EQ(parse_grpc_timeout("5u"), Duration(5us));
  EXPECT_EQ(parse_grpc_timeout("7n"), Duration(7ns));
  EXPECT_EQ(parse_grpc_timeout("2M"), Duration(2min));
  EXPECT_GT(parse_grpc_timeout("99999999H"), Duration(24h * 365));
  for (const std::string_view bad : {"", "S", "1", "1s", "-1S", "1 S", "123456789S", "0x1S", "1.5S"})
    EXPECT_FALSE(parse_grpc_timeout(bad).has_value()) << bad;
  EXPECT_EQ(format_grpc_timeout(10s), "10000000u");
  EXPECT_EQ(format_grpc_timeout(1h), "3600000m");
  EXPECT_EQ(format_grpc_timeout(Duration(99'999'999)), "99999999n");
  EXPECT_EQ(format_grpc_timeout(Duration(100'000'001)), "100001u");
  EXPECT_EQ(format_grpc_timeout(-1s), "0n");
  for (const Duration timeout :
       {Duration(1), Duration(1ms), Duration(90s), Duration(30h), Duration(24h * 4000)}) {
    const auto back = parse_grpc_timeout(format_grpc_timeout(timeout));
    ASSERT_TRUE(back.has_value());
    EXPECT_GE(*back, timeout);
  }
}

TEST(GrpcServer, AnswersEachMessageAndEndsWithTrailers) {
  const Call call(
      [](ScriptedExchange& client) {
        client.give(grpc_frame("a") + grpc_frame("bc"));
        client.half_close();
      },
      echo);
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
      echo);
  EXPECT_EQ(call.exchange->body(), grpc_frame("got slow") + grpc_frame("got ") + grpc_frame("got drip"));
  EXPECT_EQ(call.exchange->trailer("grpc-status"), "0");
}

TEST(GrpcServer, WaitsForWhatHasNotComeYet) {
  Loop loop;
  GrpcRouter router;
  router.add("/test.Echo/Say", echo);
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
  const Call call([](ScriptedExchange& client) { client.give(grpc_frame("12345")); }, echo, options);
  EXPECT_EQ(call.exchange->field("grpc-status"), "8");
  EXPECT_THAT(call.exchange->field("grpc-message"), HasSubstr("5 bytes"));
}

TEST(GrpcServer, TakesAHalfCloseInsideAMessageForAnError) {
  const Call call(
      [](ScriptedExchange& client) {
        client.give(grpc_frame("whole") + grpc_frame("cut").substr(0, 6));
        client.half_close();
      },
      echo);
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
      echo);
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
      echo);
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

// --- over real HTTP/2 ---

class GrpcOverHttp2 : public ::testing::Test {
 protected:
  GrpcOverHttp2() : loops_(1) {
    auto router = std::make_shared<GrpcRouter>();
    router->add("/test.Echo/Say", echo);
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
