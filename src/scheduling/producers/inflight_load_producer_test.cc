#include "scheduling/producers/inflight_load_producer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::HasSubstr;

int64_t output(int64_t input, std::optional<int64_t> client_max = std::nullopt,
               InflightLoadProducer::Params params = {}) {
  return InflightLoadProducer(params).output_tokens(input, client_max);
}

TEST(InflightLoadProducerTest, OutputIsTheRoundedShareWithinItsCaps) {
  EXPECT_EQ(output(100), 150);
  EXPECT_EQ(output(100, 50), 50);
  EXPECT_EQ(output(100, 0), 0);
  EXPECT_EQ(output(100, -10), 150);
  EXPECT_EQ(output(100, std::nullopt, {.max_output = 40}), 40);
  EXPECT_EQ(output(8, std::nullopt, {.output_ratio = 2}), 16);
  EXPECT_EQ(output(333), 500);
  EXPECT_EQ(output(0), 0);
}

TEST(InflightLoadProducerTest, UncachedIsWhatThePrefixLeaves) {
  const PrefixMatch half{1, 2, 4, 1};
  const PrefixMatch full{2, 2, 4, 2};
  const PrefixMatch no_size{1, 2, 0, 1};
  EXPECT_EQ(InflightLoadProducer::uncached_tokens(8, &half), 4);
  EXPECT_EQ(InflightLoadProducer::uncached_tokens(5, &half), 4);
  EXPECT_EQ(InflightLoadProducer::uncached_tokens(8, &full), 0);
  EXPECT_EQ(InflightLoadProducer::uncached_tokens(11, &full), 3) << "tokens beyond the matched blocks";
  EXPECT_EQ(InflightLoadProducer::uncached_tokens(8, &no_size), 8);
  EXPECT_EQ(InflightLoadProducer::uncached_tokens(8, nullptr), 8);
}

class InflightLoadRequestTest : public ::testing::Test {
 protected:
  InflightLoadRequestTest() {
    tokens.assign(8, 1);
    prompt.token_ids = tokens;
    pool.request.prompts = {&prompt, 1};
  }
  void match(PrefixMatch value) {
    pool.attributes->create<PrefixMatch>(pool.slots.slot(data_keys::kPrefixMatch))[0] = value;
  }

  TestPool pool{2};
  std::vector<uint32_t> tokens;
  TokenizedPrompt prompt;
};

TEST_F(InflightLoadRequestTest, ReservesUncachedTokensAndWithOutputsTheEstimate) {
  InflightLoadProducer plain({});
  plain.set_identity("inflight-load-producer", "inflight-load-producer");
  plain.bind_slots(pool.slots);
  InflightLoadProducer outputs({.add_output = true});
  outputs.set_identity("inflight-load-producer", "inflight-load-producer");
  outputs.bind_slots(pool.slots);
  EXPECT_EQ(plain.reserve_tokens(*pool.context, 0), 8U);
  match({1, 2, 4, 1});
  EXPECT_EQ(plain.reserve_tokens(*pool.context, 0), 4U);
  EXPECT_EQ(outputs.reserve_tokens(*pool.context, 0), 16U);
  EXPECT_TRUE(plain.release_tokens_at_first_byte());
  EXPECT_FALSE(outputs.release_tokens_at_first_byte());
}

TEST_F(InflightLoadRequestTest, ItsStateIsTheLoadOfThoseThatWereSentARequest) {
  InflightLoadProducer plain({});
  EXPECT_EQ(plain.dump_state(),
            R"({"endpoints":[],"totalEndpoints":0,"maxEndpoints":100,"truncated":false})");
  for (const Candidate c : {0U, 1U}) plain.reserve_tokens(*pool.context, c);
  pool.endpoint(1).live->load = EndpointLive::pack(2, 50);
  EXPECT_EQ(plain.dump_state(), R"({"endpoints":[{"endpoint":"ns/e1","requests":2,"tokens":50},)"
                                R"({"endpoint":"ns/e0","requests":0,"tokens":0}],)"
                                R"("totalEndpoints":2,"maxEndpoints":100,"truncated":false})");
  plain.endpoint_removed(*pool.pool.endpoints[1]);
  EXPECT_EQ(plain.dump_state(), R"({"endpoints":[{"endpoint":"ns/e0","requests":0,"tokens":0}],)"
                                R"("totalEndpoints":1,"maxEndpoints":100,"truncated":false})");
}

TEST_F(InflightLoadRequestTest, FillsLoadFromTheLiveCountersAndUncachedTokensFromThePrefix) {
  const DataProducer* producer = nullptr;
  auto plugin = make_as("inflight-load-producer", producer, "", &pool.slots);
  ASSERT_NE(producer, nullptr);
  pool.endpoint(1).live->load.store(EndpointLive::pack(3, 700));
  match({2, 2, 4, 2});
  ASSERT_TRUE(producer->produce(*pool.context).ok());
  const auto load = pool.attributes->column<InFlightLoad>(pool.slots.slot(data_keys::kInFlightLoad));
  const auto uncached =
      pool.attributes->column<UncachedTokens>(pool.slots.slot(data_keys::kUncachedRequestTokens));
  ASSERT_EQ(load.size(), 2U);
  EXPECT_EQ(load[0].requests, 0);
  EXPECT_EQ(load[1].requests, 3);
  EXPECT_EQ(load[1].tokens, 700);
  ASSERT_EQ(uncached.size(), 2U);
  EXPECT_EQ(uncached[0].tokens, 0);
  EXPECT_EQ(uncached[1].tokens, 8);
}

TEST_F(InflightLoadRequestTest, WhatOthersHaveInFlightCountsUnlessItIsSwitchedOff) {
  pool.endpoint(1).live->load.store(EndpointLive::pack(3, 700));
  pool.endpoint(1).live->others.store(EndpointLive::pack(2, 40));
  const auto load_with = [&](std::string_view parameters) {
    const DataProducer* producer = nullptr;
    auto plugin = make_as("inflight-load-producer", producer, parameters, &pool.slots);
    pool.restart();
    EXPECT_TRUE(producer->produce(*pool.context).ok());
    const auto load = pool.attributes->column<InFlightLoad>(pool.slots.slot(data_keys::kInFlightLoad));
    return std::pair(load[1].requests, load[1].tokens);
  };
  EXPECT_EQ(load_with(""), std::pair(int64_t{5}, int64_t{740}));
  EXPECT_EQ(load_with("syncCrossReplicaState: false"), std::pair(int64_t{3}, int64_t{700}));
}

TEST_F(InflightLoadRequestTest, PublishesUnderItsOwnName) {
  const DataProducer* producer = nullptr;
  auto plugin = make_as("inflight-load-producer", producer, "", nullptr, "mine");
  DataDeclaration declaration;
  producer->declare_data(declaration);
  ASSERT_EQ(declaration.produces.size(), 2U);
  EXPECT_EQ(declaration.produces[0].key.text(), "InFlightLoadDataKey/mine");
  EXPECT_EQ(declaration.produces[1].key.text(), "UncachedRequestTokensDataKey/mine");
  ASSERT_EQ(declaration.consumes.size(), 2U);
  EXPECT_TRUE(declaration.consumes[0].required);
  EXPECT_FALSE(declaration.consumes[1].required);
}

TEST(InflightLoadParametersTest, RefusesNegativeRatiosAndBounds) {
  auto plugin = make_plugin("inflight-load-producer", "outputRatio: -1");
  ASSERT_FALSE(plugin.ok());
  EXPECT_THAT(plugin.error().message, HasSubstr("outputRatio must be non-negative, got -1"));
  EXPECT_FALSE(make_plugin("inflight-load-producer", "maxEstimatedOutputTokens: -1").ok());
  EXPECT_TRUE(make_plugin("inflight-load-producer", "{maxEstimatedOutputTokens: 0, outputRatio: 2}").ok());
}

}  // namespace
}  // namespace penstock::scheduling
