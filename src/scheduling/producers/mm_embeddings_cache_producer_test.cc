#include "scheduling/producers/mm_embeddings_cache_producer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <climits>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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

TEST_F(MmCache, AnEndpointThatLeavesTakesItsSeriesAlong) {
  telemetry::MetricRegistry metrics;
  auto made =
      std::make_unique<MmEmbeddingsCacheProducer>(std::make_shared<EncoderCacheTable>(8), "mm", metrics);
  made->bind_slots(pool.slots);
  producer = made.get();
  const MmEmbeddingsCacheProducer& mm = *made;
  plugin = std::move(made);
  ask({"h1", "h2"});
  serve({0, 1});
  ask({"h1", "h2"});
  EXPECT_THAT(metrics.render(), HasSubstr("pod=\"ns/e0\",modality=\"image\"} 2\n"));
  mm.endpoint_removed(pool.endpoint(0));
  const std::string after = metrics.render();
  EXPECT_THAT(after, Not(HasSubstr("pod=\"ns/e0\"")));
  EXPECT_THAT(after, HasSubstr("pod=\"ns/e1\",modality=\"image\"} 2\n"));
  // Decisions that began before it left.
  serve({0});
  ask({"h1", "h2"});
  EXPECT_THAT(metrics.render(), Not(HasSubstr("pod=\"ns/e0\"")));
  pool.endpoint(0).live = std::make_shared<EndpointLive>();
  serve({0});
  ask({"h1", "h2"});
  EXPECT_THAT(metrics.render(), HasSubstr("pod=\"ns/e0\",modality=\"image\"} 2\n")) << "it came back";
}

TEST_F(MmCache, ManyItemsOfOneRequestAreNotAllLookedAt) {
  std::vector<std::string> names;
  for (size_t i = 0; i < 2 * MmEmbeddingsCacheProducer::kMaxItems; ++i)
    names.push_back("h" + std::to_string(i));
  const auto column = ask({names.begin(), names.end()});
  EXPECT_EQ(column[0].request_items, MmEmbeddingsCacheProducer::kMaxItems);
}

TEST_F(MmCache, ASlotsNextEndpointInheritsNothing) {
  ask({"h1"});
  serve({0});
  pool.endpoint(0).host_port = "10.0.9.9:8000";
  EXPECT_EQ(ask({"h1"})[0].matched_items, 0U);
  ask({"h2"});
  serve({0});
  EXPECT_EQ(ask({"h1", "h2"})[0].matched_items, 1U);
  pool.endpoint(0).id = "ns/other";
  EXPECT_EQ(ask({"h1", "h2"})[0].matched_items, 0U);
}

TEST(EncoderCacheTableTest, ForgetsTheLeastRecentItemBeyondItsCapacity) {
  EXPECT_EQ(MmEmbeddingsCacheProducer::capacity({4096}), 2048U);
  EXPECT_EQ(MmEmbeddingsCacheProducer::capacity({1}), 1U);
  EXPECT_EQ(MmEmbeddingsCacheProducer::capacity({3}), 1U);
  EXPECT_EQ(MmEmbeddingsCacheProducer::capacity({-1}), 2048U);
  EXPECT_EQ(MmEmbeddingsCacheProducer::capacity({INT_MAX}), EncoderCacheTable::kMaxCapacity);
  EncoderCacheTable table(2);
  TestPool pool(1);
  constexpr std::array<uint64_t, 4> kItems{1, 2, 1, 3};
  table.add(pool.endpoint(0), kItems);
  std::vector<uint64_t> held;
  table.match(
      pool.pool, pool.candidates, kItems, [&](size_t, size_t k) { held.push_back(kItems[k]); }, [] {});
  EXPECT_EQ(held, (std::vector<uint64_t>{1, 1, 3}));
}

}  // namespace
}  // namespace penstock::scheduling
