#include "scheduling/handlers/disagg_profile_handler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "scheduling/scheduler.h"
#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Keeps the endpoints whose label "stage" is its own.
class StageFilter final : public Filter {
 public:
  explicit StageFilter(std::string stage) : stage_(std::move(stage)) {}
  size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const override {
    const auto end = std::remove_if(inout.begin(), inout.end(), [&](Candidate c) {
      return ctx.pool.endpoints[c]->label("stage") != stage_;
    });
    return static_cast<size_t>(end - inout.begin());
  }

 private:
  std::string stage_;
};

// Takes all candidates in order.
class AllPicker final : public Picker {
 public:
  std::span<const Candidate> pick(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                  std::span<const double>) const override {
    std::span<Candidate> out = ctx.arena.make_span<Candidate>(candidates.size());
    std::copy(candidates.begin(), candidates.end(), out.begin());
    return out;
  }
};

struct Found final : PluginLookup {
  std::map<std::string, std::unique_ptr<Plugin>, std::less<>> plugins;
  Plugin* find(std::string_view name) const override {
    const auto found = plugins.find(name);
    return found == plugins.end() ? nullptr : found->second.get();
  }
};

// e0 decodes, e1 prefills, e2 and e3 encode.
struct Disagg : testing::Test {
  TestPool pool{4};
  telemetry::MetricRegistry metrics;
  ManualClock clock;
  Found found;
  AllPicker picker;
  std::vector<std::unique_ptr<StageFilter>> filters;
  std::unique_ptr<Plugin> handler;

  void SetUp() override {
    const std::string_view stages[] = {"decode", "prefill", "encode", "encode"};
    for (size_t i = 0; i < 4; ++i) pool.endpoint(i).labels["stage"] = stages[i];
    found.plugins["always"] = std::make_unique<AlwaysDisaggPdDecider>();
    found.plugins["media"] = std::make_unique<AlwaysDisaggMultimodalDecider>();
    found.plugins["other"] = std::make_unique<StageFilter>("x");
  }
  std::string make(std::string_view type, std::string_view parameters) {
    for (const PluginDescriptor& descriptor : scheduling_plugins()) {
      if (descriptor.type != type) continue;
      config::Node node;
      if (!parameters.empty()) node = config::parse_document(parameters, "test").value();
      PluginFactoryContext context{type, parameters.empty() ? nullptr : &node, "parameters", metrics, clock,
                                   1};
      context.plugins = &found;
      auto made = descriptor.create(context);
      if (!made.ok()) return made.error().message;
      handler = std::move(made).value();
      handler->set_identity(std::string(type), std::string(type));
      handler->bind_slots(pool.slots);
    }
    return "";
  }
  Profile profile(const std::string& name, const std::string& stage) {
    filters.push_back(std::make_unique<StageFilter>(stage));
    return {name, {filters.back().get()}, {}, &picker};
  }
  // Decides and returns "headers | error": the request's edits as text.
  std::string decide(std::vector<Profile> profiles) {
    const auto* as_handler = dynamic_cast<const ProfileHandler*>(handler.get());
    const Scheduler scheduler(std::move(profiles), as_handler);
    DecisionRecord record;
    HeaderEdits edits(pool.arena);
    pool.context->edits = &edits;
    auto result = scheduler.run(*pool.context, record);
    if (!result.ok()) return result.error().message;
    ran.clear();
    for (const ProfileResult* profile : result->profiles) ran.emplace_back(profile->profile_name);
    destination_port = result->destination_port;
    EXPECT_TRUE(dynamic_cast<const PreRequest&>(*handler).pre_request(*pool.context, *result).ok());
    std::string out;
    for (const HeaderEdits::Edit& edit : edits.request()) {
      out += std::string(edit.name) + (edit.remove ? " removed;" : "=" + std::string(edit.value) + ";");
    }
    return out;
  }
  std::vector<Profile> three() {
    std::vector<Profile> out;
    for (const std::string name : {"decode", "prefill", "encode"}) out.push_back(profile(name, name));
    return out;
  }
  void add_media() {
    static const MultiModalFeature kFeature[] = {{"image", "aa", 0, 1}};
    static const TokenizedPrompt kPrompt[] = {{{}, kFeature}};
    pool.request.prompts = kPrompt;
  }
  std::vector<std::string> ran;
  uint16_t destination_port = 0;
};

TEST_F(Disagg, WithoutDecidersOnlyDecodeRuns) {
  ASSERT_EQ(make("disagg-profile-handler", ""), "");
  EXPECT_EQ(decide(three()), "x-prefiller-host-port removed;x-encoder-hosts-ports removed;");
  EXPECT_THAT(ran, ElementsAre("decode"));
  EXPECT_THAT(metrics.render(), HasSubstr("decision_type=\"decode-only\""));
}

TEST_F(Disagg, AllStagesNameTheirEndpoints) {
  ASSERT_EQ(make("disagg-profile-handler", "deciders: {prefill: always, encode: media}"), "");
  add_media();
  EXPECT_EQ(decide(three()),
            "x-prefiller-host-port=10.0.0.1:8000;x-encoder-hosts-ports=10.0.0.2:8000,10.0.0.3:8000;");
  EXPECT_THAT(ran, ElementsAre("decode", "prefill", "encode"));
  const auto* peer = pool.attributes->value<PeerEndpoint>(pool.slots.slot(data_keys::kPeerEndpoint));
  ASSERT_NE(peer, nullptr);
  EXPECT_EQ(peer->endpoint, 0U);
  EXPECT_THAT(metrics.render(), HasSubstr("decision_type=\"encode-prefill-decode\""));
}

TEST_F(Disagg, AStageThatFailsIsLeftOut) {
  ASSERT_EQ(make("disagg-profile-handler", "deciders: {prefill: always, encode: media}"), "");
  pool.endpoint(1).labels["stage"] = "gone";
  EXPECT_EQ(decide(three()), "x-prefiller-host-port removed;x-encoder-hosts-ports removed;");
  EXPECT_THAT(ran, ElementsAre("decode"));
}

TEST_F(Disagg, WithoutADecodeEndpointTheRequestFails) {
  ASSERT_EQ(make("disagg-profile-handler", "deciders: {prefill: always}"), "");
  pool.endpoint(0).labels["stage"] = "gone";
  EXPECT_EQ(decide(three()), "no endpoints available for the given request");
  EXPECT_EQ(decide({profile("prefill", "prefill")}),
            "failed to find target endpoint: failed to run any scheduler profile for request req-1");
}

TEST_F(Disagg, PrefillFirstPublishesThePrefillEndpointAsPeer) {
  ASSERT_EQ(make("disagg-profile-handler",
                 "{stageOrder: Prefill_First, profiles: {prefill: p}, deciders: {encode: media}}"),
            "");
  EXPECT_EQ(decide({profile("decode", "decode"), profile("p", "prefill"), profile("encode", "encode")}),
            "x-prefiller-host-port=10.0.0.1:8000;x-encoder-hosts-ports removed;");
  EXPECT_THAT(ran, ElementsAre("decode", "p"));
  EXPECT_EQ(pool.attributes->value<PeerEndpoint>(pool.slots.slot(data_keys::kPeerEndpoint))->endpoint, 1U);
}

TEST_F(Disagg, BothFormsOfParametersAreReadButNotMixed) {
  EXPECT_EQ(make("disagg-profile-handler", "{deciderPluginName: always, encodeDeciderPluginName: media}"),
            "");
  EXPECT_THAT(make("disagg-profile-handler", "{decodeProfile: d, deciders: {prefill: always}}"),
              HasSubstr("use one format exclusively"));
  EXPECT_EQ(make("disagg-profile-handler", "stageOrder: sideways"),
            "parameters.stageOrder: invalid stage order \"sideways\", must be \"decode-first\" or "
            "\"prefill-first\" (line 1)");
  EXPECT_THAT(make("disagg-profile-handler", "{stageOrder: prefill, deciders: {prefill: always}}"),
              HasSubstr("prefill decider is not supported in prefill-first stage order"));
  EXPECT_THAT(make("disagg-profile-handler", "deciders: {prefill: nobody}"),
              HasSubstr("deciders.prefill plugin not found: nobody"));
  EXPECT_THAT(make("disagg-profile-handler", "deciders: {prefill: other}"),
              HasSubstr("plugin other does not implement prefillDeciderPlugin"));
  EXPECT_THAT(make("disagg-profile-handler", "deciders: {encode: always}"),
              HasSubstr("plugin always does not implement encodeDeciderPlugin"));
}

TEST_F(Disagg, ReferencesNameTheDeciders) {
  const auto node = config::parse_document("deciders: {prefill: a, encode: b}", "test").value();
  EXPECT_THAT(DisaggProfileHandler::references(&node), ElementsAre("a", "b"));
  EXPECT_THAT(DisaggProfileHandler::references(nullptr), IsEmpty());
  EXPECT_THAT(PdProfileHandler::references(nullptr), ElementsAre("prefix-based-pd-decider"));
}

TEST_F(Disagg, ThePdHandlerSplitsWithoutHeaders) {
  EXPECT_THAT(make("pd-profile-handler", ""),
              HasSubstr("invalid decider plugin type: prefix-based-pd-decider"));
  EXPECT_THAT(make("pd-profile-handler", "deciderPluginName: ''"),
              HasSubstr("decider plugin name is not defined"));
  ASSERT_EQ(make("pd-profile-handler", "{deciderPluginName: always, primaryPort: 9000}"), "");
  EXPECT_EQ(decide({profile("decode", "decode"), profile("prefill", "prefill")}),
            "x-data-parallel-host-port=10.0.0.0:8000;");
  EXPECT_THAT(ran, ElementsAre("decode", "prefill"));
  EXPECT_EQ(destination_port, 9000);
  EXPECT_THAT(metrics.render(), HasSubstr("llm_d_epp_pd_decision_total"));
}

TEST_F(Disagg, TheHeadersHandlerSetsWhatThePdHandlerLeaves) {
  auto made = make_plugin("prefill-header-handler");
  ASSERT_TRUE(made.ok());
  const std::array<Candidate, 1> target{1};
  ProfileResult decode{"decode", target, target, {}, nullptr};
  ProfileResult prefill{"prefill", target, target, {}, nullptr};
  const ProfileResult* const profiles[] = {&decode, &prefill};
  HeaderEdits edits(pool.arena);
  pool.context->edits = &edits;
  ASSERT_TRUE(
      dynamic_cast<const PreRequest&>(**made).pre_request(*pool.context, {profiles, &decode, 0}).ok());
  ASSERT_EQ(edits.request().size(), 2U);
  EXPECT_EQ(edits.request()[0].value, "10.0.0.1:8000");
  EXPECT_TRUE(edits.request()[1].remove);
}

TEST_F(Disagg, TheDataParallelHandlerSendsToThePrimaryPort) {
  EXPECT_THAT(make("data-parallel-profile-handler", "primaryPort: 70000"),
              HasSubstr("invalid primaryPort: must be between 1 and 65535, got 70000"));
  ASSERT_EQ(make("data-parallel-profile-handler", ""), "");
  EXPECT_EQ(decide({profile("any", "prefill")}), "x-data-parallel-host-port=10.0.0.1:8000;");
  EXPECT_EQ(destination_port, 8000);
  EXPECT_EQ(decide({profile("a", "prefill"), profile("b", "prefill")}),
            "failed to find target endpoint: failed to run any scheduler profile for request req-1");
}

struct PdDecider : testing::Test {
  // Input tokens, cached blocks of 64.
  bool splits(std::string_view parameters, size_t input, uint32_t blocks, bool has_data = true) {
    TestPool pool(1);
    const PrefillDecider* decider = nullptr;
    const auto plugin = make_as("prefix-based-pd-decider", decider, parameters, &pool.slots);
    const std::vector<uint32_t> ids(input);
    const TokenizedPrompt prompts[] = {{ids, {}}};
    pool.request.prompts = prompts;
    if (has_data) {
      auto matches = pool.attributes->create<PrefixMatch>(pool.slots.slot(data_keys::kPrefixMatch));
      matches[0] = {0, 100, 64, blocks};
    }
    EXPECT_FALSE(decider->splits_prefill(*pool.context, std::nullopt));
    return decider->splits_prefill(*pool.context, 0);
  }
};

TEST_F(PdDecider, SplitsWhereEnoughIsNotCached) {
  constexpr std::string_view k512 = "nonCachedTokens: 512";
  EXPECT_TRUE(splits(k512, 1000, 4));
  EXPECT_FALSE(splits(k512, 1000, 10));
  EXPECT_FALSE(splits(k512, 500, 0));
  EXPECT_TRUE(splits(k512, 512, 0));
  EXPECT_FALSE(splits(k512, 1000, 0, false));
  EXPECT_FALSE(splits("{nonCachedTokens: 512, promptTokens: 2000}", 1500, 0));
  EXPECT_FALSE(splits("", 100000, 0));
  const auto made = make_plugin("prefix-based-pd-decider", "nonCachedTokens: -1");
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message,
              HasSubstr("nonCachedTokens parameter of prefix disaggregation decider cannot be negative"));
}

TEST(DisaggCountersTest, ModelsBeyondAHundredCountTogether) {
  telemetry::MetricRegistry metrics;
  const DisaggCounters counters(metrics, "handler", "disagg-profile-handler", false);
  TestPool pool{1};
  for (int i = 0; i < 150; ++i) {
    const std::string model = "m" + std::to_string(i);
    pool.request.target_model = model;
    counters.count(*pool.context, false, true);
  }
  EXPECT_THAT(metrics.render(),
              HasSubstr("llm_d_epp_disagg_decision_total{plugin_name=\"handler\",plugin_type="
                        "\"disagg-profile-handler\",model_name=\"other\",decision_type="
                        "\"prefill-decode\"} 50\n"));
}

}  // namespace
}  // namespace penstock::scheduling
