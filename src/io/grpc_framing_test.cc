#include "io/grpc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/escapes.h"
#include "io/detail/grpc_test_support.h"
#include "io/detail/scripted_exchange.h"

namespace penstock::io {
namespace {

using testing::grpc_frame;
using testing::gzip;

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

}  // namespace
}  // namespace penstock::io
