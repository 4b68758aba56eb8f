#include "extproc/pool_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::extproc {
namespace {

using ::testing::HasSubstr;

ServiceName service(std::string name, std::string ns, std::optional<uint16_t> port, bool certain) {
  ServiceName out;
  out.name = std::move(name);
  out.ns = std::move(ns);
  out.port = port;
  out.certain = certain;
  return out;
}

TEST(PoolChoiceTest, AnAuthorityIsReadAsTheServiceThatGatewaysName) {
  EXPECT_EQ(service_of("llama-epp.inference.svc.cluster.local:9002"),
            service("llama-epp", "inference", 9002, true));
  EXPECT_EQ(service_of("Llama-EPP.inference.svc:9002"), service("llama-epp", "inference", 9002, true));
  EXPECT_EQ(service_of("llama-epp.inference.svc"), service("llama-epp", "inference", std::nullopt, true));
  EXPECT_EQ(service_of("llama-epp.inference"), service("llama-epp", "inference", std::nullopt, false));
  EXPECT_EQ(service_of("outbound|9002||llama-epp.inference.svc.cluster.local"),
            service("llama-epp", "inference", 9002, true));
  EXPECT_EQ(service_of("outbound_.9002_._.llama-epp.inference.svc.cluster.local"),
            service("llama-epp", "inference", 9002, true));
  for (const char* other : {"", "epp", "epp:9002", "10.0.0.7:9002", "[fd00::1]:9002", "gateway.example.com",
                            "a.b:x", "a.b:70000", ".b.svc", "outbound|x||a.b.svc", "outbound|9002|a.b.svc"}) {
    EXPECT_EQ(service_of(other), std::nullopt) << other;
  }
}

class Choice : public ::testing::Test {
 protected:
  // "ns/name" of the pool, or the name of the failure.
  std::string choose(std::vector<std::string_view> fields, std::string_view authority, uint16_t port = 0) {
    StreamNames stream;
    stream.fields = fields;
    stream.authority = authority;
    stream.port = port;
    const PoolChoice::Answer answer = choice.choose(stream);
    message = answer.message;
    if (!answer.pool) return std::string(failure_name(answer.failure));
    return pools[*answer.pool].ns + "/" + pools[*answer.pool].name;
  }

  const std::vector<PoolNames> pools{
      {"a", "llama", "llama-epp", 9002}, {"a", "qwen", "qwen-epp", 9102}, {"b", "llama", "llama-epp", 9002},
      {"b", "one", "shared", 9302},      {"b", "two", "shared", 9402},    {"b", "three", "shared", 9402},
      {"b", "none", "", std::nullopt},
  };
  const PoolChoice choice{pools};
  std::string message;
};

TEST_F(Choice, TheFieldDecidesWhateverElseIsSaid) {
  EXPECT_EQ(choose({"a/qwen"}, "llama-epp.a.svc:9002", 9302), "a/qwen");
  EXPECT_EQ(choose({"qwen"}, ""), "a/qwen");
  EXPECT_EQ(choose({"qwen", "qwen"}, ""), "a/qwen");
  EXPECT_EQ(choose({"b/none"}, ""), "b/none");
  EXPECT_EQ(choose({"llama"}, "llama-epp.a.svc:9002"), "ambiguous");
  EXPECT_THAT(message, HasSubstr("a/llama, b/llama"));
  EXPECT_EQ(choose({"a/qwen", "a/llama"}, ""), "ambiguous");
  EXPECT_EQ(choose({"a/gone"}, "llama-epp.a.svc:9002", 9102), "unknown");
  EXPECT_EQ(choose({""}, "llama-epp.a.svc:9002"), "unknown");
}

TEST_F(Choice, TheServiceOfAnEndpointPickerRefDecidesNext) {
  EXPECT_EQ(choose({}, "llama-epp.b.svc.cluster.local:9002"), "b/llama");
  EXPECT_EQ(choose({}, "llama-epp.a.svc"), "a/llama");
  EXPECT_EQ(choose({}, "outbound|9302||shared.b.svc.cluster.local"), "b/one");
  EXPECT_EQ(choose({}, "qwen-epp.a"), "a/qwen");
  EXPECT_EQ(choose({}, "shared.b.svc:9402"), "ambiguous");
  EXPECT_THAT(message, HasSubstr("b/two, b/three"));
  EXPECT_EQ(choose({}, "shared.b.svc"), "ambiguous");
  EXPECT_EQ(choose({}, "shared.b.svc", 9302), "b/one");
  EXPECT_EQ(choose({}, "shared.b.svc:9302", 9402), "b/one") << "what is said goes first";
  EXPECT_EQ(choose({}, "shared.b.svc", 9402), "ambiguous");
  EXPECT_EQ(choose({}, "shared.b.svc", 9102), "ambiguous") << "none of its pools has that port";
  EXPECT_EQ(choose({}, "qwen-epp.a.svc:9002"), "unknown");
  EXPECT_EQ(choose({}, "gone.a.svc.cluster.local:9002", 9102), "unknown");
}

TEST_F(Choice, APortOfItsOwnDecidesWhereNothingIsNamed) {
  EXPECT_EQ(choose({}, "10.0.0.7:9102", 9102), "a/qwen");
  EXPECT_EQ(choose({}, "epp", 9302), "b/one");
  EXPECT_EQ(choose({}, "epp", 9002), "ambiguous");
  EXPECT_EQ(choose({}, "epp", 9999), "unknown");
}

TEST_F(Choice, NothingIsGuessed) {
  EXPECT_EQ(choose({}, "epp"), "unnamed");
  EXPECT_EQ(choose({}, "picker.example.com"), "unnamed");
  EXPECT_THAT(message, HasSubstr("x-penstock-pool"));
  // Not even where there is one pool only: with a second one its streams would go astray.
  const PoolChoice alone{{pools[0]}};
  EXPECT_EQ(alone.choose({{}, "epp", 0}).failure, PoolChoice::Failure::kUnnamed);
  EXPECT_EQ(PoolChoice(std::vector<PoolNames>()).choose({{}, "a.b.svc", 0}).failure,
            PoolChoice::Failure::kUnknown);
}

TEST_F(Choice, OfOnePoolEveryStreamIsIts) {
  EXPECT_EQ(PoolChoice().choose({{}, "whatever", 0}).pool, 0U);
}

TEST_F(Choice, WhatAStreamSaysIsCutInErrors) {
  const std::string longer(100'000, 'x');
  EXPECT_EQ(choose({longer}, ""), "unknown");
  EXPECT_LT(message.size(), 400U);
  EXPECT_EQ(choose({}, longer), "unnamed");
  EXPECT_LT(message.size(), 600U);
}

}  // namespace
}  // namespace penstock::extproc
