#include "scheduling/scorers/header_label_affinity_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HeaderLabelAffinityScorerTest, ALabelEqualToTheHeaderScoresOne) {
  TestPool pool(3);
  pool.endpoint(0).labels["zone"] = "a";
  pool.endpoint(1).labels["zone"] = "b";
  const HeaderLabelAffinityScorer scorer({"x-zone", "zone"});
  const HeaderField fields[] = {{"x-zone", "a"}};
  pool.request.headers = fields;
  EXPECT_THAT(pool.score(scorer), ElementsAre(1, 0, 0));
  const HeaderField blank[] = {{"x-zone", " a"}};
  pool.request.headers = blank;
  EXPECT_THAT(pool.score(scorer), ElementsAre(0, 0, 0));
  pool.request.headers = {};
  EXPECT_THAT(pool.score(scorer), ElementsAre(0, 0, 0));
}

TEST(HeaderLabelAffinityScorerTest, NeedsBothNames) {
  const auto none = make_plugin("header-label-affinity-scorer");
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message, HasSubstr("header-label-affinity-scorer requires parameters"));
  EXPECT_FALSE(make_plugin("header-label-affinity-scorer", "headerName: x").ok());
  EXPECT_TRUE(make_plugin("header-label-affinity-scorer", "{headerName: X, labelKey: y}").ok());
}

}  // namespace
}  // namespace penstock::scheduling
