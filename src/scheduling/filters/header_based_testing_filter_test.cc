#include "scheduling/filters/header_based_testing_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct HeaderBasedTesting : testing::Test {
  TestPool pool{4};
  HeaderBasedTestingFilter filter;
  void SetUp() override {
    const std::pair<std::string, uint16_t> places[] = {
        {"10.0.0.1", 8000}, {"10.0.0.1", 8001}, {"10.0.0.2", 8000}, {"fd00::1", 8000}};
    for (size_t i = 0; i < 4; ++i) {
      pool.endpoint(i).address = places[i].first;
      pool.endpoint(i).port = places[i].second;
    }
  }
  std::vector<std::string> keep(std::string_view header) {
    const HeaderField fields[] = {{"test-epp-endpoint-selection", header}};
    pool.request.headers = fields;
    return pool.keep(filter);
  }
};

TEST_F(HeaderBasedTesting, KeepsTheListedEndpointsInTheirOrder) {
  EXPECT_THAT(keep("10.0.0.2, 10.0.0.1:8000"), ElementsAre("e2", "e0"));
  EXPECT_THAT(keep("[fd00::1]:8000"), ElementsAre("e3"));
  EXPECT_THAT(keep("fd00::1"), ElementsAre("e3"));
}

TEST_F(HeaderBasedTesting, AnAddressAloneIsTheLastEndpointThatHasIt) {
  EXPECT_THAT(keep("10.0.0.1"), ElementsAre("e1"));
  EXPECT_THAT(keep("10.0.0.1:8000,10.0.0.1:8001,10.0.0.1"), ElementsAre("e0"));
}

TEST_F(HeaderBasedTesting, NothingListedLeavesNobody) {
  EXPECT_THAT(keep(" "), IsEmpty());
  EXPECT_THAT(keep("10.0.0.9,10.0.0.1:1"), IsEmpty());
  pool.request.headers = {};
  EXPECT_THAT(pool.keep(filter), IsEmpty());
}

}  // namespace
}  // namespace penstock::scheduling
