#include "director/rewrites.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace penstock::director {
namespace {

RewriteObject object(std::string name, uint64_t order, std::vector<std::string> models, std::string target) {
  RewriteObject made{std::move(name), order, {}};
  RewriteObject::Rule rule;
  rule.generic = models.empty();
  rule.models = std::move(models);
  rule.targets.push_back({std::move(target), std::nullopt});
  made.rules.push_back(std::move(rule));
  return made;
}

TEST(RewriteTable, TheOldestExactRuleBeatsNewerOnesAndGenericOnes) {
  RewriteTable table({object("generic", 0, {}, "g"), object("newer", 9, {"model1"}, "v2"),
                      object("older", 5, {"model1"}, "v1")});
  Random random(1);
  EXPECT_EQ(table.find("model1")->choose(random), "v1");
  EXPECT_EQ(table.find("model1")->object_name, "older");
  EXPECT_EQ(table.find("model2")->choose(random), "g");
}

TEST(RewriteTable, WithoutTheOlderObjectTheNewerRuleHolds) {
  RewriteTable table({object("newer", 9, {"model1"}, "v2")});
  Random random(1);
  EXPECT_EQ(table.find("model1")->choose(random), "v2");
  EXPECT_EQ(table.find("model2"), nullptr);
}

RewriteTable::Rule rule(std::vector<RewriteObject::Target> targets) {
  RewriteTable::Rule made;
  made.targets = std::move(targets);
  for (const auto& target : made.targets) made.total_weight += target.weight.value_or(0);
  return made;
}

TEST(RewriteRule, TargetsAreChosenInProportionToTheirWeights) {
  const RewriteTable::Rule r = rule({{"v1", 70}, {"v2", 30}});
  std::map<std::string_view, int> counts;
  Random random(42);
  for (int i = 0; i < 10000; ++i) ++counts[r.choose(random)];
  EXPECT_NEAR(counts["v1"], 7000, 200);
  EXPECT_NEAR(counts["v2"], 3000, 200);
}

TEST(RewriteRule, ATargetWithoutWeightIsNeverChosenBesideAWeightedOne) {
  const RewriteTable::Rule r = rule({{"a", std::nullopt}, {"b", 100}});
  Random random(7);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(r.choose(random), "b");
}

TEST(RewriteRule, WithoutAnyWeightTheChoiceIsUniform) {
  const RewriteTable::Rule r = rule({{"z1", std::nullopt}, {"z2", std::nullopt}});
  std::set<std::string_view> seen;
  Random random(7);
  for (int i = 0; i < 100; ++i) seen.insert(r.choose(random));
  EXPECT_EQ(seen.size(), 2U);
}

TEST(RewriteRule, WithoutTargetsTheModelIsEmpty) {
  Random random(1);
  EXPECT_EQ(rule({}).choose(random), "");
}

TEST(RewriteTable, ARuleWhoseMatchesNameNoModelNeverMatches) {
  RewriteObject odd{"odd", 1, {{{}, false, {{"x", std::nullopt}}}}};
  EXPECT_EQ(RewriteTable({odd}).find("anything"), nullptr);
}

}  // namespace
}  // namespace penstock::director
