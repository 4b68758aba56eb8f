#include "scheduling/scheduler.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "scheduling/allocation_count.h"
#include "scheduling/filters/by_label.h"
#include "scheduling/handlers/single_profile_handler.h"
#include "scheduling/pickers/max_score_picker.h"
#include "scheduling/pickers/random_picker.h"
#include "scheduling/scorers/kv_cache_utilization_scorer.h"
#include "scheduling/scorers/lora_affinity_scorer.h"
#include "scheduling/scorers/prefix_cache_scorer.h"
#include "scheduling/scorers/queue_scorer.h"
#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Gives fixed scores by candidate.
class FixedScorer final : public Scorer {
 public:
  explicit FixedScorer(std::vector<double> scores) : scores_(std::move(scores)) {}
  void score(SchedulingContext&, std::span<const Candidate> candidates,
             std::span<double> scores) const override {
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = scores_[candidates[i]];
  }
  void explain(const SchedulingContext&, Candidate, std::string& out) const override { out += "fixed"; }

 private:
  std::vector<double> scores_;
};

class NothingPicker final : public Picker {
 public:
  std::span<const Candidate> pick(SchedulingContext&, std::span<const Candidate>,
                                  std::span<const double>) const override {
    return {};
  }
};

// Runs the listed profiles in its first call, then none; the last that succeeded is primary.
class ListHandler : public ProfileHandler {
 public:
  explicit ListHandler(std::vector<uint32_t> list, bool endless = false)
      : list_(std::move(list)), endless_(endless) {}
  std::span<const uint32_t> pick(SchedulingContext&, std::span<const std::string>, std::span<bool> done,
                                 std::span<const ProfileResult* const>) const override {
    for (const bool ran : done) {
      if (ran && !endless_) return {};
    }
    return list_;
  }
  Result<SchedulingResult> process(SchedulingContext& ctx, std::span<const std::string>,
                                   std::span<const ProfileResult* const> results) const override {
    SchedulingResult out;
    for (const ProfileResult* result : results) {
      if (result != nullptr) out.primary = result;
    }
    if (out.primary == nullptr) return Error{ErrorCode::kInternal, "nothing succeeded"};
    out.profiles = ctx.arena.make_filled<const ProfileResult*>(1, out.primary);
    return out;
  }

 private:
  std::vector<uint32_t> list_;
  bool endless_;
};

// The default configuration: queue 2, kv 2, prefix 3, max-score-picker.
class DefaultPolicy {
 public:
  explicit DefaultPolicy(const SlotResolver& slots) {
    queue.set_identity("queue-scorer", "queue-scorer");
    kv.set_identity("kv-cache-utilization-scorer", "kv-cache-utilization-scorer");
    prefix.set_identity("prefix-cache-scorer", "prefix-cache-scorer");
    picker.set_identity("max-score-picker", "max-score-picker");
    handler.set_identity("single-profile-handler", "single-profile-handler");
    prefix.bind_slots(slots);
  }
  std::vector<Profile> profiles() const {
    return {{"default", {}, {{&queue, 2}, {&kv, 2}, {&prefix, 3}}, &picker}};
  }

  QueueScorer queue;
  KvCacheUtilizationScorer kv;
  PrefixCacheScorer prefix{{}};
  MaxScorePicker picker{{}};
  SingleProfileHandler handler;
};

// A(queue 0, kv 0.9, prefix 0/10), B(4, 0.2, 5/10), C(8, 0.1, 10/10).
void fill_abc(TestPool& pool) {
  pool.set_all(Signal::kWaitingRequests, {0, 4, 8});
  pool.set_all(Signal::kKvUsage, {0.9, 0.2, 0.1});
  auto matches = pool.attributes->create<PrefixMatch>(pool.slots.slot(data_keys::kPrefixMatch));
  for (uint32_t i = 0; i < 3; ++i) matches[i] = {i * 5, 10, 64, i * 5};
}

TEST(SchedulerTest, DefaultWeightsGiveTheSheetsTotals) {
  TestPool pool(3);
  const DefaultPolicy policy(pool.slots);
  const Scheduler scheduler(policy.profiles(), &policy.handler);
  fill_abc(pool);
  DecisionRecord record;
  auto result = scheduler.run(*pool.context, record);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->primary->targets.size(), 1U);
  EXPECT_EQ(result->primary->targets[0], 2U);
  ASSERT_EQ(result->primary->totals.size(), 3U);
  EXPECT_NEAR(result->primary->totals[0], 2.2, 1e-12);
  EXPECT_NEAR(result->primary->totals[1], 4.1, 1e-12);
  EXPECT_NEAR(result->primary->totals[2], 4.8, 1e-12);

  EXPECT_EQ(record.winner, "ns/e2");
  EXPECT_EQ(record.winner_host_port, "10.0.0.2:8000");
  EXPECT_EQ(record.primary_profile, "default");
  EXPECT_EQ(record.membership_epoch, 7U);
  EXPECT_EQ(record.signal_epoch, 9U);
  EXPECT_EQ(record.fallback, FallbackState::kNone);
  ASSERT_EQ(record.profiles.size(), 1U);
  const ProfileRecord& profile = record.profiles[0];
  EXPECT_EQ(result->primary->record, &profile);
  EXPECT_EQ(profile.candidates, 3U);
  ASSERT_EQ(profile.top.size(), 3U);
  EXPECT_EQ(profile.top[0].endpoint_id, "ns/e2");
  EXPECT_EQ(profile.top[2].endpoint_id, "ns/e0");
  EXPECT_FLOAT_EQ(profile.top[1].scores[0], 0.5F);
  EXPECT_FLOAT_EQ(profile.top[1].scores[1], 0.8F);
  EXPECT_FLOAT_EQ(profile.top[1].scores[2], 0.5F);
  ASSERT_EQ(profile.scorers.size(), 3U);
  EXPECT_EQ(profile.scorers[2].plugin_name, "prefix-cache-scorer");
  EXPECT_EQ(profile.scorers[2].weight, 3);
}

TEST(SchedulerTest, ScoresAreClampedAndNanCountsAsZero) {
  TestPool pool(6);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  FixedScorer scorer({-0.5, 1.5, 0.5, nan, inf, -inf});
  MaxScorePicker picker({});
  SingleProfileHandler handler;
  const Scheduler scheduler({{"default", {}, {{&scorer, 2}}, &picker}}, &handler);
  DecisionRecord record;
  auto result = scheduler.run(*pool.context, record);
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->primary->totals, ElementsAre(0, 2, 1, 0, 2, 0));
  EXPECT_EQ(record.profiles[0].nan_scores, 1U);
}

TEST(SchedulerTest, NegativeAndZeroWeightsAreTaken) {
  TestPool pool(2);
  FixedScorer scorer({1, 0.5});
  MaxScorePicker picker({});
  SingleProfileHandler handler;
  const Scheduler scheduler({{"default", {}, {{&scorer, -1}, {&scorer, 0}}, &picker}}, &handler);
  DecisionRecord record;
  auto result = scheduler.run(*pool.context, record);
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->primary->totals, ElementsAre(-1, -0.5));
  EXPECT_EQ(result->primary->targets[0], 1U);
}

TEST(SchedulerTest, ProfileWithoutScorersLetsThePickerChooseAmongZeros) {
  TestPool pool(2);
  MaxScorePicker picker({});
  SingleProfileHandler handler;
  const Scheduler scheduler({{"default", {}, {}, &picker}}, &handler);
  DecisionRecord record;
  auto result = scheduler.run(*pool.context, record);
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->primary->totals, ElementsAre(0, 0));
}

TEST(SchedulerTest, FiltersThatLeaveNothingAreSaturation) {
  TestPool pool(3);
  pool.endpoint(1).labels["role"] = "x";
  ByLabel keeps_one({"role", {"x"}, false});
  ByLabel keeps_none({"role", {"y"}, false});
  ByLabel never_runs({"role", {"z"}, false});
  keeps_one.set_identity("one", "by-label");
  keeps_none.set_identity("none", "by-label");
  MaxScorePicker picker({});
  SingleProfileHandler handler;
  const Scheduler scheduler({{"default", {&keeps_one, &keeps_none, &never_runs}, {}, &picker}}, &handler);
  DecisionRecord record;
  auto result = scheduler.run(*pool.context, record);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(result.error().message, "no endpoints available for the given request");
  EXPECT_EQ(result.error().dropped_reason, "rejected-saturated");
  EXPECT_EQ(record.fallback, FallbackState::kNoEndpoint);
  ASSERT_EQ(record.profiles.size(), 1U);
  const auto filters = record.profiles[0].filters;
  ASSERT_EQ(filters.size(), 2U);
  EXPECT_EQ(filters[0].plugin_name, "one");
  EXPECT_EQ(filters[0].before, 3U);
  EXPECT_EQ(filters[0].after, 1U);
  EXPECT_EQ(filters[1].after, 0U);
}

TEST(SchedulerTest, NoCandidateAtAllIsTheSameError) {
  TestPool pool(1);
  pool.context->candidates = {};
  MaxScorePicker picker({});
  SingleProfileHandler handler;
  const Scheduler scheduler({{"default", {}, {}, &picker}}, &handler);
  DecisionRecord record;
  auto result = scheduler.run(*pool.context, record);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().dropped_reason, "rejected-saturated");
}

TEST(SchedulerTest, UntypedFailuresSayThatNoTargetWasFound) {
  TestPool pool(1);
  MaxScorePicker picker({});
  NothingPicker nothing;
  nothing.set_identity("n", "nothing");
  DecisionRecord record;

  const ListHandler no_profile({});
  const Scheduler idle({{"default", {}, {}, &picker}}, &no_profile);
  auto none = idle.run(*pool.context, record);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(none.error().message,
            "failed to find target endpoint: failed to run any scheduler profile for request req-1");
  EXPECT_EQ(none.error().dropped_reason, "");

  SingleProfileHandler handler;
  const Scheduler empty_pick({{"default", {}, {}, &nothing}}, &handler);
  auto unpicked = empty_pick.run(*pool.context, record);
  ASSERT_FALSE(unpicked.ok());
  EXPECT_EQ(unpicked.error().message,
            "failed to find target endpoint: failed to run scheduler profile 'default'\n"
            "profile \"default\": picker 'n/nothing' chose no endpoint");
}

TEST(SchedulerTest, EveryProfileStartsFromAllCandidates) {
  TestPool pool(2);
  pool.endpoint(0).labels["role"] = "a";
  pool.endpoint(1).labels["role"] = "b";
  ByLabel only_a({"role", {"a"}, false});
  ByLabel only_b({"role", {"b"}, false});
  MaxScorePicker picker({});
  const ListHandler both({0, 1});
  const Scheduler scheduler({{"a", {&only_a}, {}, &picker}, {"b", {&only_b}, {}, &picker}}, &both);
  DecisionRecord record;
  auto result = scheduler.run(*pool.context, record);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(record.primary_profile, "b");
  EXPECT_EQ(record.winner, "ns/e1");
  EXPECT_EQ(record.profiles.size(), 2U);
}

TEST(SchedulerTest, HandlerThatNeverStopsIsCutOff) {
  TestPool pool(1);
  MaxScorePicker picker({});
  const ListHandler endless({0}, true);
  const Scheduler scheduler({{"default", {}, {}, &picker}}, &endless);
  DecisionRecord record;
  auto result = scheduler.run(*pool.context, record);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("asked for too many profile runs"));
  EXPECT_EQ(record.profiles.size(), kMaxRunsPerProfile);
}

TEST(SchedulerTest, RecordsTheBestEightAndAlwaysTheWinner) {
  TestPool pool(20);
  std::vector<double> scores;
  for (int i = 0; i < 20; ++i) scores.push_back((i * 7 % 20) / 20.0);
  FixedScorer scorer(scores);
  RandomPicker picker({});
  SingleProfileHandler handler;
  const Scheduler scheduler({{"default", {}, {{&scorer, 1}}, &picker}}, &handler);
  for (uint64_t seed = 1; seed < 40; ++seed) {
    pool.restart(seed);
    DecisionRecord record;
    auto result = scheduler.run(*pool.context, record);
    ASSERT_TRUE(result.ok());
    const auto top = record.profiles[0].top;
    ASSERT_EQ(top.size(), kRecordedCandidates);
    size_t winners = 0;
    for (size_t i = 0; i < top.size(); ++i) {
      winners += top[i].endpoint_id == record.winner ? 1 : 0;
      if (i > 0) {
        EXPECT_LT(top[i].total, top[i - 1].total);
      }
      if (i + 1 < top.size()) {
        EXPECT_NEAR(top[i].total, (19 - static_cast<double>(i)) / 20, 1e-9);
      }
    }
    EXPECT_EQ(winners, 1U);
  }
  pool.restart(3);
  pool.context->explain = true;
  DecisionRecord record;
  ASSERT_TRUE(scheduler.run(*pool.context, record).ok());
  EXPECT_EQ(record.profiles[0].top.size(), 20U);
  EXPECT_EQ(record.profiles[0].picked, record.winner);
}

TEST(SchedulerTest, NoFreshSignalAmongTheCandidatesIsAFallback) {
  TestPool pool(2);
  const DefaultPolicy policy(pool.slots);
  const Scheduler scheduler(policy.profiles(), &policy.handler);
  DecisionRecord record;
  pool.set(Signal::kWaitingRequests, 0, 1, SignalState::kStale);
  ASSERT_TRUE(scheduler.run(*pool.context, record).ok());
  EXPECT_EQ(record.fallback, FallbackState::kNone) << "one endpoint is fresh";

  pool.restart();
  pool.set(Signal::kWaitingRequests, 1, 1, SignalState::kNeverSeen);
  record = DecisionRecord{};
  ASSERT_TRUE(scheduler.run(*pool.context, record).ok());
  EXPECT_EQ(record.fallback, FallbackState::kNoFreshSignals);

  pool.restart();
  pool.set_all(Signal::kWaitingRequests, {0, 0});
  pool.set(Signal::kRunningRequests, 0, 0, SignalState::kNeverSeen);
  pool.set(Signal::kRunningRequests, 1, 0, SignalState::kNeverSeen);
  record = DecisionRecord{};
  ASSERT_TRUE(scheduler.run(*pool.context, record).ok());
  EXPECT_EQ(record.fallback, FallbackState::kNone) << "no scorer needs running requests";

  record.fallback = FallbackState::kProducerFailed;
  pool.set(Signal::kKvUsage, 0, 0, SignalState::kNeverSeen);
  pool.set(Signal::kKvUsage, 1, 0, SignalState::kNeverSeen);
  pool.restart();
  ASSERT_TRUE(scheduler.run(*pool.context, record).ok());
  EXPECT_EQ(record.fallback, FallbackState::kProducerFailed) << "the first state stays";
  EXPECT_EQ(record.oldest_signal_age, Duration::max()) << "never observed";
}

TEST(SchedulerTest, OldestSignalAgeIsTheWinners) {
  TestPool pool(2);
  const DefaultPolicy policy(pool.slots);
  const Scheduler scheduler(policy.profiles(), &policy.handler);
  pool.set_all(Signal::kWaitingRequests, {0, 5});
  pool.now += std::chrono::milliseconds(30);
  pool.set(Signal::kKvUsage, 0, 0.1);
  pool.set(Signal::kKvUsage, 1, 0.1);
  pool.now += std::chrono::milliseconds(10);
  pool.restart();
  DecisionRecord record;
  ASSERT_TRUE(scheduler.run(*pool.context, record).ok());
  EXPECT_EQ(record.winner, "ns/e0");
  EXPECT_EQ(record.oldest_signal_age, std::chrono::milliseconds(40));
}

TEST(SchedulerTest, TimesEveryPluginCall) {
  TestPool pool(3);
  const DefaultPolicy policy(pool.slots);
  telemetry::MetricRegistry metrics;
  const SystemClock clock;
  const Scheduler scheduler(policy.profiles(), &policy.handler, &metrics, &clock);
  DecisionRecord record;
  ASSERT_TRUE(scheduler.run(*pool.context, record).ok());
  pool.restart();
  pool.context->explain = true;
  ASSERT_TRUE(scheduler.run(*pool.context, record).ok()) << "explaining is not timed";
  const std::string text = metrics.render();
  for (const char* series :
       {R"(extension_point="ProfilePicker",plugin_type="single-profile-handler")",
        R"(extension_point="ProcessProfilesResults",plugin_type="single-profile-handler")",
        R"(extension_point="Picker",plugin_type="max-score-picker",plugin_name="max-score-picker"} 1)",
        R"(_count{extension_point="Scorer",plugin_type="queue-scorer",plugin_name="queue-scorer"} 1)",
        R"(inference_extension_plugin_duration_seconds_count{extension_point="Scorer")"}) {
    EXPECT_THAT(text, HasSubstr(series));
  }
}

TEST(SchedulerTest, DecidesWithoutTheHeapAfterWarmUp) {
  TestPool pool(100);
  const DefaultPolicy policy(pool.slots);
  telemetry::MetricRegistry metrics;
  const SystemClock clock;
  const Scheduler scheduler(policy.profiles(), &policy.handler, &metrics, &clock);
  for (size_t i = 0; i < 100; ++i) pool.set(Signal::kWaitingRequests, i, static_cast<double>(i % 10));
  const AttributeSlot slot = pool.slots.slot(data_keys::kPrefixMatch);
  const auto decide = [&](uint64_t seed) {
    pool.restart(seed);
    pool.attributes->create<PrefixMatch>(slot)[seed % 100] = {5, 10, 64, 5};
    DecisionRecord record;
    return scheduler.run(*pool.context, record).ok();
  };
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(decide(i));
  const uint64_t before = allocations();
  bool all = true;
  for (uint64_t i = 0; i < 100; ++i) all = decide(i) && all;
  EXPECT_EQ(allocations() - before, 0U);
  EXPECT_TRUE(all);
}

// Every number of the record exactly, every name.
std::string written_out(const DecisionRecord& record) {
  std::string out = fmt::format("{} {} {} {} {}", record.winner, record.winner_host_port,
                                record.primary_profile, record.signal_epoch, record.membership_epoch);
  for (const ProfileRecord& profile : record.profiles) {
    out += fmt::format("\n{} {} {}", profile.profile_name, profile.candidates, profile.nan_scores);
    for (const FilterRecord& f : profile.filters)
      out += fmt::format(" {}:{}>{}", f.plugin_name, f.before, f.after);
    for (const ScorerRecord& s : profile.scorers) out += fmt::format(" {}*{:a}", s.plugin_name, s.weight);
    for (const CandidateRecord& c : profile.top) {
      out += fmt::format("\n{} {} {:a}", c.endpoint_id, c.candidate, c.total);
      for (const float score : c.scores) out += fmt::format(" {:a}", score);
    }
  }
  return out;
}

TEST(SchedulerTest, SameInputsAndSeedGiveTheSameRecordBitForBit) {
  TestPool pool(50);
  const DefaultPolicy policy(pool.slots);
  LoraAffinityScorer lora;
  lora.set_identity("lora-affinity-scorer", "lora-affinity-scorer");
  auto profiles = policy.profiles();
  profiles[0].scorers.push_back({&lora, 1});
  const Scheduler scheduler(profiles, &policy.handler);
  for (size_t i = 0; i < 50; ++i) pool.set(Signal::kWaitingRequests, i, static_cast<double>(i % 2));

  std::set<std::string> winners;
  const auto decide = [&](uint64_t seed) {
    pool.restart(seed);
    auto matches = pool.attributes->create<PrefixMatch>(pool.slots.slot(data_keys::kPrefixMatch));
    for (uint32_t i = 0; i < 50; ++i) matches[i] = {i % 3, 3, 64, i % 3};
    pool.context->explain = true;
    DecisionRecord record;
    record.request_id = pool.request.request_id;
    record.seed = seed;
    EXPECT_TRUE(scheduler.run(*pool.context, record).ok());
    winners.emplace(record.winner);
    return written_out(record);
  };
  std::vector<std::string> first;
  for (uint64_t seed = 1; seed <= 20; ++seed) first.push_back(decide(seed));
  for (uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(decide(seed), first[seed - 1]);
  EXPECT_GT(winners.size(), 1U) << "ties must depend on the seed";
}

}  // namespace
}  // namespace penstock::scheduling
