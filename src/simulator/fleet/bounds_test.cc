#include "simulator/fleet/bounds.h"

#include <gtest/gtest.h>

namespace penstock::simulator {
namespace {

Workload prompts(const std::vector<std::vector<uint64_t>>& lists, uint32_t tokens) {
  Workload out;
  for (const auto& ids : lists) {
    FleetRequest request;
    request.at = std::chrono::seconds(out.requests.size());
    out.requests.push_back(request);
    for (const uint64_t id : ids) out.add_piece({id, tokens});
  }
  return out;
}

FleetOptions fleet() {
  FleetOptions options;
  options.engines = 1;
  options.engine.step_time = *StepTime::profile("llama3-8b-h100");
  return options;
}

TEST(BoundsTest, WhatAnEarlierPromptBeganWithIsSeen) {
  const Workload workload = prompts({{1, 2, 3}, {1, 2, 4}, {2, 3}, {1, 2, 3, 5}}, 512);
  const PromptTree tree(workload, fleet());
  EXPECT_EQ(tree.seen_tokens(0), 0U);
  EXPECT_EQ(tree.seen_tokens(1), 1024U);
  EXPECT_EQ(tree.seen_tokens(2), 0U);  // the same texts behind another beginning
  EXPECT_EQ(tree.seen_tokens(3), 1536U);
  EXPECT_DOUBLE_EQ(bound_of(workload, fleet()).hit_ratio_unlimited, (1024.0 + 1536.0) / (12 * 512));
}

TEST(BoundsTest, APromptThatWasThereWholeStillComputesItsLastBlock) {
  const Workload workload = prompts({{1}, {1}}, 64);
  EXPECT_DOUBLE_EQ(bound_of(workload, fleet()).hit_ratio_unlimited, 48.0 / 128);
}

TEST(BoundsTest, AShorterPieceIsSeenAsFarAsItGoes) {
  Workload workload = prompts({{1}, {1, 2}}, 512);
  workload.pieces[0].tokens = 100;
  workload.requests[0].input_tokens = 100;
  const PromptTree tree(workload, fleet());
  EXPECT_EQ(tree.seen_tokens(1), 100U);
}

TEST(BoundsTest, AnAnswerIsSeenByTheTurnThatRepeatsIt) {
  Workload workload = prompts({{1}}, 64);
  workload.requests[0].output_tokens = 65;
  workload.requests[0].answer_seed = 77;
  FleetRequest next;
  next.at = std::chrono::seconds(9);
  workload.requests.push_back(next);
  workload.add_piece({1, 64});
  workload.add_piece({77, 65, true});
  const PromptTree tree(workload, fleet());
  EXPECT_EQ(tree.seen_tokens(1), 128U);  // the last token of the answer was never computed
}

TEST(BoundsTest, ASmallCacheKeepsWhatIsNeededSoonest) {
  // Room for two of three texts that come in turn: the best is to keep one of them through and let the others
  // pass. A cache of least recently used texts would hit nothing.
  const Workload workload = prompts({{1}, {2}, {3}, {1}, {2}, {3}, {1}, {2}, {3}}, 512);
  const PromptTree tree(workload, fleet());
  EXPECT_DOUBLE_EQ(clairvoyant_hit_ratio(workload, tree, 3 * 512), 6.0 / 9);
  EXPECT_DOUBLE_EQ(clairvoyant_hit_ratio(workload, tree, 2 * 512), 4.0 / 9);
  EXPECT_DOUBLE_EQ(clairvoyant_hit_ratio(workload, tree, 512), 2.0 / 9);
  EXPECT_DOUBLE_EQ(clairvoyant_hit_ratio(workload, tree, 0), 0);
}

TEST(BoundsTest, NobodyIsFasterThanAnIdleEngineWithEverythingInItsCache) {
  FleetOptions options = fleet();
  options.engine.max_batched_tokens = 2048;
  const FleetBound bound = bound_of(prompts({{1, 2, 3, 4}}, 512), options);
  EXPECT_NEAR(bound.ttft_ms.mean, 47.378, 0.001);
}

TEST(BoundsTest, APromptThatEnginesRefuseNeitherCountsNorLeavesAnything) {
  FleetOptions options = fleet();
  options.engine.num_blocks = 1 + 3 * 512 / 16;  // the blocks hold no prompt of three pieces
  const Workload workload = prompts({{1, 2, 3}, {1}, {1, 4}}, 512);
  const PromptTree tree(workload, options);
  EXPECT_FALSE(tree.counts(0));
  EXPECT_EQ(tree.counted_tokens(), 3U * 512);
  const FleetBound bound = bound_of(workload, options);
  EXPECT_DOUBLE_EQ(bound.hit_ratio_unlimited, 1.0 / 3);
  EXPECT_DOUBLE_EQ(bound.hit_ratio_clairvoyant, 1.0 / 3);
}

TEST(BoundsTest, WhatArrivesDuringTheWarmUpLeavesItsTextAndIsNotCounted) {
  FleetOptions options = fleet();
  options.warm_up = std::chrono::seconds(2);
  Workload workload = prompts({{1}, {2}, {1, 3}, {4, 5}}, 512);
  // A turn that waits for an answer counts from when it could come at the earliest.
  workload.requests[1].after = 0;
  workload.requests[1].pause = std::chrono::seconds(3);
  const PromptTree tree(workload, options);
  EXPECT_FALSE(tree.counts(0));
  EXPECT_TRUE(tree.counts(1));
  EXPECT_EQ(tree.counted_tokens(), 5U * 512);
  EXPECT_DOUBLE_EQ(bound_of(workload, options).hit_ratio_unlimited, 1.0 / 5);
}

}  // namespace
}  // namespace penstock::simulator
