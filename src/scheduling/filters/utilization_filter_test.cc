#include "scheduling/filters/utilization_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(UtilizationFilterTest, KeepsWhatIsAtOrBelowEveryLimit) {
  TestPool pool(2);
  const Filter* filter = nullptr;
  const auto waiting = make_as("utilization-filter", filter,
                               "conditions: [{metric: waiting-queue, maxValue: 5}]", &pool.slots);
  pool.set_all(Signal::kWaitingRequests, {5, 6});
  EXPECT_THAT(pool.keep(*filter), ElementsAre("e0"));

  const auto both = make_as("utilization-filter", filter,
                            "conditions: [{metric: kv-cache-utilization, maxValue: 0.9}, {metric: "
                            "waiting-queue, maxValue: 2}]",
                            &pool.slots);
  pool.set_all(Signal::kWaitingRequests, {0, 2});
  pool.set_all(Signal::kKvUsage, {0.95, 0.9});
  EXPECT_THAT(pool.keep(*filter), ElementsAre("e1"));
}

TEST(UtilizationFilterTest, RequestsInFlightCountAndWhatNobodyKnowsIsZero) {
  TestPool pool(2);
  const Filter* filter = nullptr;
  const auto plugin = make_as("utilization-filter", filter,
                              "{conditions: [{metric: active-requests, maxValue: 1}, {metric: "
                              "running-requests, maxValue: 3}]}",
                              &pool.slots);
  EXPECT_THAT(pool.keep(*filter), ElementsAre("e0", "e1"));
  auto load = pool.attributes->create<InFlightLoad>(pool.slots.slot(data_keys::kInFlightLoad));
  load[1].requests = 2;
  pool.set(Signal::kRunningRequests, 0, 9, SignalState::kNeverSeen);
  EXPECT_THAT(pool.keep(*filter), ElementsAre("e0"));
  DataDeclaration declaration;
  plugin->declare_data(declaration);
  EXPECT_EQ(declaration.consumes.size(), 1U);
}

TEST(UtilizationFilterTest, FallsBackToAllWhereNobodyIsLeft) {
  TestPool pool(1);
  pool.set(Signal::kWaitingRequests, 0, 9);
  const Filter* filter = nullptr;
  const auto strict = make_as("utilization-filter", filter,
                              "conditions: [{metric: waiting-queue, maxValue: 0}]", &pool.slots);
  EXPECT_THAT(pool.keep(*filter), IsEmpty());
  const auto lenient =
      make_as("utilization-filter", filter,
              "{fallbackOnEmpty: true, conditions: [{metric: waiting-queue, maxValue: 0}]}", &pool.slots);
  EXPECT_THAT(pool.keep(*filter), ElementsAre("e0"));
}

TEST(UtilizationFilterTest, RefusesBadConditions) {
  const auto error = [](std::string_view parameters) {
    const auto made = make_plugin("utilization-filter", parameters);
    return made.ok() ? std::string("made") : made.error().message;
  };
  EXPECT_THAT(error(""), HasSubstr("at least one condition must be specified"));
  EXPECT_THAT(error("conditions: []"), HasSubstr("at least one condition must be specified"));
  EXPECT_THAT(error("conditions: [{metric: load, maxValue: 1}]"), HasSubstr("got \"load\""));
  EXPECT_THAT(error("conditions: [{metric: waiting-queue}]"), HasSubstr("must be specified"));
  EXPECT_THAT(error("conditions: [{metric: waiting-queue, maxValue: -1}]"), HasSubstr("must be >= 0"));
  EXPECT_THAT(error("conditions: [{metric: kv-cache-utilization, maxValue: 1.1}]"),
              HasSubstr("must be <= 1"));
}

}  // namespace
}  // namespace penstock::scheduling
