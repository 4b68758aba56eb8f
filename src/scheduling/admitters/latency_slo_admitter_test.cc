#include "scheduling/admitters/latency_slo_admitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

struct LatencySlo : testing::Test {
  TestPool pool{2};
  const Admitter* admitter = nullptr;
  std::unique_ptr<Plugin> plugin = make_as("latency-slo-admitter", admitter, "", &pool.slots);
  std::vector<HeaderField> fields{{"x-llm-d-slo-ttft-ms", "100"}};

  void SetUp() override {
    pool.request.priority = -1;
    pool.request.headers = fields;
    pool.set_all(Signal::kKvUsage, {0.5, 0.5});
    pool.set_all(Signal::kRunningRequests, {3, 3});
    auto column = pool.attributes->create<LatencyPrediction>(pool.slots.slot(data_keys::kLatencyPrediction));
    column[0].known = column[1].known = true;
  }
  bool admits() { return admitter->admit(*pool.context).ok(); }
};

TEST_F(LatencySlo, RefusesWhenNobodyCanServe) {
  const Status status = admitter->admit(*pool.context);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "no valid endpoint available to serve the request");
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
}

TEST_F(LatencySlo, AColdOrIdleEndpointAdmits) {
  pool.set(Signal::kKvUsage, 1, 0.01);
  EXPECT_TRUE(admits());
  pool.set(Signal::kKvUsage, 1, 0.5);
  pool.set(Signal::kRunningRequests, 0, 0);
  EXPECT_TRUE(admits());
}

TEST_F(LatencySlo, OnlySheddableRequestsWithAnObjectiveAreJudged) {
  pool.request.priority = 0;
  EXPECT_TRUE(admits());
  pool.request.priority = -1;
  for (const std::string_view value : {"0", "-5", "soon", "nan"}) {
    fields = {{"x-slo-tpot-ms", value}};
    pool.request.headers = fields;
    EXPECT_TRUE(admits()) << value;
  }
  fields = {{"x-slo-tpot-ms", "20"}};
  pool.request.headers = fields;
  EXPECT_FALSE(admits());
  // The current name counts even where it is empty.
  fields = {{"x-slo-tpot-ms", "20"}, {"x-llm-d-slo-tpot-ms", ""}};
  pool.request.headers = fields;
  EXPECT_TRUE(admits());
}

TEST_F(LatencySlo, AValidPredictionOrNoneAdmits) {
  auto column = pool.attributes->create<LatencyPrediction>(pool.slots.slot(data_keys::kLatencyPrediction));
  EXPECT_TRUE(admits());
  column[0].known = true;
  EXPECT_FALSE(admits());
  column[0].ttft_valid = column[0].tpot_valid = true;
  EXPECT_TRUE(admits());
}

}  // namespace
}  // namespace penstock::scheduling
