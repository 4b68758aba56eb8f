#include "scheduling/filters/endpoint_attribute_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::string_view kLess =
    "{attribute: m, algorithm: {type: threshold, threshold: {operator: LessThan, value: ";

std::vector<std::string> keep(const std::string& parameters,
                              const std::vector<std::optional<double>>& values) {
  TestPool pool(values.size());
  const Filter* filter = nullptr;
  const auto plugin = make_as("endpoint-attribute-filter", filter, parameters, &pool.slots);
  if (filter == nullptr) return {"not made"};
  auto column = pool.attributes->create<EndpointScalar>(pool.slots.slot({"m", "core-metrics-extractor"}));
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i]) column[i] = {true, *values[i], kNever};
  }
  return pool.keep(*filter);
}

TEST(EndpointAttributeFilterTest, KeepsWhatIsBelowTheThresholdAndWhatNobodyKnows) {
  const std::string rest = "0.8}}}";
  EXPECT_THAT(keep(std::string(kLess) + rest, {0.5, 0.8, std::nullopt}), ElementsAre("e0", "e2"));
  EXPECT_THAT(keep(std::string(kLess) + "0.8}}, onMissing: Fail}", {0.5, 0.8, std::nullopt}),
              ElementsAre("e0"));
}

TEST(EndpointAttributeFilterTest, FallsBackToAllWhereNobodyIsLeft) {
  EXPECT_THAT(keep(std::string(kLess) + "0.1}}}", {0.5, 0.8}), IsEmpty());
  EXPECT_THAT(keep(std::string(kLess) + "0.1}}, fallbackOnEmpty: true}", {0.5, 0.8}),
              ElementsAre("e0", "e1"));
}

TEST(EndpointAttributeFilterTest, ComparesAsTheOperatorSays) {
  const auto with = [](std::string_view op) {
    return keep("{attribute: m, algorithm: {type: threshold, threshold: {operator: " + std::string(op) +
                    ", value: 2}}}",
                {1, 2, 3, std::nan("")});
  };
  EXPECT_THAT(with("LessThanOrEqual"), ElementsAre("e0", "e1"));
  EXPECT_THAT(with("GreaterThan"), ElementsAre("e2"));
  EXPECT_THAT(with("GreaterThanOrEqual"), ElementsAre("e1", "e2"));
  EXPECT_THAT(with("Equal"), ElementsAre("e1"));
  EXPECT_THAT(with("NotEqual"), ElementsAre("e0", "e2", "e3"));
}

TEST(EndpointAttributeFilterTest, RefusesBadParameters) {
  const auto error = [](std::string_view parameters) {
    const auto made = make_plugin("endpoint-attribute-filter", parameters);
    return made.ok() ? std::string("made") : made.error().message;
  };
  EXPECT_THAT(error("{algorithm: {type: threshold, threshold: {operator: Equal}}}"),
              HasSubstr("attribute must be specified"));
  EXPECT_THAT(error("{attribute: Topology/x, algorithm: {type: threshold, threshold: {operator: Equal}}}"),
              HasSubstr("did you mean attribute: 'Topology', producer: 'x'?"));
  EXPECT_THAT(error("{attribute: m, algorithm: {type: threshold, threshold: {operator: Equal, value: x}}}"),
              HasSubstr("parameters.algorithm.threshold.value: expected number, got string \"x\" (line 1)"));
  EXPECT_THAT(error("{attribute: m, algorithm: {type: range}}"), HasSubstr("must be \"threshold\""));
  EXPECT_THAT(error("{attribute: m, algorithm: {type: threshold, threshold: {operator: Near}}}"),
              HasSubstr("got \"Near\""));
  EXPECT_THAT(error("{attribute: m, onMissing: Maybe, algorithm: {type: threshold, threshold: {operator: "
                    "Equal}}}"),
              HasSubstr("onMissing"));
  EXPECT_THAT(error("{attribute: m, algorithm: {type: threshold, level: 1}}"), HasSubstr("level"));
}

}  // namespace
}  // namespace penstock::scheduling
