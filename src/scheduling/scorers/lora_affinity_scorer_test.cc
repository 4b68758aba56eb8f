#include "scheduling/scorers/lora_affinity_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/hash.h"
#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

void fill(LoraSignal& lora, std::vector<std::string> running, std::vector<std::string> waiting, int max) {
  const auto copy = [](const std::vector<std::string>& names, auto& out) {
    std::transform(names.begin(), names.end(), out.begin(), [](const std::string& n) { return hash_of(n); });
    std::sort(out.begin(), out.begin() + static_cast<ptrdiff_t>(names.size()));
    return static_cast<uint16_t>(names.size());
  };
  lora.running_count = copy(running, lora.running);
  lora.waiting_count = copy(waiting, lora.waiting);
  lora.max_adapters = max;
}

double score(std::string_view model, std::vector<std::string> running, std::vector<std::string> waiting,
             int max) {
  TestPool pool(1);
  pool.request.target_model = model;
  fill(pool.signals.lora_rows[0], std::move(running), std::move(waiting), max);
  return pool.score(LoraAffinityScorer())[0];
}

TEST(LoraAffinityScorerTest, RunningBeatsRoomBeatsWaitingBeatsNothing) {
  EXPECT_EQ(score("a", {"a", "b"}, {}, 2), 1.0);
  EXPECT_EQ(score("c", {"a", "b"}, {}, 2), 0.0);
  EXPECT_EQ(score("c", {"a"}, {"c"}, 2), 0.6);
  EXPECT_EQ(score("c", {}, {}, 2), 0.8);
}

TEST(LoraAffinityScorerTest, AdapterRunningAndWaitingAtOnceCountsAsRunning) {
  EXPECT_EQ(score("a", {"a"}, {"a"}, 1), 1.0);
}

TEST(LoraAffinityScorerTest, EngineWithoutLoraMetricsScoresZero) {
  EXPECT_EQ(score("a", {}, {}, 0), 0.0);
}

TEST(LoraAffinityScorerTest, ExplainsWhereTheAdapterIs) {
  TestPool pool(2);
  pool.request.target_model = "c";
  fill(pool.signals.lora_rows[0], {"a"}, {"c"}, 2);
  pool.signals.lora_rows[1] = LoraSignal{};
  EXPECT_EQ(pool.explain(LoraAffinityScorer(), 0),
            "adapter waiting (1 running, 1 waiting, at most 2), age 0 ms, fresh");
  EXPECT_EQ(pool.explain(LoraAffinityScorer(), 1), "no LoRA information (never_seen)");
}

}  // namespace
}  // namespace penstock::scheduling
