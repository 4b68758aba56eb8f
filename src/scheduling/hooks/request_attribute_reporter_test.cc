#include "scheduling/hooks/request_attribute_reporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::HasSubstr;

// The value as text: "10", "10i", "true", "'x'", "null", or the error.
std::string value_of(std::string_view expression, const UsageValues& usage = {10, 5, 15, std::nullopt}) {
  const auto compiled = UsageExpression::compile(expression);
  if (!compiled.ok()) return compiled.error().message;
  const auto value = compiled->evaluate(usage);
  if (!value.ok()) return value.error().message;
  if (const auto* b = std::get_if<bool>(&*value)) return *b ? "true" : "false";
  if (const auto* i = std::get_if<int64_t>(&*value)) return std::to_string(*i) + "i";
  if (const auto* d = std::get_if<double>(&*value)) {
    std::string text = std::to_string(*d);
    return text.substr(0, text.find('.') + 3);
  }
  if (const auto* s = std::get_if<std::string>(&*value)) return "'" + *s + "'";
  return "null";
}

TEST(UsageExpressionTest, CalculatesWithTokenCounts) {
  EXPECT_EQ(value_of("usage.prompt_tokens"), "10.00");
  EXPECT_EQ(value_of("usage['completion_tokens'] * 2.0 + 1.0"), "11.00");
  EXPECT_EQ(value_of("1 + 2 * 3 - -4"), "11i");
  EXPECT_EQ(value_of("(1 + 2) * 3 % 4"), "1i");
  EXPECT_EQ(value_of("usage.total_tokens > 14.5 ? 'big' : 'small'"), "'big'");
  EXPECT_EQ(value_of("usage.completion_tokens > 0 && !(usage.prompt_tokens == 11)"), "true");
  EXPECT_EQ(value_of("int(usage.prompt_tokens / 4.0)"), "2i");
  EXPECT_EQ(value_of("double(3)"), "3.00");
  EXPECT_EQ(value_of("usage.prompt_tokens_details.cached_tokens", {1, 1, 2, 7}), "7.00");
  EXPECT_EQ(value_of("has(usage.prompt_tokens_details) ? 1 : 0"), "0i");
  EXPECT_EQ(value_of("1e3"), "1000.00");
}

TEST(UsageExpressionTest, WhatHasNoMeaningIsAnErrorOfEvaluation) {
  EXPECT_EQ(value_of("usage.prompt_tokens * 2"), "no such overload");
  EXPECT_EQ(value_of("usage.nothing"), "no such key: nothing");
  EXPECT_EQ(value_of("1 / 0"), "integer overflow or division by zero");
  EXPECT_EQ(value_of("9223372036854775807 + 1"), "integer overflow or division by zero");
  EXPECT_EQ(value_of("usage.nothing == 1 || true"), "true");
  EXPECT_EQ(value_of("false && usage.nothing"), "false");
  EXPECT_EQ(value_of("1 ? 2 : 3"), "no such overload");
}

TEST(UsageExpressionTest, WhatCannotBeReadIsRefused) {
  EXPECT_THAT(value_of("usage."), HasSubstr("a field's name expected at byte 6"));
  EXPECT_THAT(value_of("request.path"), HasSubstr("undeclared reference to 'request'"));
  for (const std::string_view bad : {"", "1 +", "(1", "'x", "1 2", "a", "usage[1]", "has(1)", "1 ? 2",
                                     "99999999999999999999", "1..2", "@"}) {
    EXPECT_FALSE(UsageExpression::compile(bad).ok()) << bad;
  }
  EXPECT_FALSE(UsageExpression::compile(std::string(1000, '(')).ok());
  EXPECT_FALSE(UsageExpression::compile(std::string(1000, '-') + "1").ok());
  EXPECT_FALSE(UsageExpression::compile(std::string(5000, ' ')).ok());
}

TEST(UsageExpressionTest, ChainsAreBoundedToo) {
  const auto chain = [](std::string text, std::string_view link, int times) {
    for (int i = 0; i < times; ++i) text += link;
    return text;
  };
  EXPECT_EQ(value_of(chain("1", "+1", UsageExpression::kMaxHeight - 1)),
            std::to_string(UsageExpression::kMaxHeight) + "i");
  EXPECT_THAT(value_of(chain("1", "+1", UsageExpression::kMaxHeight)), HasSubstr("too many operations"));
  EXPECT_THAT(value_of(chain("true", "||true", UsageExpression::kMaxHeight)),
              HasSubstr("too many operations"));
  EXPECT_THAT(value_of(chain("usage", ".a", UsageExpression::kMaxHeight)), HasSubstr("too many fields"));
}

struct Edits final : ResponseEdits {
  std::string metadata;
  void set_header(std::string_view, std::string_view) override {}
  void set_metadata(std::string_view ns, std::string_view name, double value) override {
    metadata = std::string(ns) + "/" + std::string(name) + "=" + std::to_string(static_cast<int64_t>(value));
  }
};

std::string reported(std::string_view parameters, uint64_t prompt_tokens,
                     ResponseEvent::Kind kind = ResponseEvent::Kind::kEnd) {
  const ResponseHook* hook = nullptr;
  const auto plugin = make_as("request-attribute-reporter", hook, parameters);
  if (hook == nullptr) return "not made";
  Edits edits;
  ResponseEvent event;
  event.kind = kind;
  event.has_usage = true;
  event.prompt_tokens = prompt_tokens;
  hook->on_response(event, edits);
  return edits.metadata;
}

TEST(RequestAttributeReporterTest, ReportsANumberAtTheEnd) {
  constexpr std::string_view kPlain = "attributes: [{key: {name: n}, expression: usage.prompt_tokens}]";
  EXPECT_EQ(reported(kPlain, 10), "envoy.lb/n=10");
  EXPECT_EQ(reported(kPlain, 0), "");
  EXPECT_EQ(reported(kPlain, 10, ResponseEvent::Kind::kHead), "");
  EXPECT_EQ(reported("attributes: [{key: {namespace: a.b, name: n}, expression: \"2.9\"}]", 1), "a.b/n=2");
  EXPECT_EQ(reported("attributes: [{key: {name: n}, expression: \"-1\"}]", 1), "");
  EXPECT_EQ(reported("attributes: [{key: {name: n}, expression: \"'x'\"}]", 1), "");
  EXPECT_EQ(reported("attributes: [{key: {name: n}, expression: usage.none}]", 1), "");
}

TEST(RequestAttributeReporterTest, OnlyWhereTheConditionIsTrue) {
  const auto with = [](std::string_view condition) {
    return reported(
        "attributes: [{key: {name: n}, expression: \"7\", condition: \"" + std::string(condition) + "\"}]",
        3);
  };
  EXPECT_EQ(with("usage.prompt_tokens > 2"), "envoy.lb/n=7");
  EXPECT_EQ(with("usage.prompt_tokens > 3"), "");
  EXPECT_EQ(with("1"), "");
}

TEST(RequestAttributeReporterTest, RefusesBadParameters) {
  const auto error = [](std::string_view parameters) {
    const auto made = make_plugin("request-attribute-reporter", parameters);
    return made.ok() ? std::string("made") : made.error().message;
  };
  EXPECT_THAT(error(""), HasSubstr("attributes must contain exactly one entry"));
  EXPECT_THAT(error("attributes: [{expression: \"1\"}]"), HasSubstr("attributeKey.name cannot be empty"));
  EXPECT_THAT(error("attributes: [{key: {name: n}}]"), HasSubstr("attributes[0].expression cannot be empty"));
  EXPECT_THAT(error("attributes: [{key: {name: n}, expression: \"1 +\"}]"), HasSubstr("failed to compile"));
}

}  // namespace
}  // namespace penstock::scheduling
