#include "scheduling/filters/by_label.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ByLabelTest, KeepsValidValues) {
  TestPool pool(3);
  pool.endpoint(0).labels["role"] = "decode";
  pool.endpoint(1).labels["role"] = "prefill";
  EXPECT_THAT(pool.keep(ByLabel({"role", {"decode"}, false})), ElementsAre("e0"));
  EXPECT_THAT(pool.keep(ByLabel({"role", {"decode"}, true})), ElementsAre("e0", "e2"));
  EXPECT_THAT(pool.keep(ByLabel({"role", {""}, false})), ElementsAre("e2"));
}

TEST(ByLabelTest, RefusesRulesThatKeepNothing) {
  auto no_label = make_plugin("by-label", "validValues: [a]");
  ASSERT_FALSE(no_label.ok());
  EXPECT_THAT(no_label.error().message, HasSubstr("'label' must be specified"));
  auto no_values = make_plugin("by-label", "label: role");
  ASSERT_FALSE(no_values.ok());
  EXPECT_THAT(no_values.error().message,
              HasSubstr("either 'validValues' must be non-empty or 'allowsNoLabel' must be true"));
  EXPECT_TRUE(make_plugin("by-label", "{label: role, allowsNoLabel: true}").ok());
}

}  // namespace
}  // namespace penstock::scheduling
