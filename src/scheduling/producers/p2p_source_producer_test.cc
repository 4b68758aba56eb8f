#include "scheduling/producers/p2p_source_producer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

TEST(P2pSourceProducerTest, HashesRequestIdsWithFnv1a) {
  EXPECT_EQ(P2pSourceProducer::fnv1a("req-1"), 0xdb160f11U);
  EXPECT_EQ(P2pSourceProducer::fnv1a("req-2"), 0xd8160a58U);
  EXPECT_EQ(P2pSourceProducer::fnv1a("r0"), 0x0d53ff3fU);
  EXPECT_EQ(P2pSourceProducer::fnv1a(""), 0x811c9dc5U);
  EXPECT_EQ(P2pSourceProducer::fnv1a("a"), 0xe40c292cU);
}

struct P2p : testing::Test {
  TestPool pool{3};
  const DataProducer* producer = nullptr;
  std::unique_ptr<Plugin> plugin;
  std::span<PrefixMatch> matches;

  void make(std::string_view parameters = "") {
    plugin = make_as("p2p-source-producer", producer, parameters, &pool.slots);
    ASSERT_NE(producer, nullptr);
    matches = pool.attributes->create<PrefixMatch>(pool.slots.slot(data_keys::kPrefixMatch));
  }
  void cached(size_t i, uint32_t blocks) { matches[i] = {blocks, 20, 64, blocks, -1}; }
  std::optional<Candidate> source() {
    EXPECT_TRUE(producer->produce(*pool.context).ok());
    const auto* found = pool.attributes->value<CacheSource>(pool.slots.slot(data_keys::kCacheSource));
    return found == nullptr ? std::nullopt : std::optional(found->endpoint);
  }
  // The header after `computing` was picked; "" when it is removed.
  std::string header(Candidate computing) {
    HeaderEdits edits(pool.arena);
    pool.context->edits = &edits;
    const std::array<Candidate, 1> targets{computing};
    ProfileResult primary{"default", targets, targets, {}, nullptr};
    const ProfileResult* const profiles[] = {&primary};
    EXPECT_TRUE(
        dynamic_cast<const PreRequest&>(*plugin).pre_request(*pool.context, {profiles, &primary, 0}).ok());
    EXPECT_EQ(edits.request().size(), 1U);
    EXPECT_EQ(edits.request()[0].name, "x-kv-cache-source-host-port");
    return std::string(edits.request()[0].value);
  }
};

TEST_F(P2p, EqualSourcesAreDrawnByTheRequestIdAndTheirQueues) {
  make();
  cached(0, 10);
  cached(1, 10);
  pool.set_all(Signal::kWaitingRequests, {0, 1, 0});
  pool.request.request_id = "req-1";
  EXPECT_EQ(source(), 1U);
  pool.request.request_id = "r0";
  EXPECT_EQ(source(), 0U);
}

TEST_F(P2p, AnUnknownQueueIsAsLongAsTheLongestKnownOne) {
  make();
  cached(0, 10);
  cached(1, 10);
  pool.set_all(Signal::kWaitingRequests, {0, 0, 9});
  pool.set(Signal::kWaitingRequests, 1, 0, SignalState::kNeverSeen);
  // Weights 1 and 0.1: its share begins at 0.909.
  for (const std::string_view id : {"req-1", "req-2", "r0"}) {
    pool.request.request_id = id;
    EXPECT_EQ(source(), 0U) << id;
  }
}

TEST_F(P2p, OnlyTheLargestWithinOneBlockTakePart) {
  make();
  cached(0, 8);
  cached(1, 10);
  cached(2, 9);
  for (const std::string_view id : {"req-1", "req-2", "r0"}) {
    pool.request.request_id = id;
    EXPECT_NE(source(), 0U);
  }
}

TEST_F(P2p, TheHeaderIsSetWhenPullingSavesEnough) {
  make("minCachedTokenDelta: 64");
  cached(0, 10);
  cached(1, 9);
  pool.request.request_id = "r0";
  ASSERT_TRUE(source().has_value());
  EXPECT_EQ(header(1), "10.0.0.0:8000");
  EXPECT_EQ(header(0), "");
  make("minCachedTokenDelta: 65");
  cached(0, 10);
  cached(1, 9);
  source();
  EXPECT_EQ(header(1), "");
}

TEST_F(P2p, WithTiersOnlyTheCpuTierCanBePulledFrom) {
  make();
  matches[0] = {10, 20, 64, 10, 0};
  matches[1] = {2, 20, 64, 2, 2};
  EXPECT_EQ(source(), 1U);
}

TEST_F(P2p, WithoutACachedPrefixTheHeaderIsRemoved) {
  make();
  EXPECT_FALSE(source().has_value());
  EXPECT_EQ(header(0), "");
  EXPECT_FALSE(make_plugin("p2p-source-producer", "minCachedTokenDelta: 0").ok());
}

}  // namespace
}  // namespace penstock::scheduling
