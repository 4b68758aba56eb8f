#include "scheduling/producers/burst_prefix_cache_producer.h"

#include <gtest/gtest.h>

#include "scheduling/fake_outside.h"
#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using std::chrono::milliseconds;
using Blocks = std::vector<uint64_t>;

// Names of the replicas pod1, pod2, … that requests are sent to; "" for nobody.
std::vector<std::string> assigned(const std::vector<Blocks>& requests, size_t replicas,
                                  const BurstRules& rules) {
  std::vector<std::string> names;
  for (size_t i = 1; i <= replicas; ++i) names.push_back("pod" + std::to_string(i));
  std::vector<BurstReplica> idle;
  for (const std::string& name : names) idle.push_back({name, 0});
  std::vector<std::string> out;
  for (const uint32_t replica : assign_burst(requests, idle, rules))
    out.push_back(replica == kNoReplica ? "" : names[replica]);
  return out;
}
std::vector<std::string> times(size_t n, const std::string& name) {
  return std::vector<std::string>(n, name);
}

TEST(BurstAssignment, SendsAGroupToOneReplicaOrAsManyAsTheCapAsksFor) {
  const std::vector<Blocks> eight(8, Blocks{1, 2, 3});
  EXPECT_EQ(assigned(eight, 4, {}), times(8, "pod1"));
  EXPECT_EQ(assigned(eight, 4, {.max_per_replica = 2}),
            (std::vector<std::string>{"pod1", "pod1", "pod2", "pod2", "pod3", "pod3", "pod4", "pod4"}));
  EXPECT_EQ(assigned(eight, 4, {.max_per_replica = 4}),
            (std::vector<std::string>{"pod1", "pod1", "pod1", "pod1", "pod2", "pod2", "pod2", "pod2"}));
  EXPECT_EQ(assigned(eight, 2, {.max_per_replica = 2}),
            (std::vector<std::string>{"pod1", "pod1", "pod2", "pod2", "pod1", "pod2", "pod1", "pod2"}));
}

TEST(BurstAssignment, LeavesAloneWhoIsAloneOrHasNoBlocks) {
  EXPECT_EQ(assigned({{1}, {2}, {}, {}}, 4, {}), times(4, ""));
  EXPECT_EQ(assigned({{1}, {1}}, 0, {}), times(2, ""));
  EXPECT_EQ(assigned({}, 4, {}), times(0, ""));
  EXPECT_EQ(assigned({{1}, {2}}, 4, {.min_colocate_blocks = 2}), times(2, "")) << "too short to share two";
}

TEST(BurstAssignment, BalancesByTheBlocksThatAReplicaHasToCompute) {
  std::vector<Blocks> shared(3, Blocks(9, 7));
  for (uint64_t i = 0; i < 9; ++i)
    for (Blocks& blocks : shared) blocks[i] = 100 + i;
  for (uint64_t i = 0; i < 3; ++i) shared[i].push_back(i);
  EXPECT_EQ(assigned(shared, 2, {.min_colocate_blocks = 9, .balance_tokens = true}), times(3, "pod1"));
  const std::vector<Blocks> mixed{{1, 2, 3, 4}, {5}, {6}, {1, 2, 3, 4}, {5}, {6}};
  EXPECT_EQ(assigned(mixed, 2, {.balance_tokens = true}),
            (std::vector<std::string>{"pod1", "pod2", "pod2", "pod1", "pod2", "pod2"}));
  EXPECT_EQ(assigned(mixed, 2, {}),
            (std::vector<std::string>{"pod1", "pod2", "pod1", "pod1", "pod2", "pod1"}));
}

TEST(BurstAssignment, FindsTheLongestBeginningThatAReplicaHolds) {
  // Two families that part after three blocks, one of them again after five; the longest is placed first.
  const std::vector<Blocks> requests{{1, 2, 3, 14, 15, 16, 17, 18},
                                     {1, 2, 3, 24, 25, 26, 27},
                                     {1, 2, 3, 14, 15, 36},
                                     {1, 2, 3, 24, 45},
                                     {1, 2, 3},
                                     {9, 8, 7}};
  EXPECT_EQ(assigned(requests, 2, {.min_colocate_blocks = 3}),
            (std::vector<std::string>{"pod1", "pod1", "pod1", "pod2", "pod2", ""}));
  std::vector<std::string> all_together = times(5, "pod1");
  all_together.emplace_back();
  EXPECT_EQ(assigned(requests, 2, {.min_colocate_blocks = 3, .balance_tokens = true}), all_together)
      << "8 + 4 + 1 + 1 + 0 blocks to compute, of 15 that each may carry";
}

// Four endpoints and requests for one of two prompts.
class BurstProducer : public ::testing::Test {
 protected:
  BurstProducer() { make({}); }
  void make(BurstPrefixCacheProducer::Params params) {
    burst = std::make_unique<BurstPrefixCacheProducer>(params, &outside);
    burst->set_identity("burst-prefix-cache-producer", "burst-prefix-cache-producer");
    burst->bind_slots(pool.slots);
  }
  std::shared_ptr<Question> ask(uint32_t token) {
    tokens.assign(prompt_tokens, token);
    prompt = {{tokens, {}}};
    pool.request.prompts = prompt;
    return burst->ask(pool.restart());
  }
  void pass(Duration time) {
    pool.now += time;
    outside.pass(time);
  }
  // The endpoint that holds the prompt; "" for none.
  std::string produced(const std::shared_ptr<Question>& question, uint32_t total = 2) {
    SchedulingContext& ctx = pool.restart();
    const AskedQuestion asked{burst.get(), question};
    ctx.questions = {&asked, 1};
    EXPECT_TRUE(burst->produce(ctx).ok());
    const auto column = ctx.attributes.column<PrefixMatch>(slot());
    if (column.empty()) return "no data";
    std::string out;
    for (const Candidate c : ctx.candidates) {
      EXPECT_EQ(column[c].total_blocks, total);
      if (column[c].match_blocks == 0) continue;
      EXPECT_EQ(column[c].match_blocks, total);
      out += pool.pool.endpoints[c]->name;
    }
    return out;
  }
  AttributeSlot slot() {
    return pool.slots.slot(data_keys::kPrefixMatch.with_producer("burst-prefix-cache-producer"));
  }

  TestPool pool{4};
  FakeOutside outside;
  size_t prompt_tokens = 100;
  std::vector<uint32_t> tokens;
  std::vector<TokenizedPrompt> prompt;
  std::unique_ptr<BurstPrefixCacheProducer> burst;
};

TEST_F(BurstProducer, ABatchTakesWhoComesWithinTheWindowOfTheFirst) {
  const auto first = ask(1);
  pass(milliseconds(99));
  const auto second = ask(1);
  EXPECT_FALSE(first->answered());
  pass(milliseconds(1));
  EXPECT_TRUE(first->answered());
  EXPECT_TRUE(second->answered()) << "the window is the first one's";
  const auto late = ask(1);
  EXPECT_FALSE(late->answered());
  EXPECT_EQ(produced(first), "e0");
  EXPECT_EQ(produced(second), "e0");
  pass(milliseconds(100));
  EXPECT_EQ(produced(late), "") << "alone in its batch";
}

TEST_F(BurstProducer, WhatWasAssignedStaysWhenTheRequestIsDecidedAgain) {
  pool.set(Signal::kRunningRequests, 0, 5);
  const auto first = ask(1);
  const auto second = ask(1);
  pass(milliseconds(100));
  EXPECT_EQ(produced(first), "e1");
  pool.set(Signal::kRunningRequests, 1, 50);
  EXPECT_EQ(produced(second), "e1");
  EXPECT_EQ(produced(first), "e1");
  const auto late = ask(1);
  pass(milliseconds(100));
  EXPECT_EQ(produced(late), "") << "nobody joins what was assigned";
}

TEST_F(BurstProducer, AnEndpointThatTookThePlaceOfTheAssignedOneHoldsNothing) {
  const auto first = ask(1);
  const auto second = ask(1);
  pass(milliseconds(100));
  EXPECT_EQ(produced(first), "e0");
  pool.endpoint(0).live = std::make_shared<EndpointLive>();
  EXPECT_EQ(produced(second), "");
}

TEST_F(BurstProducer, AFullBatchRefusesAndARequestThatDidNotAskHasNoData) {
  BurstPrefixCacheProducer::Params params;
  params.max_batch_size = 1;
  make(params);
  (void)ask(1);
  const auto refused = ask(1);
  EXPECT_TRUE(refused->answered()) << "there is nothing to wait for";
  SchedulingContext& ctx = pool.restart();
  const AskedQuestion asked{burst.get(), refused};
  ctx.questions = {&asked, 1};
  EXPECT_EQ(burst->produce(ctx).error().message, "burst prefix batch full: maxBatchSize 1 reached");
  ctx.questions = {};
  EXPECT_TRUE(burst->produce(ctx).ok());
  EXPECT_TRUE(ctx.attributes.column<PrefixMatch>(slot()).empty());
}

TEST_F(BurstProducer, WhoHasNoPromptOrNoWayToWaitDoesNotAsk) {
  pool.request.prompts = {};
  EXPECT_EQ(burst->ask(pool.restart()), nullptr);
  EXPECT_TRUE(burst->asks());
  EXPECT_FALSE(BurstPrefixCacheProducer({}, nullptr).asks());
}

TEST_F(BurstProducer, ABatchKeepsNoMoreHashesThanItsLimit) {
  BurstPrefixCacheProducer::Params params;
  params.block_size_tokens = 1;
  params.max_batch_size = -1;
  make(params);
  prompt_tokens = 10'000;
  params.max_prefix_tokens = 10'000;
  make(params);
  const size_t most = BurstPrefixCacheProducer::kMaxBatchBytes / sizeof(uint64_t) / prompt_tokens;
  ASSERT_LT(most, BurstPrefixCacheProducer::kMaxBatchRequests);
  for (size_t i = 0; i < most; ++i) ASSERT_FALSE(ask(1)->answered()) << i;
  EXPECT_TRUE(ask(1)->answered());
}

TEST_F(BurstProducer, ABatchOfAnySizeHasALimit) {
  for (const int64_t most : {int64_t{-1}, int64_t{1} << 40}) {
    BurstPrefixCacheProducer::Params params;
    params.max_batch_size = most;
    make(params);
    prompt_tokens = 1;
    for (size_t i = 0; i < BurstPrefixCacheProducer::kMaxBatchRequests; ++i)
      ASSERT_FALSE(ask(1)->answered()) << i;
    EXPECT_TRUE(ask(1)->answered());
  }
}

TEST_F(BurstProducer, AClientThatLeavesDoesNotEndTheWindowOfTheOthers) {
  const auto gone = ask(1);
  const auto first = ask(1);
  SchedulingContext& ctx = pool.restart();
  const AskedQuestion asked{burst.get(), gone};
  ctx.questions = {&asked, 1};
  EXPECT_TRUE(burst->produce(ctx).ok());
  EXPECT_TRUE(ctx.attributes.column<PrefixMatch>(slot()).empty());
  const auto second = ask(1);
  pass(milliseconds(100));
  EXPECT_EQ(produced(first), "e0");
  EXPECT_EQ(produced(second), "e0");
}

TEST_F(BurstProducer, ThePromptsOfARequestAreOneChain) {
  // Two requests whose second prompts are the same, after others, share no beginning.
  BurstPrefixCacheProducer::Params params;
  params.rules.min_colocate_blocks = 2;
  params.block_size_tokens = 10;
  make(params);
  const auto ask_two = [&](uint32_t first, uint32_t second) {
    const std::vector<uint32_t> a(10, first);
    const std::vector<uint32_t> b(20, second);
    prompt = {{a, {}}, {b, {}}};
    pool.request.prompts = prompt;
    return burst->ask(pool.restart());
  };
  const auto one = ask_two(1, 7);
  const auto other = ask_two(2, 7);
  const auto like_one = ask_two(1, 7);
  pass(milliseconds(100));
  EXPECT_EQ(produced(one, 3), "e0");
  EXPECT_EQ(produced(other, 3), "");
  EXPECT_EQ(produced(like_one, 3), "e0");
}

}  // namespace
}  // namespace penstock::scheduling
