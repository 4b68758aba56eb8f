#include "scheduling/producers/mm_embeddings_cache_producer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::HasSubstr;

struct MmCache : testing::Test {
  TestPool pool{2};
  const DataProducer* producer = nullptr;
  std::unique_ptr<Plugin> plugin = make_as("mm-embeddings-cache-producer", producer, "", &pool.slots);
  std::vector<MultiModalFeature> features;
  TokenizedPrompt prompt;

  std::span<const MultiModalMatch> ask(std::vector<std::string_view> hashes) {
    features.clear();
    for (const std::string_view hash : hashes) features.push_back({"image", hash, 0, 1});
    prompt.features = features;
    pool.request.prompts = {&prompt, 1};
    pool.restart();
    EXPECT_TRUE(producer->produce(*pool.context).ok());
    return pool.attributes->column<MultiModalMatch>(pool.slots.slot(data_keys::kMultiModalMatch));
  }
  void serve(std::vector<Candidate> targets) {
    ProfileResult primary{"default", targets, targets, {}, nullptr};
    const ProfileResult* const profiles[] = {&primary};
    EXPECT_TRUE(
        dynamic_cast<const PreRequest&>(*plugin).pre_request(*pool.context, {profiles, &primary, 0}).ok());
  }
};

TEST_F(MmCache, CountsDistinctItemsThatWereServed) {
  auto column = ask({"h1", "h2", "h1", ""});
  EXPECT_EQ(column[0].request_items, 2U);
  EXPECT_EQ(column[0].matched_items, 0U);
  ask({"h1"});
  serve({0});
  column = ask({"h1", "h2"});
  EXPECT_EQ(column[0].matched_items, 1U);
  EXPECT_EQ(column[1].matched_items, 0U);
}

TEST_F(MmCache, EveryPrimaryTargetHoldsTheItems) {
  ask({"h1"});
  serve({0, 1});
  const auto column = ask({"h1"});
  EXPECT_EQ(column[1].matched_items, 1U);
  EXPECT_THAT(*plugin->dump_state(),
              HasSubstr(R"("pods":[{"pod":"ns/e0","items":1},{"pod":"ns/e1","items":1}])"));
}

TEST_F(MmCache, APromptWithoutMediaHasNoData) {
  EXPECT_TRUE(ask({}).empty());
  EXPECT_TRUE(ask({""}).empty());
}

TEST_F(MmCache, AnEndpointThatLeavesIsForgotten) {
  ask({"h1"});
  serve({0});
  dynamic_cast<const EndpointObserver&>(*plugin).endpoint_removed(pool.endpoint(0));
  EXPECT_EQ(ask({"h1"})[0].matched_items, 0U);
}

TEST(EncoderCacheTableTest, ForgetsTheLeastRecentItemBeyondItsCapacity) {
  EXPECT_EQ(MmEmbeddingsCacheProducer::capacity({4096}), 2048U);
  EXPECT_EQ(MmEmbeddingsCacheProducer::capacity({1}), 1U);
  EXPECT_EQ(MmEmbeddingsCacheProducer::capacity({3}), 1U);
  EXPECT_EQ(MmEmbeddingsCacheProducer::capacity({-1}), 2048U);
  EncoderCacheTable table(2);
  Endpoint endpoint;
  for (const uint64_t item : {1U, 2U, 1U, 3U}) table.add(endpoint, item);
  EXPECT_TRUE(table.holds(0, 1));
  EXPECT_FALSE(table.holds(0, 2));
  EXPECT_TRUE(table.holds(0, 3));
}

}  // namespace
}  // namespace penstock::scheduling
