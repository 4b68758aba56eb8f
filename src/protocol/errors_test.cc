#include "protocol/errors.h"

#include <gtest/gtest.h>

namespace penstock::protocol {
namespace {

TEST(Errors, MapToTheReferencesStatuses) {
  EXPECT_EQ(error_status(ErrorCode::kBadRequest).http_status, 400);
  EXPECT_EQ(error_status(ErrorCode::kPreconditionFailed).http_status, 412);
  EXPECT_EQ(error_status(ErrorCode::kResourceExhausted).http_status, 429);
  EXPECT_EQ(error_status(ErrorCode::kInternal).http_status, 500);
  EXPECT_EQ(error_status(ErrorCode::kServiceUnavailable).http_status, 503);
  EXPECT_EQ(error_status(ErrorCode::kGatewayTimeout).http_status, 504);
  EXPECT_EQ(error_status(ErrorCode::kPayloadTooLarge).http_status, 413);
}

TEST(Errors, HaveTheReferencesText) {
  EXPECT_EQ(reference_error_text({ErrorCode::kBadRequest, "invalid model name"}),
            "inference error: BadRequest - invalid model name");
  EXPECT_EQ(reference_error_text({ErrorCode::kBadRequest, ""}), "inference error: BadRequest - ");
}

TEST(Errors, SayWhatWouldDoAndWhatWillNeverDo) {
  const auto never = error_field(ErrorCode::kNotImplemented);
  ASSERT_TRUE(never);
  EXPECT_EQ(never->name, "x-should-retry");
  EXPECT_EQ(never->value, "false");
  const auto other = error_field(ErrorCode::kUnsupportedMedia);
  ASSERT_TRUE(other);
  EXPECT_EQ(other->name, "accept-encoding");
  EXPECT_EQ(other->value, "identity");
  EXPECT_FALSE(error_field(ErrorCode::kServiceUnavailable));
}

TEST(Errors, OfAnEncodedBodyNameTheEncoding) {
  const Error error{ErrorCode::kBadRequest, "invalid character at offset 0"};
  const auto of = [&](std::string_view encoding) {
    const HeaderField field{"content-encoding", encoding};
    return unreadable_body(error, std::span(&field, 1));
  };
  EXPECT_EQ(of("gzip").code, ErrorCode::kUnsupportedMedia);
  EXPECT_EQ(of("gzip").message,
            "the request body has the content-encoding 'gzip', which is not decoded here; send it as it is");
  EXPECT_EQ(of(std::string(1000, 'x')).message.size(), of(std::string(64, 'y')).message.size());
  for (const std::string_view none : {"", " ", "identity", "Identity"}) {
    EXPECT_EQ(of(none).code, ErrorCode::kBadRequest);
    EXPECT_EQ(of(none).message, error.message);
  }
  EXPECT_EQ(unreadable_body(error, {}).message, error.message);
}

TEST(Errors, SpeakTheShapeOfTheClientsSdk) {
  const Error error{ErrorCode::kResourceExhausted, "no \"room\""};
  EXPECT_EQ(
      error_body(error, ApiKind::kChatCompletions, "/v1/chat/completions", "r1"),
      R"({"error":{"message":"inference error: ResourceExhausted - no \"room\"","type":"rate_limit_error","param":null,"code":"ResourceExhausted"},"request_id":"r1"})");
  EXPECT_EQ(
      error_body(error, ApiKind::kMessages, "", "r1"),
      R"({"type":"error","error":{"type":"rate_limit_error","message":"inference error: ResourceExhausted - no \"room\""},"request_id":"r1"})");
  EXPECT_EQ(error_body(error, ApiKind::kNone, "/v1/messages", "r1"),
            error_body(error, ApiKind::kMessages, "", "r1"));
  EXPECT_EQ(error_body(error, ApiKind::kNone, "/x/v1/messages/count_tokens", "r1"),
            error_body(error, ApiKind::kMessages, "", "r1"));
}

TEST(Errors, AreOneEventInAStream) {
  const Error error{ErrorCode::kBadGateway, "engine died"};
  const std::string openai = error_event(error, ApiKind::kChatCompletions, "", "r");
  EXPECT_TRUE(openai.starts_with("data: {\"error\":{"));
  EXPECT_TRUE(openai.ends_with("}\n\n"));
  EXPECT_TRUE(
      error_event(error, ApiKind::kMessages, "", "r").starts_with("event: error\ndata: {\"type\":\"error\""));
}

}  // namespace
}  // namespace penstock::protocol
