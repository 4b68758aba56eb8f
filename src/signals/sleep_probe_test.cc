#include "signals/sleep_probe.h"

#include <gtest/gtest.h>

#include <string>

namespace penstock::signals {
namespace {

TEST(SleepProbe, ReadsTheOneMember) {
  EXPECT_EQ(parse_sleep_answer(R"({"is_sleeping":true})"), true);
  EXPECT_EQ(parse_sleep_answer(R"({"other":[1,{"is_sleeping":true}],"is_sleeping": false})"), false);
}

TEST(SleepProbe, WhatIsNoAnswerSaysNothing) {
  for (const char* body :
       {"", "true", "[]", "{}", R"({"is_sleeping":"true"})", R"({"is_sleeping":1})", R"({"is_sleeping":true)",
        "{is_sleeping: true}", R"({"is_sleeping":yes})", R"({"is_sleeping":true} {})",
        R"({"is_sleeping":true,"is_sleeping":null})", "<html>is_sleeping: true</html>"}) {
    EXPECT_EQ(parse_sleep_answer(body), std::nullopt) << body;
  }
  EXPECT_EQ(parse_sleep_answer("{\"is_sleeping\":true}" + std::string(kMaxSleepAnswer, ' ')), std::nullopt);
}

}  // namespace
}  // namespace penstock::signals
