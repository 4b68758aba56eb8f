#include "scheduling/filters/label_selector_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TestPool& labelled(TestPool& pool, std::vector<std::map<std::string, std::string, std::less<>>> labels) {
  for (size_t i = 0; i < labels.size(); ++i) pool.endpoint(i).labels = labels[i];
  return pool;
}

std::vector<std::string> keep(TestPool& pool, std::string_view parameters,
                              std::string_view type = "label-selector-filter") {
  const Filter* filter = nullptr;
  auto plugin = make_as(type, filter, parameters);
  if (filter == nullptr) return {"cannot be made"};
  return pool.keep(*filter);
}

TEST(LabelSelectorFilterTest, MatchLabelsMustAllBeThere) {
  TestPool pool(3);
  labelled(pool, {{{"a", "1"}}, {{"a", "2"}}, {}});
  EXPECT_THAT(keep(pool, R"({matchLabels: {a: "1"}})"), ElementsAre("e0"));
}

TEST(LabelSelectorFilterTest, NotInAlsoMatchesWithoutTheLabel) {
  TestPool pool(2);
  labelled(pool, {{}, {{"r", "x"}}});
  EXPECT_THAT(keep(pool, "{matchExpressions: [{key: r, operator: NotIn, values: [x]}]}"), ElementsAre("e0"));
}

TEST(LabelSelectorFilterTest, EveryOperatorHasKubernetesMeaning) {
  TestPool pool(3);
  labelled(pool, {{{"r", "x"}}, {{"r", "y"}}, {}});
  EXPECT_THAT(keep(pool, "{matchExpressions: [{key: r, operator: In, values: [x, z]}]}"), ElementsAre("e0"));
  EXPECT_THAT(keep(pool, "{matchExpressions: [{key: r, operator: Exists}]}"), ElementsAre("e0", "e1"));
  EXPECT_THAT(keep(pool, "{matchExpressions: [{key: r, operator: DoesNotExist}]}"), ElementsAre("e2"));
}

TEST(LabelSelectorFilterTest, EmptySelectorMatchesEverything) {
  TestPool pool(2);
  EXPECT_THAT(keep(pool, ""), ElementsAre("e0", "e1"));
  EXPECT_THAT(keep(pool, "{matchLabels: {}}"), ElementsAre("e0", "e1"));
  EXPECT_THAT(keep(pool, "", "by-label-selector"), ElementsAre("e0", "e1"));
}

TEST(LabelSelectorFilterTest, RefusesWhatIsNoSelector) {
  for (const char* parameters :
       {"{matchLabels: {a: 1}}", "{matchLabels: [a]}", "{matchLabels: {'-a': x}}",
        "{matchLabels: {a: 'b c'}}", "{matchExpressions: [{key: r, operator: Near, values: [x]}]}",
        "{matchExpressions: [{key: r, operator: In}]}",
        "{matchExpressions: [{key: r, operator: Exists, values: [x]}]}", "{matchExpressions: [r]}",
        "{matchExpressions: {key: r}}", "{matchExpressions: [{key: r, op: In}]}", "{matchNames: {}}"}) {
    EXPECT_FALSE(make_plugin("label-selector-filter", parameters).ok()) << parameters;
  }
}

TEST(LabelSelectorFilterTest, NamesTheBadOperator) {
  auto plugin =
      make_plugin("label-selector-filter", "{matchExpressions: [{key: r, operator: Near, values: [x]}]}");
  ASSERT_FALSE(plugin.ok());
  EXPECT_THAT(plugin.error().message, HasSubstr("\"Near\" is not a valid label selector operator"));
}

}  // namespace
}  // namespace penstock::scheduling
