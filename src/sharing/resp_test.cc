#include "sharing/resp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::sharing {
namespace {

RespParsed parse(std::string_view bytes, RespReply& out, const RespLimits& limits = {}) {
  return parse_reply(bytes, out, limits);
}
RespOutcome outcome_of(std::string_view bytes, const RespLimits& limits = {}) {
  RespReply reply;
  return parse(bytes, reply, limits).outcome;
}

TEST(Resp, ACommandIsAnArrayOfBulkStrings) {
  std::string out;
  append_command(out, {"SET", "", std::string_view("a\r\nb", 4)});
  EXPECT_EQ(out, "*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\na\r\nb\r\n");
}

TEST(Resp, RepliesOfEveryKindAreRead) {
  RespReply reply;
  EXPECT_EQ(parse("+OK\r\nmore", reply).bytes, 5U);
  EXPECT_EQ(reply.text, "OK");
  EXPECT_EQ(parse("-OOM no\r\n", reply).outcome, RespOutcome::kComplete);
  EXPECT_TRUE(reply.is_error());
  EXPECT_EQ(reply.text, "OOM no");
  EXPECT_EQ(parse(":-12\r\n", reply).outcome, RespOutcome::kComplete);
  EXPECT_EQ(reply.integer, -12);
  EXPECT_EQ(parse("$4\r\na\r\nb\r\n", reply).bytes, 10U);
  EXPECT_EQ(reply.text, "a\r\nb");
  for (const char* null : {"$-1\r\n", "*-1\r\n"}) {
    EXPECT_EQ(parse(null, reply).outcome, RespOutcome::kComplete);
    EXPECT_EQ(reply.kind, RespReply::Kind::kNull);
  }
  EXPECT_EQ(parse("*2\r\n*1\r\n:1\r\n$1\r\nx\r\n", reply).outcome, RespOutcome::kComplete);
  ASSERT_EQ(reply.items.size(), 2U);
  EXPECT_EQ(reply.items[0].items.at(0).integer, 1);
  EXPECT_EQ(reply.items[1].text, "x");
}

TEST(Resp, EveryBeginningOfAReplyIsIncompleteAndSaysHowMuchIsNeededAtLeast) {
  const std::string whole = "*3\r\n$5\r\nhello\r\n*1\r\n:7\r\n+x\r\n";
  RespReply reply;
  for (size_t n = 0; n < whole.size(); ++n) {
    const RespParsed parsed = parse(std::string_view(whole).substr(0, n), reply);
    EXPECT_EQ(parsed.outcome, RespOutcome::kIncomplete) << n;
    EXPECT_GT(parsed.bytes, n);
    EXPECT_LE(parsed.bytes, whole.size());
  }
  EXPECT_EQ(parse(whole, reply).bytes, whole.size());
}

TEST(Resp, WhatIsNoReplyIsMalformed) {
  for (const char* bad : {"OK\r\n", ":x\r\n", ":\r\n", "$-2\r\n", "$x\r\n", "$1\r\nab\r\n", "*x\r\n",
                          "+a\rb\r\n", "*1\r\n?\r\n", "$+1\r\na\r\n"}) {
    EXPECT_EQ(outcome_of(bad), RespOutcome::kMalformed) << bad;
  }
}

TEST(Resp, WhatIsBeyondALimitIsRefusedBeforeItComes) {
  EXPECT_EQ(outcome_of("$1000\r\n", {.bytes = 100}), RespOutcome::kTooLarge);
  EXPECT_EQ(outcome_of("$99\r\n", {.bytes = 100}), RespOutcome::kTooLarge) << "with its framing";
  EXPECT_EQ(outcome_of("*11\r\n", {.items = 10}), RespOutcome::kTooLarge);
  EXPECT_EQ(outcome_of("*2\r\n*9\r\n", {.items = 10}), RespOutcome::kTooLarge) << "of all arrays together";
  EXPECT_EQ(outcome_of("*1\r\n*1\r\n*1\r\n", {.depth = 2}), RespOutcome::kTooLarge);
  EXPECT_EQ(outcome_of("$99999999999999999999999\r\n"), RespOutcome::kMalformed);
  EXPECT_EQ(outcome_of("+" + std::string(70000, 'x')), RespOutcome::kTooLarge);
}

}  // namespace
}  // namespace penstock::sharing
