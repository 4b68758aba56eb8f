#include "protocol/anthropic_parser.h"

#include <gtest/gtest.h>

#include "protocol/testing.h"

namespace penstock::protocol {
namespace {

using std::literals::operator""s;

struct Anthropic : testing::Test {
  AnthropicParser parser;
  TestParse parse(std::string_view body, std::string_view path = "/v1/messages") {
    return TestParse(parser, path, body);
  }
  // The estimate's bytes without the padding.
  std::string text(std::string_view body) {
    auto parsed = parse(body);
    if (!parsed.ok()) return "error: " + parsed.error();
    std::string bytes = parsed.bytes();
    while (bytes.ends_with('\0')) bytes.pop_back();
    return bytes;
  }
};

TEST_F(Anthropic, ReadsAMessagesRequest) {
  auto parsed = parse(
      R"({"model":"tiny","messages":[{"role":"user","content":"hello"}],"max_tokens":6,"stream":true,"cache_salt":"s"})");
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_EQ(parsed->api, ApiKind::kMessages);
  EXPECT_EQ(parsed->model, "tiny");
  EXPECT_EQ(parsed->max_output_tokens, 6);
  EXPECT_TRUE(parsed->streaming);
  EXPECT_EQ(parsed->cache_salt, "s");
  EXPECT_EQ(parsed.bytes(), "userhello\0\0\0"s);
  EXPECT_EQ(
      parsed.rewritten("B"),
      R"({"model":"B","messages":[{"role":"user","content":"hello"}],"max_tokens":6,"stream":true,"cache_salt":"s"})");
}

TEST_F(Anthropic, AcceptsATrailingSlash) {
  EXPECT_TRUE(parse(R"({"messages":[{"role":"user"}]})", "/v1/messages/").ok());
  EXPECT_EQ(parse("{}", "/v1/foomessages").error(), "unsupported API endpoint: /v1/foomessages");
}

TEST_F(Anthropic, RefusesWhatTheReferenceRefuses) {
  EXPECT_TRUE(parse("x").error().starts_with("error unmarshaling request body: "));
  EXPECT_TRUE(parse(R"({"messages":[1]})").error().starts_with("error parsing messages request: "));
  EXPECT_TRUE(parse(R"({"messages":"a"})").error().starts_with("error parsing messages request: "));
  EXPECT_TRUE(
      parse(R"({"messages":[{}],"system":5})").error().starts_with("error parsing messages request: "));
  EXPECT_TRUE(
      parse(R"({"messages":[{}],"tools":{}})").error().starts_with("error parsing messages request: "));
  const std::string none = "invalid messages request: must have at least one message";
  EXPECT_EQ(parse(R"({})").error(), none);
  EXPECT_EQ(parse(R"({"messages":[]})").error(), none);
  EXPECT_EQ(parse(R"({"messages":null})").error(), none);
}

TEST_F(Anthropic, EstimatesToolsThenSystemThenMessages) {
  EXPECT_EQ(text(R"({"messages":[{"role":"u","content":"x"}],"system":"SYS","tools":[{"name":"f"}]})"),
            R"([{"name":"f"}]SYSux)");
  EXPECT_EQ(
      text(
          R"({"system":[{"type":"text","text":"x-anthropic-billing-header: 17"},{"type":"text","text":"keep"}],)"
          R"("messages":[{"role":"u","content":"x-anthropic-billing-header stays here"}]})"),
      "keepux-anthropic-billing-header stays here");
}

TEST_F(Anthropic, EstimatesEveryKindOfBlock) {
  EXPECT_EQ(
      text(
          R"({"messages":[{"role":"a","content":[{"type":"thinking","thinking":"hm"},)"
          R"({"type":"tool_use","id":"t1","name":"f","input":{"b":1,"a":[2]}},{"type":"text","text":"."}]}]})"),
      R"(ahmt1f{"b":1,"a":[2]}.)");
  EXPECT_EQ(
      text(
          R"({"messages":[{"role":"u","content":[{"type":"tool_result","tool_use_id":"t1","content":)"
          R"([{"type":"text","text":"one"},{"type":"text","text":"two"}]},{"content":"three","type":"tool_result"}]}]})"),
      "uone\ntwothree");
  EXPECT_EQ(
      text(R"({"messages":[{"role":"u","content":[{"type":"text","content":"ignored","text":"kept"}]}]})"),
      "ukept");
  EXPECT_EQ(text(R"({"messages":[{"role":"u","content":[{"type":"document","x":1}]}]})"),
            R"(u{"type":"document","x":1})");
}

TEST_F(Anthropic, ImagesAreFeatures) {
  auto parsed = parse(
      R"({"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://x/a.png"}},)"
      R"({"type":"tool_result","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},{"type":"text","text":"t"}]}]}]})");
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  const auto features = parsed->prompts[0].features;
  ASSERT_EQ(features.size(), 2U);
  EXPECT_EQ(features[0].hash, "e0f71bc2f2b7f620");
  EXPECT_EQ(features[0].offset_tokens, 1U);
  EXPECT_EQ(features[1].offset_tokens, 1U + 225 + 1);
}

TEST_F(Anthropic, CountTokensTakesAnyBytes) {
  for (const std::string_view body : {"", "not json", "{}"}) {
    auto parsed = parse(body, "/v1/messages/count_tokens");
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(parsed->api, ApiKind::kCountTokens);
    EXPECT_TRUE(parsed->skip_response);
    EXPECT_EQ(parsed->model, "");
  }
  auto parsed = parse(R"({"model":"m","messages":[]})", "/v1/messages/count_tokens");
  EXPECT_EQ(parsed->model, "m");
  EXPECT_TRUE(parsed->rewritable);
  EXPECT_FALSE(parse("x", "/v1/messages/count_tokens")->rewritable);
}

}  // namespace
}  // namespace penstock::protocol
