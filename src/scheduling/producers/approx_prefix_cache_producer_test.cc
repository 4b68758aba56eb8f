#include "scheduling/producers/approx_prefix_cache_producer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "kvindex/block_hash.h"
#include "scheduling/allocation_count.h"
#include "scheduling/factory.h"
#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Tokens = std::vector<uint32_t>;

Tokens tokens(size_t count, uint32_t from = 0) {
  Tokens out(count);
  std::iota(out.begin(), out.end(), from);
  return out;
}
Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class ApproxPrefixCacheProducerTest : public ::testing::Test {
 protected:
  void make(size_t endpoints, const std::string& parameters = "", std::string_view name = "approx") {
    pool.emplace(endpoints);
    config::Node node;
    if (!parameters.empty()) node = std::move(config::parse_document(parameters, "test")).value();
    auto made = create_plugin<ApproxPrefixCacheProducer>(
        {name, parameters.empty() ? nullptr : &node, "parameters", metrics, clock, 2});
    ASSERT_TRUE(made.ok()) << made.error().message;
    plugin.reset(dynamic_cast<ApproxPrefixCacheProducer*>(std::move(made).value().release()));
    plugin->set_identity(std::string(name), std::string(ApproxPrefixCacheProducer::kType));
    plugin->bind_slots(pool->slots);
  }
  void ask(std::vector<Tokens> asked) {
    pool->restart();
    texts = std::move(asked);
    prompts.clear();
    for (const Tokens& text : texts) prompts.push_back({text, {}});
    pool->request.prompts = prompts;
    ASSERT_TRUE(plugin->produce(*pool->context).ok());
  }
  std::span<const PrefixMatch> matches() {
    return pool->attributes->column<PrefixMatch>(
        pool->slots.slot(data_keys::kPrefixMatch.with_producer(plugin->name())));
  }
  // "match/total" of each endpoint.
  std::vector<std::string> look_up(const std::vector<Tokens>& texts) {
    ask(texts);
    std::vector<std::string> out;
    for (const PrefixMatch& m : matches())
      out.push_back(std::to_string(m.match_blocks) + "/" + std::to_string(m.total_blocks));
    return out;
  }
  void send(Candidate target, std::optional<Candidate> prefill = std::nullopt) {
    const Candidate targets[] = {target};
    const Candidate prefills[] = {prefill.value_or(0)};
    const ProfileResult primary{"decode", targets, {}, {}, nullptr};
    const ProfileResult second{"prefill", prefills, {}, {}, nullptr};
    std::vector<const ProfileResult*> ran{&primary};
    if (prefill.has_value()) ran.push_back(&second);
    ASSERT_TRUE(plugin->pre_request(*pool->context, {ran, &primary}).ok());
  }
  void serve(Candidate target, const std::vector<Tokens>& texts) {
    ask(texts);
    send(target);
  }
  void report(size_t endpoint, double block_size, double blocks, SignalState state = SignalState::kFresh) {
    pool->set(Signal::kCacheBlockSize, endpoint, block_size, state);
    pool->set(Signal::kCacheNumBlocks, endpoint, blocks, state);
    ++pool->signals.epoch;
  }

  telemetry::MetricRegistry metrics;
  ManualClock clock;
  std::optional<TestPool> pool;
  std::unique_ptr<ApproxPrefixCacheProducer> plugin;
  std::vector<Tokens> texts;
  std::vector<TokenizedPrompt> prompts;
};

using Rows = std::vector<std::string>;

TEST_F(ApproxPrefixCacheProducerTest, APromptOf200TokensHasFourBlocksOfWhichThreeCanBeHeld) {
  make(2);
  EXPECT_EQ(look_up({tokens(200)}), (Rows{"0/4", "0/4"}));
  EXPECT_EQ(matches()[0].block_size_tokens, 64U);
  send(0);
  EXPECT_EQ(look_up({tokens(200)}), (Rows{"3/4", "0/4"}));
  EXPECT_EQ(matches()[0].cached_blocks, 3U);
}

TEST_F(ApproxPrefixCacheProducerTest, APromptThatShares130TokensMatchesTwoBlocks) {
  make(2);
  serve(0, {tokens(200)});
  EXPECT_EQ(look_up({tokens(130) + tokens(70, 5000)}), (Rows{"2/4", "0/4"}));
}

TEST_F(ApproxPrefixCacheProducerTest, PromptsOfOneRequestAreMatchedEachFromItsBeginning) {
  make(2);
  serve(0, {tokens(64)});
  EXPECT_EQ(look_up({tokens(64), tokens(64, 500)}), (Rows{"1/2", "0/2"}));
  EXPECT_EQ(look_up({tokens(64, 500), tokens(64), tokens(64), tokens(128)}), (Rows{"3/5", "0/5"}));
}

TEST_F(ApproxPrefixCacheProducerTest, WithoutTokensThereIsNothingToMatch) {
  make(2);
  EXPECT_EQ(look_up({}), (Rows{"0/0", "0/0"}));
  EXPECT_EQ(look_up({Tokens{}}), (Rows{"0/0", "0/0"}));
  send(0);
  EXPECT_EQ(plugin->index()->entries(), 0U);
}

TEST_F(ApproxPrefixCacheProducerTest, TheOldestPromptIsForgottenWhenTheCapacityIsReached) {
  make(1, "{lruCapacityPerServer: 2}");
  for (uint32_t i = 0; i < 3; ++i) serve(0, {tokens(64, i * 1000)});
  EXPECT_EQ(look_up({tokens(64)}), Rows{"0/1"});
  EXPECT_EQ(look_up({tokens(64, 1000)}), Rows{"1/1"});
  EXPECT_EQ(look_up({tokens(64, 2000)}), Rows{"1/1"});
}

TEST_F(ApproxPrefixCacheProducerTest, TheEnginesCapacityOverridesTheDefault) {
  make(1, "{lruCapacityPerServer: 3}");
  report(0, 64, 2);
  for (uint32_t i = 0; i < 3; ++i) serve(0, {tokens(64, i * 1000)});
  EXPECT_EQ(plugin->index()->blocks(0), 2U);
}

TEST_F(ApproxPrefixCacheProducerTest, CapacityIsCountedInTheEnginesTokens) {
  make(1);
  report(0, 16, 40);  // 640 tokens: 10 blocks of 64
  for (uint32_t i = 0; i < 20; ++i) serve(0, {tokens(64, i * 1000)});
  EXPECT_EQ(plugin->index()->blocks(0), 10U);
  report(0, 16, 20);
  serve(0, {tokens(64)});
  EXPECT_EQ(plugin->index()->blocks(0), 5U) << "a changed cache size is followed";
}

TEST_F(ApproxPrefixCacheProducerTest, HowFarAPromptIsComparedFollowsTheTokensThenTheBlocks) {
  using P = ApproxPrefixCacheProducer;
  EXPECT_EQ(P::max_blocks({}, 64), 2048U);
  EXPECT_EQ(P::max_blocks({.max_tokens = 2}, 1), 2U);
  EXPECT_EQ(P::max_blocks({.max_blocks = 3, .max_tokens = 0}, 64), 3U);
  EXPECT_EQ(P::max_blocks({.max_blocks = 0, .max_tokens = 0}, 64), 0U) << "no limit";
  EXPECT_EQ(P::max_blocks({.max_tokens = 100}, 128), 1U) << "an engine's block larger than the limit";
  make(1, "{maxPrefixTokensToMatch: 128}");
  EXPECT_EQ(look_up({tokens(1000)}), Rows{"0/2"});
  make(1, "{maxPrefixTokensToMatch: 0, maxPrefixBlocksToMatch: 3}");
  EXPECT_EQ(look_up({tokens(1000)}), Rows{"0/3"});
  make(1, "{maxPrefixTokensToMatch: 0, maxPrefixBlocksToMatch: 0}");
  EXPECT_EQ(look_up({tokens(1000)}), Rows{"0/16"});
}

TEST_F(ApproxPrefixCacheProducerTest, BlocksAreAsLargeAsTheEnginesButAtLeast64Tokens) {
  make(1);
  report(0, 16, 1000);
  EXPECT_EQ(look_up({tokens(256)}), Rows{"0/4"});
  make(1);
  report(0, 128, 1000);
  EXPECT_EQ(look_up({tokens(256)}), Rows{"0/2"});
  make(1, "{autoTune: false, blockSizeTokens: 128}");
  report(0, 64, 1000);
  EXPECT_EQ(look_up({tokens(256)}), Rows{"0/2"});
}

TEST_F(ApproxPrefixCacheProducerTest, InAMixedFleetMostEndpointsDecideTheBlockSizeWhateverTheCandidates) {
  make(3);
  report(0, 16, 1000);
  report(1, 128, 1000);
  report(2, 128, 1000);
  look_up({tokens(256)});
  EXPECT_EQ(plugin->block_size(), 128U);
  pool->candidates = {0};
  look_up({tokens(256)});
  EXPECT_EQ(plugin->block_size(), 128U);
}

TEST_F(ApproxPrefixCacheProducerTest, OnATieTheLargerBlockSizeWins) {
  make(2);
  report(0, 256, 1000);
  report(1, 16, 1000);
  look_up({tokens(256)});
  EXPECT_EQ(plugin->block_size(), 256U);
}

TEST_F(ApproxPrefixCacheProducerTest, AMetricThatGoesMissingChangesNothing) {
  make(2);
  report(0, 128, 1000);
  report(1, 128, 1000);
  serve(0, {tokens(256)});
  report(0, 0, 0, SignalState::kNameMissing);
  report(1, 0, 0, SignalState::kEndpointDown);
  EXPECT_EQ(look_up({tokens(256)}), (Rows{"2/2", "0/2"}));
}

TEST_F(ApproxPrefixCacheProducerTest, APrefillDestinationHoldsThePromptToo) {
  make(3);
  ask({tokens(128)});
  send(1, 2);
  EXPECT_EQ(look_up({tokens(128)}), (Rows{"0/2", "2/2", "2/2"}));
}

TEST_F(ApproxPrefixCacheProducerTest, AResultWithoutTargetsIsSkipped) {
  make(1);
  ask({tokens(128)});
  const ProfileResult empty{"default", {}, {}, {}, nullptr};
  const ProfileResult* ran[] = {&empty, nullptr};
  EXPECT_TRUE(plugin->pre_request(*pool->context, {ran, &empty}).ok());
  EXPECT_TRUE(plugin->pre_request(*pool->context, {{}, nullptr}).ok());
  EXPECT_EQ(plugin->index()->entries(), 0U);
}

TEST_F(ApproxPrefixCacheProducerTest, ModelsAndSaltsDoNotShareBlocks) {
  make(1);
  pool->request.target_model = "lora-a";
  serve(0, {tokens(128)});
  EXPECT_EQ(look_up({tokens(128)}), Rows{"2/2"});
  pool->request.target_model = "lora-b";
  EXPECT_EQ(look_up({tokens(128)}), Rows{"0/2"});
  pool->request.target_model = "lora-";
  pool->request.cache_salt = "a";
  EXPECT_EQ(look_up({tokens(128)}), Rows{"0/2"});
}

TEST_F(ApproxPrefixCacheProducerTest, ImagesOfOnePlaceholderAreDifferentPrompts) {
  make(1);
  const Tokens text = tokens(256);
  const MultiModalFeature cat[] = {{"image", "aa", 70, 10}};
  const MultiModalFeature dog[] = {{"image", "bb", 70, 10}};
  const auto matched = [&](std::span<const MultiModalFeature> features) {
    pool->restart();
    prompts = {{text, features}};
    pool->request.prompts = prompts;
    EXPECT_TRUE(plugin->produce(*pool->context).ok());
    return matches()[0].match_blocks;
  };
  EXPECT_EQ(matched(cat), 0U);
  send(0);
  EXPECT_EQ(matched(cat), 4U);
  EXPECT_EQ(matched(dog), 1U);
}

TEST_F(ApproxPrefixCacheProducerTest, ARemovedEndpointIsForgottenAtOnceAndLateRequestsDontBringItBack) {
  make(2);
  serve(1, {tokens(128)});
  ask({tokens(128)});
  plugin->endpoint_removed(*pool->pool.endpoints[1]);
  EXPECT_EQ(plugin->index()->entries(), 0U);
  send(1);
  EXPECT_EQ(plugin->index()->entries(), 0U);
  // A new endpoint in the same slot starts empty and is kept.
  pool->endpoint(1).live = std::make_shared<EndpointLive>();
  EXPECT_EQ(look_up({tokens(128)}), (Rows{"0/2", "0/2"}));
  send(1);
  EXPECT_EQ(look_up({tokens(128)}), (Rows{"0/2", "2/2"}));
}

TEST_F(ApproxPrefixCacheProducerTest, OnlyCandidatesAreFilled) {
  make(3);
  serve(2, {tokens(128)});
  pool->restart();
  pool->candidates = {0, 2};
  pool->context.emplace(SchedulingContext{pool->request, pool->pool, pool->signals, *pool->attributes,
                                          pool->arena, *pool->random, pool->now, pool->candidates});
  pool->attributes.emplace(pool->arena, TestPool::kSlots, 3);
  ASSERT_TRUE(plugin->produce(*pool->context).ok());
  EXPECT_EQ(matches()[0].total_blocks, 2U);
  EXPECT_EQ(matches()[1].total_blocks, 0U);
  EXPECT_EQ(matches()[2].match_blocks, 2U);
}

TEST_F(ApproxPrefixCacheProducerTest, PublishesUnderItsOwnName) {
  make(1, "", "mine");
  DataDeclaration declaration;
  plugin->declare_data(declaration);
  ASSERT_EQ(declaration.produces.size(), 2U);
  EXPECT_EQ(declaration.produces[0].key.text(), "PrefixCacheMatchInfoDataKey/mine");
  ASSERT_EQ(declaration.consumes.size(), 1U);
  EXPECT_EQ(declaration.consumes[0].key, data_keys::kTokenizedPrompt);
  EXPECT_TRUE(declaration.consumes[0].required);
}

TEST_F(ApproxPrefixCacheProducerTest, ExportsSizeHitsAndMemory) {
  make(2);
  serve(0, {tokens(200)});
  serve(0, {tokens(200)});
  const std::string text = metrics.render();
  const std::string labels = "{plugin_name=\"approx\",plugin_type=\"approx-prefix-cache-producer\"}";
  EXPECT_THAT(text, HasSubstr("llm_d_epp_prefix_indexer_size" + labels + " 3"));
  EXPECT_THAT(text, HasSubstr("inference_extension_prefix_indexer_size 3"));
  EXPECT_THAT(text, HasSubstr("llm_d_epp_prefix_indexer_hit_ratio_sum" + labels + " 0.75"));
  EXPECT_THAT(text, HasSubstr("llm_d_epp_prefix_indexer_hit_ratio_count" + labels + " 2"));
  EXPECT_THAT(text, HasSubstr("llm_d_epp_prefix_indexer_hit_bytes_sum" + labels + " 768"));
  EXPECT_THAT(text, HasSubstr("penstock_prefix_index_entries" + labels + " 3"));
  EXPECT_THAT(text, HasSubstr("penstock_prefix_index_dropped_inserts_total" + labels + " 0"));
  EXPECT_THAT(text, Not(HasSubstr("penstock_prefix_index_bytes" + labels + " 0\n")));
  plugin->endpoint_removed(*pool->pool.endpoints[0]);
  EXPECT_THAT(metrics.render(), HasSubstr("llm_d_epp_prefix_indexer_size" + labels + " 0"));
}

TEST_F(ApproxPrefixCacheProducerTest, DumpsTheFullestEndpointsFirst) {
  make(3);
  EXPECT_EQ(plugin->dump_state(), R"({"pods":[],"totalPods":0,"maxPods":100})");
  serve(0, {tokens(64)});
  serve(1, {tokens(64)});
  serve(2, {tokens(128)});
  EXPECT_EQ(plugin->dump_state(),
            R"({"pods":[{"pod":"ns/e2","blocks":2},{"pod":"ns/e0","blocks":1},{"pod":"ns/e1","blocks":1}],)"
            R"("totalPods":3,"maxPods":100})");
}

TEST_F(ApproxPrefixCacheProducerTest, CallsTheHeapNeverOnceWarm) {
  make(16);
  for (uint32_t i = 0; i < 50; ++i) texts.push_back(tokens(2000, i % 5 * 7) + tokens(600, i * 10000));
  const auto round = [&](uint32_t i) {
    pool->restart();
    prompts[0] = {texts[i % texts.size()], {}};
    pool->request.prompts = prompts;
    ASSERT_TRUE(plugin->produce(*pool->context).ok());
    const Candidate targets[] = {i % 16};
    const ProfileResult primary{"default", targets, {}, {}, nullptr};
    const ProfileResult* ran[] = {&primary};
    ASSERT_TRUE(plugin->pre_request(*pool->context, {ran, &primary}).ok());
  };
  prompts.resize(1);
  for (uint32_t i = 0; i < 200; ++i) round(i);
  const uint64_t before = allocations();
  for (uint32_t i = 0; i < 200; ++i) round(i);
  EXPECT_EQ(allocations() - before, 0U);
}

TEST(ApproxPrefixCacheParameters, WrongValuesAreErrorsThatSayWhatIsWrong) {
  const auto error = [](std::string_view parameters) {
    auto plugin = make_plugin("approx-prefix-cache-producer", parameters);
    return plugin.ok() ? std::string() : plugin.error().message;
  };
  EXPECT_THAT(error("{autoTune: false, blockSizeTokens: 0}"),
              HasSubstr("invalid configuration: BlockSizeTokens must be > 0 when AutoTune is disabled "
                        "(current value: 0)"));
  EXPECT_THAT(error("{maxPrefixTokensToMatch: -1}"), HasSubstr("maxPrefixTokensToMatch must be >= 0"));
  EXPECT_THAT(error("{maxPrefixTokensToMatch: 63}"),
              HasSubstr("is 63, less than one block of 64 tokens: nothing would ever match"));
  EXPECT_THAT(error("{maxPrefixTokensToMatch: 100, blockSizeTokens: 128}"), HasSubstr("128 tokens"));
  EXPECT_THAT(error("{maxPrefixBlocksToMatch: -3}"), HasSubstr("maxPrefixBlocksToMatch"));
  EXPECT_THAT(error("{maxIndexBytes: 1000}"), HasSubstr("at least 1Mi"));
  EXPECT_THAT(error("{lruCapacity: 1}"), HasSubstr("lruCapacity"));
  EXPECT_EQ(error("{maxPrefixTokensToMatch: 64, maxIndexBytes: 8Mi, lruCapacityPerServer: 0}"), "");
  EXPECT_EQ(error("{autoTune: true, blockSizeTokens: 0}"), "");
  EXPECT_EQ(error(""), "");
}

TEST(ApproxPrefixCacheParameters, TheDeprecatedBlockSizeCountsOnlyWithoutTheNewOne) {
  const auto block_size = [](std::string_view parameters) {
    auto plugin = make_plugin("approx-prefix-cache-producer", parameters);
    return dynamic_cast<ApproxPrefixCacheProducer&>(**plugin).block_size();
  };
  EXPECT_EQ(block_size("{blockSize: 256}"), 256U);
  EXPECT_EQ(block_size("{blockSize: 256, blockSizeTokens: 128}"), 128U);
  EXPECT_EQ(block_size("{blockSize: 256, blockSizeTokens: 16}"), 64U) << "16 was said, not left out";
  EXPECT_EQ(block_size("{blockSizeTokens: 32}"), 64U);
}

TEST(ApproxPrefixCacheParameters, AnIndexIsHandedOnOnlyBetweenInstancesThatShapeItAlike) {
  using P = ApproxPrefixCacheProducer;
  EXPECT_EQ(P::index_key("a", {}), P::index_key("a", {.block_size_tokens = 128}));
  EXPECT_NE(P::index_key("a", {}), P::index_key("b", {}));
  EXPECT_NE(P::index_key("a", {}), P::index_key("a", {.lru_capacity = 5}));
}

// Remembers what it is told, and tells another producer.
struct Outlet final : PrefixOutlet {
  struct Told {
    std::string endpoint;
    uint32_t block_size;
    std::vector<uint64_t> hashes;
  };
  std::vector<Told> told;
  void entered(std::string_view, const Endpoint& endpoint, uint32_t block_size,
               std::span<const uint64_t> hashes) override {
    told.push_back({endpoint.id, block_size, {hashes.begin(), hashes.end()}});
  }
};

TEST_F(ApproxPrefixCacheProducerTest, OthersAreToldOfWhatIsNewAtTheDestinationAndNowAndThenOfTheRest) {
  make(2);
  const auto outlet = std::make_shared<Outlet>();
  plugin->tell(outlet);
  serve(0, {tokens(200)});
  ASSERT_EQ(outlet->told.size(), 1U);
  EXPECT_EQ(outlet->told[0].endpoint, pool->endpoint(0).id);
  EXPECT_EQ(outlet->told[0].block_size, 64U);
  EXPECT_EQ(outlet->told[0].hashes.size(), 3U);
  serve(0, {tokens(264)});
  ASSERT_EQ(outlet->told.size(), 2U) << "a block more";
  EXPECT_EQ(outlet->told[1].hashes.size(), 4U) << "from the first block on";
  for (uint32_t i = 0; i < ApproxPrefixCacheProducer::kTellAgain; ++i) serve(0, {tokens(264)});
  EXPECT_EQ(outlet->told.size(), 3U) << "one of as many repetitions";
}

TEST_F(ApproxPrefixCacheProducerTest, WhatAnotherReplicaSentIsHeldAsIfItHadBeenSentHere) {
  make(2);
  const auto outlet = std::make_shared<Outlet>();
  plugin->tell(outlet);
  serve(1, {tokens(200)});
  const Outlet::Told told = outlet->told.at(0);
  make(2);
  EXPECT_TRUE(plugin->learn(pool->endpoint(1), told.block_size, told.hashes));
  EXPECT_EQ(look_up({tokens(200)}), (Rows{"0/4", "3/4"}));
}

TEST_F(ApproxPrefixCacheProducerTest, BlocksOfAnotherSizeAreLearntOnlyUntilTheOwnSizeIsKnown) {
  make(1, "{autoTune: false, blockSizeTokens: 64}");
  const std::vector<uint64_t> hashes{1, 2};
  EXPECT_FALSE(plugin->learn(pool->endpoint(0), 128, hashes));
  EXPECT_TRUE(plugin->learn(pool->endpoint(0), 64, hashes));
  make(1);
  EXPECT_TRUE(plugin->learn(pool->endpoint(0), 128, hashes)) << "no engine has told its size yet";
  report(0, 64, 1000);
  ask({tokens(10)});
  EXPECT_FALSE(plugin->learn(pool->endpoint(0), 128, hashes));
}

}  // namespace
}  // namespace penstock::scheduling
