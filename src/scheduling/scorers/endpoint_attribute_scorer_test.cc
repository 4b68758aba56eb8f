#include "scheduling/scorers/endpoint_attribute_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kClose = 1e-4;

std::vector<double> score(const std::string& algorithm, const std::vector<std::optional<double>>& values) {
  TestPool pool(values.size());
  const Scorer* scorer = nullptr;
  const auto plugin = make_as(
      "endpoint-attribute-scorer", scorer,
      "{attributeKey: GPUUtilization, producer: dcgm-extractor, algorithm: " + algorithm + "}", &pool.slots);
  if (scorer == nullptr) return {};
  auto column = pool.attributes->create<EndpointScalar>(pool.slots.slot(data_keys::kGpuUtilization));
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i]) column[i] = {true, *values[i], kNever};
  }
  return pool.score(*scorer);
}

TEST(EndpointAttributeScorerTest, ExplanationsHaveTheUnitWhereItIsKnown) {
  const auto explained = [](const std::string& attribute, const DataKey& key) {
    TestPool pool(1);
    const Scorer* scorer = nullptr;
    const auto plugin =
        make_as("endpoint-attribute-scorer", scorer,
                "{" + attribute + ", algorithm: {type: linear_lower_is_better}}", &pool.slots);
    pool.attributes->create<EndpointScalar>(pool.slots.slot(key))[0] = {true, 0.42, kNever};
    return pool.explain(*scorer, 0);
  };
  EXPECT_EQ(explained("attributeKey: GPUUtilization, producer: dcgm-extractor", data_keys::kGpuUtilization),
            "GPUUtilization 0.42 ratio");
  EXPECT_EQ(explained("attributeKey: mine", {"mine", "core-metrics-extractor"}), "mine 0.42");
}

TEST(EndpointAttributeScorerTest, AFixedRangeClamps) {
  const std::string range = ", normalization: {fixedRange: {min: 0, max: 1}}}";
  EXPECT_THAT(score("{type: linear_lower_is_better" + range, {0.3, -1, 2}),
              ElementsAre(DoubleNear(0.7, kClose), 1, 0));
  EXPECT_THAT(score("{type: linear_higher_is_better" + range, {0.3, -1, 2}),
              ElementsAre(DoubleNear(0.3, kClose), 0, 1));
}

TEST(EndpointAttributeScorerTest, TheAdaptiveRangeIsTheCandidates) {
  EXPECT_THAT(score("{type: linear_lower_is_better}", {10, 20, 40}),
              ElementsAre(1, DoubleNear(0.6667, kClose), 0));
  EXPECT_THAT(score("{type: linear_higher_is_better, normalization: {adaptiveRange: {}}}", {10, 20, 40}),
              ElementsAre(0, DoubleNear(0.3333, kClose), 1));
  EXPECT_THAT(score("{type: linear_lower_is_better}", {5, 5, std::nullopt}), ElementsAre(1, 1, 0));
}

TEST(EndpointAttributeScorerTest, RefusesBadParameters) {
  const auto error = [](std::string_view parameters) {
    const auto made = make_plugin("endpoint-attribute-scorer", parameters);
    return made.ok() ? std::string("made") : made.error().message;
  };
  EXPECT_THAT(error("{algorithm: {type: linear_lower_is_better}}"),
              HasSubstr("attributeKey must be specified"));
  EXPECT_THAT(error("{attributeKey: m, algorithm: {type: log}}"), HasSubstr("got \"log\""));
  EXPECT_THAT(error("{attributeKey: m, algorithm: {type: linear_lower_is_better, normalization: {fixedRange: "
                    "{min: 1, max: 1}}}}"),
              HasSubstr("must be less than max"));
  EXPECT_THAT(error("{attributeKey: m, algorithm: {type: linear_lower_is_better, normalization: {fixedRange: "
                    "{max: 1}, adaptiveRange: {}}}}"),
              HasSubstr("only one of fixedRange and adaptiveRange"));
}

}  // namespace
}  // namespace penstock::scheduling
