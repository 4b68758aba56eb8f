#include "gateway/framing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "gateway/identity.h"

namespace penstock::gateway {
namespace {

class FramingTest : public ::testing::Test {
 protected:
  std::vector<std::string> out(const std::vector<io::HeaderField>& in, std::string_view authority = {}) {
    io::RequestHead head;
    head.authority = authority;
    head.fields = io::HeaderFields(in);
    std::vector<io::HeaderField> fields;
    request_fields(head, rules, scratch, fields);
    std::vector<std::string> lines;
    for (const io::HeaderField& field : fields) {
      lines.push_back(std::string(field.name) + ": " + std::string(field.value));
    }
    return lines;
  }
  FramingTest() {
    rules.request_id = "id";
    rules.peer_ip = "10.0.0.9";
    rules.scheme = "http";
    rules.host = "engine:1";
  }
  RequestRules rules;
  std::string scratch;
};

TEST_F(FramingTest, EndToEndFieldsPassAndHopByHopOnesAndThoseNamedInConnectionDoNot) {
  rules.drop_credentials = false;
  EXPECT_EQ(
      out({{"host", "public.example"},
           {"connection", "x-foo, keep-alive"},
           {"x-foo", "1"},
           {"proxy-authorization", "secret"},
           {"authorization", "Bearer k"},
           {"traceparent", "00-a-b-01"},
           {"cookie", "a=1"},
           {"cookie", "b=2"},
           {"content-length", "5"},
           {"transfer-encoding", "chunked"},
           {"expect", "100-continue"},
           {"te", "trailers"}},
          "public.example"),
      (std::vector<std::string>{"host: engine:1", "authorization: Bearer k", "traceparent: 00-a-b-01",
                                "cookie: a=1", "cookie: b=2", "x-request-id: id", "x-forwarded-for: 10.0.0.9",
                                "x-forwarded-proto: http", "x-forwarded-host: public.example"}));
}

// HTTP/2 clients name it in :authority, without a "host".
TEST_F(FramingTest, TheHostThatTheClientAskedForIsHandedOnHoweverItNamedIt) {
  EXPECT_THAT(out({{"x-forwarded-host", "forged.example"}}, "public.example:8443"),
              ::testing::AllOf(::testing::Contains("x-forwarded-host: public.example:8443"),
                               ::testing::Not(::testing::Contains("x-forwarded-host: forged.example"))));
}

TEST_F(FramingTest, ControlAndSteeringFieldsOfTheClientNeverReachAnEngine) {
  for (const char* name :
       {"x-llm-d-inference-objective", "x-gateway-inference-fairness-id", "x-llm-d-model-name-rewrite",
        "x-slo-ttft-ms", "x-gateway-destination-endpoint", "x-gateway-destination-endpoint-subset",
        "x-prefiller-host-port", "x-encoder-hosts-ports", "x-data-parallel-host-port",
        "x-kv-cache-source-host-port", "x-gateway-model-name", "x-llm-d-request-dropped-reason"}) {
    for (const std::string& line : out({{name, "evil:1"}})) {
      EXPECT_EQ(line.find("evil"), std::string::npos) << line;
    }
  }
}

TEST_F(FramingTest, TheClientsKeysStayHereAndOursGoOut) {
  for (const std::string& line :
       out({{"authorization", "Bearer client"}, {"x-api-key", "client"}, {"api-key", "client"}})) {
    EXPECT_EQ(line.find("client"), std::string::npos) << line;
  }
  rules.authorization = "Bearer engine";
  const auto lines = out({{"authorization", "Bearer client"}});
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "authorization: Bearer engine"), 1);
}

TEST_F(FramingTest, WithoutAKeyOfOursNoEmptyOneIsSent) {
  for (const std::string& line : out({})) EXPECT_FALSE(line.starts_with("authorization"));
}

TEST_F(FramingTest, ThePeerIsAppendedToTheForwardedList) {
  const auto lines = out({{"x-forwarded-for", "1.2.3.4"}, {"x-forwarded-proto", "https"}});
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "x-forwarded-for: 1.2.3.4, 10.0.0.9"), 1);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "x-forwarded-proto: http"), 1);
}

TEST_F(FramingTest, SeveralForwardedListsBecomeOneInOrder) {
  EXPECT_THAT(out({{"x-forwarded-for", "1.1.1.1"}, {"x-forwarded-for", "2.2.2.2"}}),
              testing::Contains("x-forwarded-for: 1.1.1.1, 2.2.2.2, 10.0.0.9"));
}

TEST_F(FramingTest, EveryConnectionFieldNamesFieldsThatStayHere) {
  EXPECT_THAT(out({{"connection", "close"}, {"connection", "x-hop"}, {"x-hop", "1"}}),
              testing::Not(testing::Contains("x-hop: 1")));
}

TEST_F(FramingTest, AnswersKeepTheirFieldsAndRetryAfter) {
  const std::vector<io::HeaderField> in{{"retry-after", "2"},        {"set-cookie", "a"},
                                        {"set-cookie", "b"},         {"content-length", "3"},
                                        {"connection", "close"},     {"x-request-id", "engine's"},
                                        {"content-encoding", "gzip"}};
  io::ResponseHead head;
  head.status = 429;
  head.fields = io::HeaderFields(in);
  std::vector<io::HeaderField> fields;
  response_fields(head, {"id", "e:1", false}, fields);
  std::string text;
  for (const auto& field : fields) text += std::string(field.name) + "=" + std::string(field.value) + ";";
  EXPECT_EQ(text,
            "retry-after=2;set-cookie=a;set-cookie=b;content-encoding=gzip;x-request-id=id;"
            "x-penstock-endpoint=e:1;");
}

TEST_F(FramingTest, TheLengthIsOursWheneverBytesChange) {
  using Kind = io::BodyFraming::Kind;
  EXPECT_EQ(response_framing("POST", 200, 5, false).length, 5U);
  EXPECT_EQ(response_framing("POST", 200, 5, true).kind, Kind::kChunked);
  EXPECT_EQ(response_framing("POST", 200, std::nullopt, false).kind, Kind::kChunked);
  EXPECT_EQ(response_framing("POST", 204, std::nullopt, false).kind, Kind::kNone);
  EXPECT_EQ(response_framing("HEAD", 200, 5, false).length, 5U);
}

TEST(Identity, TheKeyMayComeAsBearerOrAsApiKeyAndIsNamedInNoError) {
  // "secret"
  const auto keys = config::ApiKeys::decode(
      "keys:\n  - name: team-a\n    sha256: "
      "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n",
      "keys.yaml");
  ASSERT_TRUE(keys.ok());
  const auto who = [&](std::vector<io::HeaderField> fields) {
    auto result = identify(**keys, io::HeaderFields(fields));
    return result.ok() ? std::string(*result) : "401 " + result.error().message;
  };
  EXPECT_EQ(who({{"authorization", "Bearer secret"}}), "team-a");
  EXPECT_EQ(who({{"authorization", "bearer secret"}}), "team-a");
  EXPECT_EQ(who({{"x-api-key", "secret"}}), "team-a");
  EXPECT_EQ(who({{"authorization", "Basic secret"}}).substr(0, 3), "401");
  EXPECT_EQ(who({{"authorization", "Basic dTpw"}, {"x-api-key", "secret"}}), "team-a");
  EXPECT_EQ(who({{"authorization", "Bearer wrong"}, {"x-api-key", "secret"}}).substr(0, 3), "401");
  EXPECT_EQ(who({{"x-api-key", "hunter2"}}).find("hunter2"), std::string::npos);
  EXPECT_EQ(who({}).substr(0, 3), "401");
}

}  // namespace
}  // namespace penstock::gateway
