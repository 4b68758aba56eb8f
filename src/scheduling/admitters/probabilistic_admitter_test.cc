#include "scheduling/admitters/probabilistic_admitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::HasSubstr;

TEST(ProbabilisticAdmitterTest, RefusalsRiseWithSaturation) {
  struct Case {
    std::vector<double> queue;
    std::vector<double> kv;
    double saturation;
    double probability;
  };
  const ProbabilisticAdmitter admitter({});
  for (const Case& c :
       {Case{{0}, {0.08}, 0.1, 0.003}, Case{{1}, {0.2}, 0.25, 0.29296875}, Case{{1}, {0}, 0.2, 0.096},
        Case{{0}, {0.24}, 0.3, 0.729}, Case{{1, 2}, {0.1, 0.4}, 0.35, 1}, Case{{5}, {0.8}, 1, 1}}) {
    TestPool pool(c.queue.size());
    pool.set_all(Signal::kWaitingRequests, c.queue);
    pool.set_all(Signal::kKvUsage, c.kv);
    EXPECT_NEAR(admitter.saturation(*pool.context), c.saturation, 1e-9);
    EXPECT_NEAR(admitter.probability(c.saturation), c.probability, 1e-9);
  }
}

TEST(ProbabilisticAdmitterTest, AnEndpointNobodyKnowsIsFull) {
  TestPool pool(2);
  pool.set(Signal::kWaitingRequests, 0, 0, SignalState::kNeverSeen);
  pool.set(Signal::kKvUsage, 0, 0, SignalState::kNeverSeen);
  EXPECT_EQ(ProbabilisticAdmitter({}).saturation(*pool.context), 0.5);
}

TEST(ProbabilisticAdmitterTest, OnlySheddableRequestsAreRefused) {
  TestPool pool(1);
  pool.set(Signal::kWaitingRequests, 0, 5);
  const ProbabilisticAdmitter admitter({});
  EXPECT_TRUE(admitter.admit(*pool.context).ok());
  pool.request.priority = -1;
  const Status status = admitter.admit(*pool.context);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "probabilistic-admitter: rejected, saturation=1.000 prob=1.00");
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
}

TEST(ProbabilisticAdmitterTest, EveryParameterMustBePositive) {
  for (const std::string_view name : {"queueDepthThreshold", "kvCacheUtilThreshold", "power", "k"}) {
    const auto made = make_plugin("probabilistic-admitter", std::string(name) + ": 0");
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.error().message,
                HasSubstr("plugin 'probabilistic-admitter': " + std::string(name) + " must be > 0, got 0"));
  }
}

}  // namespace
}  // namespace penstock::scheduling
