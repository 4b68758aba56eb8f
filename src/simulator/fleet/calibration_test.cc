// The simulator against replays of published traces: block-hit rates that were computed with instant service
// and one LRU cache for each worker, 512-token blocks.

#include <gtest/gtest.h>

#include "simulator/fleet/fleet_testing.h"

namespace penstock::simulator {
namespace {

void hits(double wanted, double tolerance, const FleetOptions& fleet, const Workload& workload,
          const FleetPolicy& policy) {
  const auto report = run_fleet(fleet, workload, policy);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->finished, workload.requests.size());
  EXPECT_NEAR(block_hit_ratio(*report, workload, fleet.engine.block_size), wanted, tolerance)
      << workload.name << ", " << fleet.engines << " x " << fleet.engine.num_blocks << ", " << policy.name;
}

struct Row {
  uint32_t workers, blocks;
  double round_robin, sticky;
};
void check(const Workload& trace, std::initializer_list<Row> rows) {
  for (const Row& row : rows) {
    const FleetOptions fleet = instant_fleet(row.workers, row.blocks);
    hits(row.round_robin, 0.01, fleet, trace, *builtin_policy("round-robin", 0));
    hits(row.sticky, 0.02, fleet, trace, *builtin_policy("sticky-hash", 0));
  }
}

TEST(CalibrationTest, TheConversationTraceHitsAsInThePublishedReplay) {
  check(as_blocks(trace_of_vectors("mooncake_conversation.jsonl")),
        {{8, 600, 0.050, 0.107}, {8, 2400, 0.084, 0.282}});
}

TEST(CalibrationTest, TheSyntheticTraceHitsAsInThePublishedReplay) {
  check(as_blocks(trace_of_vectors("mooncake_synthetic.jsonl")),
        {{8, 600, 0.045, 0.269}, {8, 2400, 0.121, 0.562}, {16, 600, 0.038, 0.412}});
}

// The replay's third column, exact matching weighed against load, beside the approximate index.
TEST(CalibrationTest, ThePrefixProducerFindsWhatExactMatchingFinds) {
  FleetPolicy prefix{"prefix", "", "prefix"};
  prefix.config = R"(plugins:
- type: approx-prefix-cache-producer
  parameters: {maxPrefixTokensToMatch: 10000000}
- type: prefix-cache-scorer
- type: max-score-picker
)";
  const Workload trace = as_blocks(trace_of_vectors("mooncake_synthetic.jsonl"), kPrefixBlock);
  hits(0.269, 0.02, instant_fleet(8, 600, kPrefixBlock), trace, prefix);
  hits(0.553, 0.02, instant_fleet(8, 2400, kPrefixBlock), trace, prefix);
  hits(0.399, 0.02, instant_fleet(16, 600, kPrefixBlock), trace, prefix);
}

// All prompts of the conversation trace begin alike, and with instant service no policy sees a load: all
// would go where the first request went. So here engines take their time, 32 ms for a block as an A100 does.
TEST(CalibrationTest, ExpectedTtftFindsWhatExactMatchingWithLoadFinds) {
  constexpr double kTokensPerSecond = kPrefixBlock / 0.032;
  FleetOptions fleet = instant_fleet(8, 2400, kPrefixBlock);
  fleet.engine.step_time = StepTime(0, kTokensPerSecond);
  fleet.scrape_interval = std::chrono::milliseconds(500);
  hits(0.271, 0.04, fleet, as_blocks(trace_of_vectors("mooncake_conversation.jsonl", true), kPrefixBlock),
       *builtin_policy("expected-ttft", kTokensPerSecond));
}

// A prompt's last token takes a block here that the replay does not count.
TEST(CalibrationTest, OneCacheForAllHitsAsALeastRecentlyUsedListOfItsSize) {
  const Workload conversation = as_blocks(trace_of_vectors("mooncake_conversation.jsonl"));
  EXPECT_NEAR(shared_lru_hit_ratio(conversation, 20000), 0.288, 0.01);
  const Workload synthetic = as_blocks(trace_of_vectors("mooncake_synthetic.jsonl"));
  EXPECT_NEAR(shared_lru_hit_ratio(synthetic, 1000), 0.0825, 0.01);
  EXPECT_NEAR(shared_lru_hit_ratio(synthetic, 10000), 0.4235, 0.01);
}

}  // namespace
}  // namespace penstock::simulator
