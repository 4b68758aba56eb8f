#include "scheduling/screeners/disaggregatedset_rollout_screener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "scheduling/label_selector_text.h"
#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Rules = DisaggregatedSetRolloutScreener;

constexpr std::string_view kParameters = R"(
scope: {labelSelector: "app=llm"}
headerSelectors:
- {name: rev, headerName: X-Revision, labelKey: disaggregatedset.x-k8s.io/revision, mode: strict}
- {name: slice, headerName: x-slice, labelKey: slice, mode: prefer}
revisionGating: {mode: sum, requireRoles: {values: [prefill, decode]}}
)";

TEST(RolloutScreenerTest, SharesFollowTheWorkersOfCoveredRevisions) {
  const Rules::Counts counts{{"A", {{"prefill", 2}, {"decode", 9}}},
                             {"B", {{"prefill", 1}, {"decode", 1}}},
                             {"C", {{"prefill", 3}}}};
  Rules::Params params;
  params.required_roles = {"prefill", "decode"};
  auto shares = Rules::shares_of(params, counts);
  EXPECT_DOUBLE_EQ(shares["A"], 11.0 / 13);
  EXPECT_DOUBLE_EQ(shares["B"], 2.0 / 13);
  EXPECT_EQ(shares["C"], 0);
  const std::array<double, 3> weights{shares["A"], shares["B"], shares["C"]};
  EXPECT_EQ(Rules::draw(weights, 0.5), 0U);
  EXPECT_EQ(Rules::draw(weights, 0.9), 1U);
  params.gating = Rules::Gating::kMaxRole;
  shares = Rules::shares_of(params, counts);
  EXPECT_DOUBLE_EQ(shares["A"], 0.9);
  EXPECT_DOUBLE_EQ(shares["B"], 0.1);
  EXPECT_EQ(Rules::draw({}, 0.5), 0U);
  EXPECT_EQ(Rules::draw(std::array<double, 2>{0, 0}, 0.5), 2U);
}

struct Rollout : testing::Test {
  // e0 prefill A, e1 decode A, e2 prefill B, e3 decode B, e4 prefill C, e5 without a revision.
  TestPool pool{6};
  const Screener* screener = nullptr;
  std::unique_ptr<Plugin> plugin = make_as("disaggregatedset-rollout-screener", screener, kParameters);
  std::vector<HeaderField> fields;

  void SetUp() override {
    const std::string_view revisions[] = {"A", "A", "B", "B", "C", ""};
    const std::string_view roles[] = {"prefill", "decode", "prefill", "decode", "prefill", "decode"};
    for (size_t i = 0; i < 6; ++i) {
      auto& labels = pool.endpoint(i).labels;
      labels["app"] = "llm";
      labels["disaggregatedset.x-k8s.io/role"] = roles[i];
      if (!revisions[i].empty()) labels["disaggregatedset.x-k8s.io/revision"] = revisions[i];
    }
    pool.endpoint(1).labels["slice"] = "s1";
  }
  std::vector<std::string> keep(uint64_t seed = 1) {
    pool.restart(seed);
    std::vector<Candidate> list = pool.candidates;
    list.resize(screener->screen(*pool.context, list));
    std::vector<std::string> out;
    for (const Candidate c : list) out.push_back(pool.pool.endpoints[c]->name);
    return out;
  }
};

TEST_F(Rollout, ARequestStaysWithinOneCoveredRevision) {
  std::set<std::vector<std::string>> seen;
  for (uint64_t seed = 1; seed < 30; ++seed) seen.insert(keep(seed));
  EXPECT_THAT(seen, ElementsAre(ElementsAre("e0", "e1"), ElementsAre("e2", "e3")));
}

TEST_F(Rollout, AStrictHeaderChoosesAndMayLeaveNobody) {
  fields = {{"x-revision", "B"}};
  pool.request.headers = fields;
  EXPECT_THAT(keep(), ElementsAre("e2", "e3"));
  fields = {{"x-revision", "C"}};
  pool.request.headers = fields;
  EXPECT_THAT(keep(), IsEmpty());
}

TEST_F(Rollout, ADrainingOrForeignWorkerCoversNothing) {
  pool.endpoint(1).draining = true;
  pool.endpoint(3).labels["app"] = "other";
  EXPECT_THAT(keep(), IsEmpty());
}

// Pods cover revisions whether or not they are endpoints of the pool.
TEST_F(Rollout, WorkersAreTheReadyPodsOnceSomebodyTellsOfThem) {
  const auto* extractor = dynamic_cast<const ObjectExtractor*>(plugin.get());
  ASSERT_NE(extractor, nullptr);
  const auto pod = [](const std::string& name, const std::string& revision, const std::string& role,
                      const std::string& ready) {
    const std::string text =
        "{metadata: {labels: {app: llm, disaggregatedset.x-k8s.io/revision: " + revision +
        ", disaggregatedset.x-k8s.io/role: " + role + "}}, status: {conditions: [{type: Ready, status: '" +
        ready + "'}]}}";
    return std::make_shared<const NotifiedObject>(
        NotifiedObject{"ns", name, *config::parse_document(text, "test")});
  };
  extractor->objects({pod("a", "C", "prefill", "True"), pod("b", "C", "decode", "True"),
                      pod("c", "A", "prefill", "True"), pod("d", "A", "decode", "False")});
  EXPECT_THAT(keep(), ElementsAre("e4")) << "C is covered, A is not";
  extractor->objects({pod("c", "A", "prefill", "True"), pod("d", "A", "decode", "True")});
  EXPECT_THAT(keep(), ElementsAre("e0", "e1"));
  extractor->objects({});
  EXPECT_THAT(keep(), IsEmpty());
}

TEST_F(Rollout, ARevisionThatIsGoneLeavesNoSeries) {
  telemetry::MetricRegistry metrics;
  Rules::Params params;
  params.required_roles = {"prefill", "decode"};
  const Rules rules(params, std::make_shared<RevisionShares>("r", "sum", metrics), "r", metrics);
  const auto shares = [&] {
    std::vector<Candidate> list = pool.candidates;
    rules.screen(*pool.context, list);
    return metrics.render();
  };
  EXPECT_THAT(shares(), HasSubstr("revision=\"B\"} 0.5\n"));
  for (const size_t i : {2, 3}) pool.endpoint(i).labels.clear();
  // Labels belong to the membership: they are read again when it changes.
  EXPECT_THAT(shares(), HasSubstr("revision=\"B\"} 0.5\n"));
  ++pool.pool.epoch;
  const std::string after = shares();
  EXPECT_THAT(after, HasSubstr("revision=\"A\"} 1\n"));
  EXPECT_THAT(after, HasSubstr("revision=\"C\"} 0\n"));
  EXPECT_THAT(after, Not(HasSubstr("revision=\"B\"")));
}

TEST_F(Rollout, AReloadLeavesNoGaugeThatNobodyKeepsAnyMore) {
  telemetry::MetricRegistry metrics;
  const ManualClock clock;
  WarmState warm;
  const auto make = [&](std::string_view parameters, std::string_view name) {
    const auto node = config::parse_document(parameters, "test");
    EXPECT_TRUE(node.ok());
    PluginFactoryContext context{name, &*node, "parameters", metrics, clock, 1};
    context.warm = &warm;
    for (const PluginDescriptor& descriptor : scheduling_plugins()) {
      if (descriptor.type == Rules::kType) return std::move(descriptor.create(context)).value();
    }
    return std::unique_ptr<Plugin>();
  };
  // A policy epoch with the screener; the one before ends with its last request.
  const auto reload = [&](std::string_view parameters, std::string_view name) {
    warm.begin_epoch();
    std::unique_ptr<Plugin> next = make(parameters, name);
    warm.end_epoch(true);
    screener = dynamic_cast<const Screener*>(next.get());
    keep();
    plugin = std::move(next);
    return metrics.render();
  };
  constexpr std::string_view kMaxRole =
      "{scope: {labelSelector: app=llm}, revisionGating: {mode: max-role, requireRoles: {values: [decode]}}}";
  EXPECT_THAT(reload(kParameters, "r"), HasSubstr("plugin_name=\"r\",mode=\"sum\",revision=\"B\"} 0.5\n"));
  EXPECT_THAT(reload(kParameters, "r"), HasSubstr("plugin_name=\"r\",mode=\"sum\",revision=\"B\"} 0.5\n"))
      << "the series is the new epoch's as well";
  const std::string other_mode = reload(kMaxRole, "r");
  EXPECT_THAT(other_mode, HasSubstr("plugin_name=\"r\",mode=\"max-role\",revision=\"B\"} 0.5\n"));
  EXPECT_THAT(other_mode, Not(HasSubstr("mode=\"sum\"")));
  EXPECT_THAT(reload(kMaxRole, "renamed"), Not(HasSubstr("plugin_name=\"r\"")));
  warm.begin_epoch();
  warm.end_epoch(true);
  plugin.reset();
  EXPECT_THAT(metrics.render(), Not(HasSubstr("revision=")));
}

TEST_F(Rollout, TheAnswerSaysWhereItCameFrom) {
  HeaderEdits edits(pool.arena);
  pool.context->edits = &edits;
  const std::array<Candidate, 1> targets{1};
  ProfileResult primary{"default", targets, targets, {}, nullptr};
  const ProfileResult* const profiles[] = {&primary};
  ASSERT_TRUE(
      dynamic_cast<const PreRequest&>(*plugin).pre_request(*pool.context, {profiles, &primary, 0}).ok());
  ASSERT_EQ(edits.response().size(), 2U);
  EXPECT_EQ(edits.response()[0].name, "x-revision");
  EXPECT_EQ(edits.response()[0].value, "A");
  EXPECT_EQ(edits.response()[1].value, "s1");
}

TEST(RolloutScreenerTest, RefusesBadParameters) {
  const auto error = [](std::string_view parameters) {
    const auto made = make_plugin("disaggregatedset-rollout-screener", parameters);
    return made.ok() ? std::string("made") : made.error().message;
  };
  EXPECT_THAT(error("{}"), HasSubstr("scope.labelSelector must be specified"));
  EXPECT_THAT(error("{scope: {}, revisionGating: {mode: disabled}}"),
              HasSubstr("scope.labelSelector must be specified"));
  EXPECT_THAT(error("{scope: {labelSelector: a=b}, revisionGating: {mode: half}}"),
              HasSubstr("got \"half\""));
  EXPECT_THAT(error("{scope: {labelSelector: a=b}, revisionGating: {mode: sum}}"),
              HasSubstr("requireRoles.values must be non-empty and unique"));
  EXPECT_EQ(error("{scope: {labelSelector: a=b}, revisionGating: {mode: disabled}}"), "made");
  EXPECT_THAT(error("{scope: {labelSelector: 'a b'}, revisionGating: {mode: disabled}}"),
              HasSubstr("is not a label selector requirement"));
  EXPECT_THAT(
      error("{scope: {labelSelector: a=b}, revisionGating: {mode: disabled}, headerSelectors: [{name: "
            "n, headerName: h, labelKey: l, mode: maybe}]}"),
      HasSubstr("got \"maybe\""));
}

TEST(LabelSelectorText, HasTheKubernetesForms) {
  Endpoint endpoint;
  endpoint.labels = {{"a", "1"}, {"b", "2"}};
  const auto holds = [&](std::string_view text) {
    const auto parsed = parse_label_selector(text);
    EXPECT_TRUE(parsed.ok()) << text;
    return parsed.ok() && std::all_of(parsed->begin(), parsed->end(),
                                      [&](const LabelRequirement& r) { return r.holds(endpoint); });
  };
  EXPECT_TRUE(holds(""));
  EXPECT_TRUE(holds("a=1, b==2"));
  EXPECT_FALSE(holds("a!=1"));
  EXPECT_TRUE(holds("c!=1"));
  EXPECT_TRUE(holds("a in (1, 3),b notin (3)"));
  EXPECT_TRUE(holds("a,!c"));
  EXPECT_FALSE(holds("c"));
  for (const std::string_view bad : {"a=b=c", "in (a)", "a within (b)", "a in (b", "=x", ",a", "a b"}) {
    EXPECT_FALSE(parse_label_selector(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace penstock::scheduling
