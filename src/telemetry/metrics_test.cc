#include "telemetry/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::telemetry {
namespace {

using ::testing::HasSubstr;

TEST(MetricsTest, RendersCountersWithEscapedLabels) {
  MetricRegistry registry;
  auto& family = registry.counter({.name = "x_total", .help = "Things.", .labels = {"a", "b"}});
  family.with({"1", "say \"hi\"\n"}).add(2);
  family.with({"1", "say \"hi\"\n"}).add();
  EXPECT_EQ(registry.render(),
            "# HELP x_total Things.\n# TYPE x_total counter\nx_total{a=\"1\",b=\"say \\\"hi\\\"\\n\"} 3\n");
}

TEST(MetricsTest, HistogramBucketsAreCumulative) {
  MetricRegistry registry;
  static constexpr double kBounds[] = {0.1, 1};
  auto& family = registry.histogram({.name = "h", .help = "H.", .labels = {}, .bounds = kBounds});
  family.with({}).observe(0.1);
  family.with({}).observe(0.5);
  family.with({}).observe(7);
  const std::string text = registry.render();
  EXPECT_THAT(text, HasSubstr("h_bucket{le=\"0.1\"} 1\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("h_sum 7.6\nh_count 3\n"));
}

TEST(MetricsTest, TwinSumsOverTheLabelsItLacks) {
  MetricRegistry registry;
  auto& family = registry.counter({.name = "new_total",
                                   .help = "N.",
                                   .labels = {"model", "tenant"},
                                   .twins = {{.name = "old_total", .labels = {{"pod", "model"}}}}});
  family.with({"m", "a"}).add(1);
  family.with({"m", "b"}).add(2);
  EXPECT_THAT(registry.render(), HasSubstr("old_total{pod=\"m\"} 3\n"));
}

TEST(MetricsTest, FamiliesOfTheReferenceHaveItsMarkInFrontOfTheirHelp) {
  MetricRegistry registry;
  registry
      .counter({.name = "llm_d_epp_a_total",
                .help = "A.",
                .labels = {},
                .twins = {{.name = "old_a_total", .labels = {}}}})
      .with({})
      .add();
  registry.counter({.name = "llm_d_epp_b_total", .help = "[ALPHA] B.", .labels = {}}).with({}).add();
  registry.counter({.name = "penstock_c_total", .help = "C.", .labels = {}}).with({}).add();
  const std::string text = registry.render();
  EXPECT_THAT(text, HasSubstr("# HELP llm_d_epp_a_total [ALPHA] A.\n"));
  EXPECT_THAT(text, HasSubstr("# HELP old_a_total [ALPHA] [Deprecated: Use llm_d_epp_a_total] A.\n"));
  EXPECT_THAT(text, HasSubstr("# HELP llm_d_epp_b_total [ALPHA] B.\n"));
  EXPECT_THAT(text, HasSubstr("# HELP penstock_c_total C.\n"));
}

TEST(MetricsTest, FurtherSeriesThanTheBoundFallTogether) {
  MetricRegistry registry;
  auto& family = registry.counter({.name = "b_total", .help = "B.", .labels = {"l"}, .max_series = 2});
  for (const char* v : {"1", "2", "3", "4"}) family.with({v}).add();
  EXPECT_THAT(registry.render(), HasSubstr("b_total{l=\"other\"} 2\n"));
  EXPECT_EQ(family.series(), 3U);
}

TEST(MetricsTest, RemovedEndpointLeavesNoSeries) {
  MetricRegistry registry;
  auto& family = registry.gauge({.name = "g", .help = "G.", .labels = {"pool", "endpoint"}});
  family.update({"p", "gone"}, [](Gauge& gauge) { gauge.set(1); });
  family.with({"p", "here"}).set(2);
  family.remove({"p", "gone"});
  family.remove({"p", "never"});
  EXPECT_EQ(family.series(), 1U);
  EXPECT_THAT(registry.render(), HasSubstr("g{pool=\"p\",endpoint=\"here\"} 2\n"));
}

TEST(MetricsTest, HistogramsFoldEarlierThanCounters) {
  MetricRegistry registry;
  static constexpr double kBounds[] = {1};
  auto& histogram = registry.histogram({.name = "h", .help = "h", .labels = {"l"}, .bounds = kBounds});
  auto& counter = registry.counter({.name = "c", .help = "c", .labels = {"l"}});
  for (size_t i = 0; i < 2 * FamilyOptions::kMaxHistogramSeries; ++i) {
    histogram.with({std::to_string(i)}).observe(1);
    counter.with({std::to_string(i)}).add();
  }
  EXPECT_EQ(histogram.series(), FamilyOptions::kMaxHistogramSeries + 1);
  EXPECT_EQ(histogram.with({"other"}).count(), FamilyOptions::kMaxHistogramSeries);
  EXPECT_EQ(counter.series(), 2 * FamilyOptions::kMaxHistogramSeries);
}

TEST(MetricsTest, PartsAreOnThePageWithTheirLabelEachFamilyInOnePiece) {
  MetricRegistry whole;
  whole.counter({.name = "a", .help = "first", .labels = {}}).with({}).add();
  whole.add_collector([](Writer& out) { out.header("c", "collected", MetricType::kGauge); });
  static constexpr double kBounds[] = {1};
  {
    MetricRegistry one(whole, "pool", "ns/one");
    MetricRegistry two(whole, "pool", "ns/two");
    for (MetricRegistry* part : {&one, &two}) {
      part->counter(
              {.name = "b", .help = "second", .labels = {"l"}, .twins = {{.name = "old", .labels = {}}}})
          .with({"x"})
          .add(2);
      part->gauge({.name = "named", .help = "has it", .labels = {"pool"}}).with({"own"}).set(1);
      part->add_collector([](Writer& out) {
        out.header("c", "collected", MetricType::kGauge);
        out.sample("c", {}, 3);
      });
    }
    one.histogram({.name = "h", .help = "h", .labels = {}, .bounds = kBounds}).with({}).observe(2);
    EXPECT_EQ(
        whole.render(),
        "# HELP a first\n# TYPE a counter\na 1\n"
        "# HELP c collected\n# TYPE c gauge\nc{pool=\"ns/one\"} 3\nc{pool=\"ns/two\"} 3\n"
        "# HELP b second\n# TYPE b counter\nb{l=\"x\",pool=\"ns/one\"} 2\nb{l=\"x\",pool=\"ns/two\"} 2\n"
        "# HELP old [ALPHA] [Deprecated: Use b] second\n# TYPE old counter\n"
        "old{pool=\"ns/one\"} 2\nold{pool=\"ns/two\"} 2\n"
        "# HELP h h\n# TYPE h histogram\nh_bucket{le=\"1\",pool=\"ns/one\"} 0\n"
        "h_bucket{le=\"+Inf\",pool=\"ns/one\"} 1\nh_sum{pool=\"ns/one\"} 2\nh_count{pool=\"ns/one\"} 1\n"
        "# HELP named has it\n# TYPE named gauge\n"
        "named{pool=\"ns/one\"} 1\nnamed{pool=\"ns/two\"} 1\n");
  }
  EXPECT_EQ(whole.render(), "# HELP a first\n# TYPE a counter\na 1\n# HELP c collected\n# TYPE c gauge\n");
}

TEST(LabelBudgetTest, FoldsAfterTheLimitButNeverPinnedOrKnownValues) {
  LabelBudget budget(2);
  EXPECT_EQ(budget.admit("a"), "a");
  EXPECT_EQ(budget.admit("b"), "b");
  EXPECT_EQ(budget.admit("c"), "other");
  EXPECT_EQ(budget.admit("a"), "a");
  EXPECT_EQ(budget.admit(""), "");
  budget.pin("c");
  EXPECT_EQ(budget.admit("c"), "c");
}

TEST(LabelBudgetTest, FoldsWhatWouldSpoilThePage) {
  LabelBudget budget(10);
  EXPECT_EQ(budget.admit("\xff"), "other");
  EXPECT_EQ(budget.admit("cut \xc3"), "other");
  EXPECT_EQ(budget.admit("\xc3\xa9"), "\xc3\xa9");
  const std::string longest(LabelBudget::kMaxBytes, 'm');
  EXPECT_EQ(budget.admit(longest), longest);
  EXPECT_EQ(budget.admit(longest + "m"), "other");
}

}  // namespace
}  // namespace penstock::telemetry
