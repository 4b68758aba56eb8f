#include "simulator/fleet/generators.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "simulator/fleet/bounds.h"
#include "simulator/fleet/fleet_testing.h"

namespace penstock::simulator {
namespace {

double unlimited_hit_ratio(const Workload& workload) {
  return bound_of(workload, instant_fleet(1, 1U << 20U)).hit_ratio_unlimited;
}

TEST(GeneratorsTest, EveryKindIsDrawnInOrderOfTimeAndAgainFromItsSeed) {
  for (const WorkloadKind& kind : workload_kinds()) {
    const auto first = generate_workload(kind.name, 500, 3);
    const auto again = generate_workload(kind.name, 500, 3);
    ASSERT_TRUE(first.ok() && again.ok()) << kind.name;
    EXPECT_NEAR(static_cast<double>(first->requests.size()), 500, 10) << kind.name;
    ASSERT_EQ(first->requests.size(), again->requests.size());
    Duration before{};
    for (size_t i = 0; i < first->requests.size(); ++i) {
      const FleetRequest& request = first->requests[i];
      ASSERT_GE(request.at, before) << kind.name;
      before = request.at;
      ASSERT_GT(request.input_tokens, 0U) << kind.name;
      ASSERT_GT(request.output_tokens, 0U) << kind.name;
      ASSERT_TRUE(request.after == FleetRequest::kNone || request.after < i) << kind.name;
      ASSERT_EQ(request.input_tokens, again->requests[i].input_tokens) << kind.name;
      ASSERT_EQ(request.at, again->requests[i].at) << kind.name;
    }
  }
}

TEST(GeneratorsTest, EveryKindDrawsAsManyRequestsAsAreAskedFor) {
  for (const WorkloadKind& kind : workload_kinds()) {
    for (const size_t requests : {1, 7, 100, 999}) {
      EXPECT_EQ(generate_workload(kind.name, requests, 3)->requests.size(), requests) << kind.name;
    }
  }
}

TEST(GeneratorsTest, AnUnknownKindIsAnErrorThatListsThem) {
  const auto none = generate_workload("nothing", 1, 1);
  ASSERT_FALSE(none.ok());
  EXPECT_TRUE(
      none.error().message.starts_with("workload \"nothing\" is not known; there are: conversation, "))
      << none.error().message;
  EXPECT_FALSE(generate_workload("burst", kMaxGeneratedRequests + 1, 1).ok());
}

TEST(GeneratorsTest, DrawnConversationsHitAsTheTraceDoes) {
  const Workload drawn = as_blocks(generate_mooncake(MooncakeTrace::kConversation, 12031, 1));
  EXPECT_NEAR(unlimited_hit_ratio(drawn), 0.366, 0.02);
  EXPECT_NEAR(shared_lru_hit_ratio(drawn, 1000), 0.0445, 0.03);
  EXPECT_NEAR(shared_lru_hit_ratio(drawn, 10000), 0.211, 0.03);
}

TEST(GeneratorsTest, DrawnSyntheticPromptsHitAsTheTraceDoes) {
  const Workload drawn = as_blocks(generate_mooncake(MooncakeTrace::kSynthetic, 3993, 1));
  EXPECT_NEAR(unlimited_hit_ratio(drawn), 0.640, 0.02);
  EXPECT_NEAR(shared_lru_hit_ratio(drawn, 1000), 0.0825, 0.03);
  EXPECT_NEAR(shared_lru_hit_ratio(drawn, 10000), 0.4235, 0.03);
  EXPECT_NEAR(shared_lru_hit_ratio(drawn, 30000), 0.624, 0.03);
}

TEST(GeneratorsTest, DrawnToolCallsHaveThePublishedAveragesAndThreeHotPrompts) {
  const Workload drawn = generate_mooncake(MooncakeTrace::kToolAgent, 23608, 1);
  const double count = static_cast<double>(drawn.requests.size());
  EXPECT_NEAR(static_cast<double>(drawn.input_tokens()) / count, 8596, 860);
  EXPECT_NEAR(static_cast<double>(drawn.output_tokens()) / count, 182, 18);
  EXPECT_NEAR(unlimited_hit_ratio(as_blocks(drawn)), 0.59, 0.02);
  std::array<size_t, 3> openings{};
  for (const FleetRequest& request : drawn.requests) {
    const uint64_t first = drawn.pieces[request.first_piece].id;
    ASSERT_EQ(first % 6, 0U);
    ++openings.at(first / 6);
  }
  EXPECT_NEAR(static_cast<double>(openings[0]) / count, 0.46, 0.03);
  EXPECT_NEAR(static_cast<double>(openings[2]) / count, 0.15, 0.03);
}

TEST(GeneratorsTest, ATurnOfAConversationRepeatsWhatWasSaidAndWaitsForTheAnswer) {
  const auto drawn = generate_workload("chat", 400, 1);
  ASSERT_TRUE(drawn.ok());
  size_t turns = 0;
  for (const FleetRequest& request : drawn->requests) {
    if (request.after == FleetRequest::kNone) continue;
    ++turns;
    const FleetRequest& before = drawn->requests[request.after];
    ASSERT_EQ(before.session, request.session);
    ASSERT_GT(request.pause, Duration::zero());
    // Everything of the prompt before, its answer, and something new.
    ASSERT_EQ(request.pieces, before.pieces + 2);
    for (uint32_t i = 0; i < before.pieces; ++i)
      ASSERT_EQ(drawn->pieces[request.first_piece + i].id, drawn->pieces[before.first_piece + i].id);
    const PromptPiece& answer = drawn->pieces[request.first_piece + before.pieces];
    ASSERT_TRUE(answer.answer);
    ASSERT_EQ(answer.id, before.answer_seed);
    ASSERT_EQ(answer.tokens, before.output_tokens);
  }
  EXPECT_GT(turns, 200U);
}

TEST(GeneratorsTest, ThePriorityMixHasItsSharesAndAGreedyTenant) {
  const auto drawn = generate_workload("priority-mix", 10000, 1);
  ASSERT_TRUE(drawn.ok());
  ASSERT_EQ(drawn->classes.size(), 4U);
  std::vector<double> counts(4);
  for (const FleetRequest& request : drawn->requests) counts[request.class_index] += 1;
  EXPECT_NEAR(counts[0] / 5000, 0.2, 0.02);
  EXPECT_NEAR(counts[1] / 5000, 0.6, 0.02);
  EXPECT_NEAR(counts[2] / 5000, 0.2, 0.02);
  EXPECT_EQ(counts[3], 5000);
  EXPECT_NEAR(to_seconds(drawn->requests.back().at), 5000 / 6.0, 50);
}

TEST(GeneratorsTest, AzureCodeComesInBursts) {
  const auto drawn = generate_workload("azure-code", 8819, 1);
  ASSERT_TRUE(drawn.ok());
  double sum = 0;
  double squares = 0;
  for (size_t i = 1; i < drawn->requests.size(); ++i) {
    const double gap = to_seconds(drawn->requests[i].at - drawn->requests[i - 1].at);
    sum += gap;
    squares += gap * gap;
  }
  const double count = static_cast<double>(drawn->requests.size() - 1);
  const double mean = sum / count;
  EXPECT_NEAR(mean, 1 / 2.57, 0.01);
  EXPECT_GT(std::sqrt(squares / count - mean * mean) / mean, 8);
}

}  // namespace
}  // namespace penstock::simulator
