#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "assembly/policy_vectors/vector_file_testing.h"

namespace penstock::assembly::vectors {
namespace {

using testing::HasSubstr;

TEST(PolicyVectorFiles, AreReadStrictly) {
  const auto error_of = [](std::string_view text) {
    const auto file = decode_file(text, "f");
    return file.ok() ? std::string() : file.error().message;
  };
  constexpr std::string_view kHead = "plugins: [p]\ncases:\n- name: c\n  endpoints: {a: {}}\n";
  const auto with = [&](std::string_view rest) { return error_of(std::string(kHead) + std::string(rest)); };
  EXPECT_EQ(with("  expect: {winner: a}\n"), "");
  EXPECT_THAT(with("  expect: {winer: a}\n"), HasSubstr("winer"));
  EXPECT_THAT(with("  expect: {winner: b}\n"), HasSubstr("there is no endpoint b"));
  EXPECT_THAT(with("  expekt: {winner: a}\n"), HasSubstr("expekt"));
  EXPECT_THAT(with("  expect: {scores: {s: {b: 1}}}\n"), HasSubstr("there is no endpoint b"));
  EXPECT_THAT(with("  expect: {scores: {s: {a: x}}}\n"), HasSubstr("expected a number"));
  EXPECT_THAT(with("  steps: [{request: {modl: m}}]\n"), HasSubstr("modl"));
  EXPECT_THAT(with("  steps: [{endpoints: {b: {}}}]\n"), HasSubstr("there is no such endpoint"));
  EXPECT_THAT(with(""), HasSubstr("the case expects nothing"));
  EXPECT_THAT(with("  expect: {winner: {a: 1}}\n"), HasSubstr("several winners need draws"));
  EXPECT_THAT(with("  draws: 9\n  expect: {winner: a, fallback: none}\n"), HasSubstr("of draws only"));
  EXPECT_THAT(with("  expect: {responseHeaders: {x: y}}\n"), HasSubstr("of an answer need one"));
  // What would run, and look at nothing.
  EXPECT_THAT(with("  steps: [{repeat: 0, expect: {winner: a}}]\n"), HasSubstr("0 is less than 1"));
  EXPECT_THAT(with("  draws: -1\n  expect: {winner: a}\n"), HasSubstr("-1 is less than 0"));
  EXPECT_THAT(with("  answer: {chunks: 0}\n  expect: {winner: a}\n"), HasSubstr("0 is less than 1"));
  EXPECT_THAT(with("  request: {tokens: [[{token: 1, times: 0}]]}\n  expect: {winner: a}\n"),
              HasSubstr("0 is less than 1"));
  EXPECT_THAT(with("  steps: []\n"), HasSubstr("the case expects nothing"));
  EXPECT_THAT(with("  steps: [{request: {}}, {hold: true}]\n"), HasSubstr("the case expects nothing"));
  EXPECT_THAT(with("  request: {}\n"), HasSubstr("the case expects nothing"));
  EXPECT_EQ(with("  expect: {}\n"), "");  // the request is decided
  EXPECT_THAT(with("  expect: {scores: {s: {}}}\n"), HasSubstr("expect.scores.s: is empty"));
  EXPECT_THAT(with("  expect: {winner: []}\n"), HasSubstr("expect.winner: is empty"));
  EXPECT_THAT(with("  steps: [{inFlightAfterAnswer: {a: {}}}]\n"),
              HasSubstr("inFlightAfterAnswer.a: is empty"));
  EXPECT_THAT(with("  refusedConfiguration: x\n  expect: {winner: a}\n"),
              HasSubstr("nothing else is looked at"));
  EXPECT_THAT(
      error_of("plugins: [p]\ncases: [{name: c, endpoints: {a: {wating: 1}}, expect: {winner: a}}]\n"),
      HasSubstr("wating"));
  EXPECT_THAT(
      error_of("plugins: [p]\ncases: [{name: c, endpoints: {a: {waiting: many}}, expect: {winner: a}}]\n"),
      HasSubstr("expected a number"));
  EXPECT_THAT(error_of("plugins: [p]\ncases: []\n"), HasSubstr("there are none"));
  EXPECT_THAT(error_of("cases: [{name: c, expect: {winner: a}}]\n"), HasSubstr("name the plugin types"));
}

}  // namespace
}  // namespace penstock::assembly::vectors
