#include "scheduling/pickers/round_robin_picker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "scheduling/pickers/pickers_test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(RoundRobinPickerTest, TakesCandidatesInTurn) {
  TestPool pool(3);
  const RoundRobinPicker picker({});
  std::vector<Candidate> order;
  for (int i = 0; i < 4; ++i) order.push_back(pick(picker, pool, {5, 0, 1})[0]);
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 0));
}

TEST(RoundRobinPickerTest, FallbacksAreTheNextInTurn) {
  TestPool pool(3);
  const RoundRobinPicker picker({2});
  pick(picker, pool, {0, 0, 0});
  pick(picker, pool, {0, 0, 0});
  EXPECT_THAT(pick(picker, pool, {0, 0, 0}), ElementsAre(2, 0));
}

TEST(RoundRobinPickerTest, ExplainingTakesNoTurn) {
  TestPool pool(3);
  const RoundRobinPicker picker({});
  pool.context->explain = true;
  EXPECT_THAT(pick(picker, pool, {0, 0, 0}), ElementsAre(0));
  EXPECT_THAT(pick(picker, pool, {0, 0, 0}), ElementsAre(0));
  pool.context->explain = false;
  EXPECT_THAT(pick(picker, pool, {0, 0, 0}), ElementsAre(0));
  EXPECT_THAT(pick(picker, pool, {0, 0, 0}), ElementsAre(1));
}

TEST(RoundRobinPickerTest, TheTurnIsFairOverThreads) {
  const RoundRobinPicker picker({});
  constexpr int kPicks = 1000;
  std::array<std::vector<int>, 4> counts;
  {
    std::vector<std::jthread> threads;
    for (auto& count : counts) {
      threads.emplace_back([&count, &picker] {
        TestPool pool(8);
        count = destinations(picker, pool, std::vector<double>(8), kPicks);
      });
    }
  }
  std::vector<int> sum(8, 0);
  for (const auto& count : counts) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += count[i];
  }
  EXPECT_THAT(sum, Each(4 * kPicks / 8));
}

}  // namespace
}  // namespace penstock::scheduling
