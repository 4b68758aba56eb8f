#include "simulator/fleet/sim_fleet.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/temporary_folder.h"
#include "simulator/fleet/generators.h"

namespace penstock::simulator {
namespace {

SimFleetOptions small(std::vector<std::string> policies) {
  SimFleetOptions options;
  options.workload = "shared-prefix";
  options.requests = 40;
  options.engines = 3;
  options.gateways = 2;
  options.policy = std::move(policies);
  return options;
}

Result<FleetComparison> run(const SimFleetOptions& options) {
  return run_sim_fleet(options, [](const std::string&) {});
}

TEST(SimFleetTest, EachPolicyHasALineAndTheBoundHasOne) {
  const auto comparison = run(small({"round-robin", "default"}));
  ASSERT_TRUE(comparison.ok()) << comparison.error().message;
  const std::string text = render_text(*comparison);
  EXPECT_TRUE(
      text.starts_with("shared-prefix: 40 requests, 288000 prompt tokens, 40000 answer tokens\n"
                       "3 engines (llama3-8b-h100, 26311 blocks of 16), 2 gateways, scrape every 200ms, "
                       "seed 1\n"))
      << text;
  EXPECT_NE(text.find("\nround-robin "), std::string::npos);
  EXPECT_NE(text.find("\ndefault "), std::string::npos);
  EXPECT_NE(text.find("\nbound "), std::string::npos);
  for (const FleetReport& report : comparison->policies) {
    EXPECT_EQ(report.finished, 40U);
    EXPECT_LE(report.hit_ratio, comparison->bound.hit_ratio_unlimited);
    EXPECT_GE(report.ttft_ms.mean, comparison->bound.ttft_ms.mean);
  }
}

TEST(SimFleetTest, EqualSeedsPrintEqualJson) {
  const auto first = run(small({"near-tie", "random"}));
  const auto again = run(small({"near-tie", "random"}));
  SimFleetOptions other = small({"near-tie", "random"});
  other.seed = 2;
  const auto different = run(other);
  ASSERT_TRUE(first.ok() && again.ok() && different.ok());
  EXPECT_EQ(render_json(*first), render_json(*again));
  EXPECT_NE(render_json(*first), render_json(*different));
  EXPECT_NE(render_json(*first).find("\"queue_max_over_mean\": "), std::string::npos);
  EXPECT_NE(render_json(*first).find("\"engine_requests\": ["), std::string::npos);
}

class SimFleetFiles : public testing::Test {
 protected:
  SimFleetFiles() { std::filesystem::create_directories(folder_.file("other")); }
  std::string write(std::string_view name, std::string_view text) const { return folder_.write(name, text); }

  TemporaryFolder folder_;
};

constexpr std::string_view kLeast = "plugins:\n- type: active-request-scorer\n- type: max-score-picker\n";

TEST_F(SimFleetFiles, AConfigurationFileIsAPolicyNamedAfterIt) {
  SimFleetOptions options = small({});
  options.config = {write("least.yaml", kLeast), write("other/least.yaml", kLeast)};
  const auto comparison = run(options);
  ASSERT_TRUE(comparison.ok()) << comparison.error().message;
  ASSERT_EQ(comparison->policies.size(), 2U);
  EXPECT_EQ(comparison->policies[0].policy, "least");
  EXPECT_EQ(comparison->policies[1].policy, options.config[1]);  // told from the first one
}

TEST_F(SimFleetFiles, AConfigurationThatDoesNotLoadIsToldBeforeAnyPolicyRuns) {
  SimFleetOptions options = small({"random"});
  options.config = {write("wrong.yaml", "plugins:\n- type: nobody\n")};
  int runs = 0;
  const auto comparison = run_sim_fleet(options, [&](const std::string&) { ++runs; });
  ASSERT_FALSE(comparison.ok());
  EXPECT_TRUE(
      comparison.error().message.starts_with(options.config[0] + ": failed to load the configuration"))
      << comparison.error().message;
  EXPECT_NE(comparison.error().message.find("'nobody'"), std::string::npos);
  EXPECT_EQ(runs, 0);
}

TEST(SimFleetTest, WhatCannotBeHadIsNamedByItsFlag) {
  const auto error = [](const SimFleetOptions& options) {
    const auto result = run(options);
    return result.ok() ? std::string("no error") : result.error().message;
  };
  EXPECT_TRUE(
      error(small({"best"})).starts_with("--policy: policy \"best\" is not known; there are: round-robin, "));
  SimFleetOptions options = small({});
  options.config = {"/no/such.yaml"};
  EXPECT_EQ(
      error(options),
      "--config: failed to load config from a file '/no/such.yaml': reading /no/such.yaml: No such file or "
      "directory");
  options.config = {"/"};
  EXPECT_EQ(error(options), "--config: failed to load config from a file '/': reading /: Is a directory");
  options = small({});
  options.profile = "tpu";
  EXPECT_TRUE(error(options).starts_with("--profile: timing profile \"tpu\" is not known; there are: "));
  options = small({});
  options.workload = "none";
  EXPECT_TRUE(error(options).starts_with("--workload: workload \"none\" is not known; there are: "));
  options.trace = "/no/such/trace";
  EXPECT_EQ(error(options), "--trace: reading /no/such/trace: No such file or directory");
}

TEST(SimFleetTest, NoPolicyIsBetterThanTheBoundWhateverIsRefusedOrLeftOut) {
  SimFleetOptions refusing = small({"default", "round-robin"});
  refusing.workload = "conversation";
  refusing.num_blocks = 400;
  SimFleetOptions warm = small({"default", "sticky-hash"});
  warm.requests = 200;
  warm.warm_up = std::chrono::seconds(4);
  for (const SimFleetOptions& options : {refusing, warm}) {
    const auto comparison = run(options);
    ASSERT_TRUE(comparison.ok()) << comparison.error().message;
    for (const FleetReport& report : comparison->policies) {
      EXPECT_GT(report.finished, 0U);
      EXPECT_LT(report.finished, comparison->requests);
      EXPECT_LE(report.hit_ratio, comparison->bound.hit_ratio_unlimited) << report.policy;
      EXPECT_GE(report.ttft_ms.mean, comparison->bound.ttft_ms.mean) << report.policy;
    }
  }
}

TEST(SimFleetTest, ClassesAreToldApartAndTheLowestIsShedWhenTheFleetIsFull) {
  SimFleetOptions options = small({"default"});
  options.workload = "priority-mix";
  options.requests = 400;
  options.speed = 20;
  const auto comparison = run(options);
  ASSERT_TRUE(comparison.ok()) << comparison.error().message;
  const FleetReport& report = comparison->policies[0];
  ASSERT_EQ(report.classes.size(), 4U);
  uint64_t requests = 0;
  for (const FleetClassReport& one : report.classes) {
    requests += one.requests;
    EXPECT_EQ(one.requests, one.finished + one.rejected);
  }
  EXPECT_EQ(requests, 400U);
  EXPECT_GT(report.classes[2].rejected, 0U);  // priority -10
  EXPECT_EQ(report.classes[2].rejected, report.rejected);
  const std::string text = render_text(*comparison);
  EXPECT_NE(text.find("\ndefault batch         -10 "), std::string::npos) << text;
  EXPECT_NE(render_json(*comparison).find("\"class\": \"greedy\""), std::string::npos);
}

TEST(SimFleetTest, GoalsTellWhichShareOfTheAnswersCameInTime) {
  SimFleetOptions options = small({"round-robin"});
  const auto share = [&](Duration ttft, Duration tpot) {
    options.ttft_goal = ttft;
    options.tpot_goal = tpot;
    const auto comparison = run(options);
    EXPECT_TRUE(comparison.ok());
    const bool shown = render_text(*comparison).find("    goal\n") != std::string::npos;
    EXPECT_EQ(shown, ttft > Duration::zero() || tpot > Duration::zero());
    return comparison->policies[0].goal_ratio();
  };
  constexpr Duration kNone{};
  const FleetReport report = run(options)->policies[0];
  const auto ms = [](double value) { return Duration(static_cast<int64_t>(value * 1e6)); };
  EXPECT_EQ(share(kNone, kNone), 1);
  EXPECT_EQ(share(ms(1), kNone), 0);
  EXPECT_EQ(share(kNone, ms(1)), 0);
  EXPECT_EQ(share(std::chrono::hours(1), std::chrono::hours(1)), 1);
  const double half = share(ms(report.ttft_ms.p50 + 0.001), kNone);
  EXPECT_GE(half, 0.5);
  EXPECT_LT(half, 0.9);
}

TEST(SimFleetTest, ReportsSayWhatTheFleetWas) {
  SimFleetOptions options = small({"random"});
  options.profile = "";
  options.ttft_goal = std::chrono::milliseconds(1500);
  options.tpot_goal = std::chrono::milliseconds(40);
  options.restart_every = std::chrono::seconds(60);
  options.restart_for = std::chrono::seconds(20);
  options.stall_every = std::chrono::seconds(30);
  options.stall_for = std::chrono::seconds(5);
  const auto comparison = run(options);
  ASSERT_TRUE(comparison.ok()) << comparison.error().message;
  const std::string text = render_text(*comparison);
  EXPECT_NE(text.find("\n3 engines (rates, 26311 blocks of 16), 2 gateways, "), std::string::npos) << text;
  EXPECT_NE(text.find("; TTFT goal 1.5s; TPOT goal 40ms\n"), std::string::npos) << text;
  const auto fleet = nlohmann::json::parse(render_json(*comparison))["fleet"];
  EXPECT_EQ(fleet["profile"], "rates");
  EXPECT_EQ(fleet["ttft_goal_ms"], 1500);
  EXPECT_EQ(fleet["tpot_goal_ms"], 40);
  EXPECT_EQ(fleet["restart_every_s"], 60);
  EXPECT_EQ(fleet["restart_for_s"], 20);
  EXPECT_EQ(fleet["restart_notice_s"], 1);
  EXPECT_EQ(fleet["stall_every_s"], 30);
  EXPECT_EQ(fleet["stall_for_s"], 5);
}

TEST(SimFleetTest, AWarmUpThatLeavesNothingIsSaid) {
  SimFleetOptions options = small({"random"});
  options.warm_up = std::chrono::hours(1);
  const auto comparison = run(options);
  ASSERT_TRUE(comparison.ok());
  const std::string text = render_text(*comparison);
  EXPECT_NE(text.find(", seed 1; not counting the first 1h0m0s\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nrandom: no request arrived after the warm-up\n"), std::string::npos) << text;
  EXPECT_EQ(comparison->policies[0].work_balance, 0);
  EXPECT_EQ(comparison->policies[0].load_balance, 0);
}

TEST(SimFleetTest, EnginesThatTakeNoTimeSuitEveryPolicy) {
  SimFleetOptions options = small({});
  options.profile = "rates";
  options.prefill_tokens_per_second = 0;
  options.decode_ms = 0;
  for (const BuiltinPolicy& policy : builtin_policies()) options.policy.emplace_back(policy.name);
  const auto comparison = run(options);
  ASSERT_TRUE(comparison.ok()) << comparison.error().message;
  for (const FleetReport& report : comparison->policies) EXPECT_EQ(report.e2e_ms.p99, 0) << report.policy;
}

TEST(SimFleetTest, HelpSaysWhatEachWorkloadAndPolicyIs) {
  const std::string lists = sim_fleet_lists();
  for (const WorkloadKind& kind : workload_kinds())
    EXPECT_NE(lists.find("\n  " + std::string(kind.name) + " "), std::string::npos) << kind.name;
  for (const BuiltinPolicy& policy : builtin_policies())
    EXPECT_NE(lists.find("\n  " + std::string(policy.name) + " "), std::string::npos) << policy.name;
  for (const std::string& name : default_fleet_policies()) EXPECT_TRUE(builtin_policy(name, 0).ok()) << name;
}

TEST(SimFleetTest, FlagsAreCheckedByTheTableThatDescribesThem) {
  using Flags = std::vector<std::pair<std::string, std::string>>;
  const auto options = parse_sim_fleet_flags(Flags{{"engines", "4"},
                                                   {"policy", "random"},
                                                   {"policy", "default"},
                                                   {"scrape-interval", "1s"},
                                                   {"json", "true"}});
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->engines, 4);
  EXPECT_EQ(options->policy.size(), 2U);
  EXPECT_EQ(options->scrape_interval, std::chrono::seconds(1));
  EXPECT_TRUE(options->json);
  EXPECT_EQ(options->profile, "llama3-8b-h100");
  const auto error = [](const Flags& flags) {
    const auto parsed = parse_sim_fleet_flags(flags);
    return parsed.ok() ? std::string("no error") : parsed.error().message;
  };
  EXPECT_EQ(error({{"engines", "0"}}), "sim fleet: engines: 0 is not between 1 and 1024");
  EXPECT_EQ(error({{"engines", ""}}), "--engines: expected int, got \"\"");
  EXPECT_EQ(error({{"engines", "1024"}, {"num-blocks", "1000000"}}),
            "sim fleet: num-blocks: 1024 engines of 1000000 blocks are more than 67108864 blocks in all");
  EXPECT_EQ(error({{"speed", "-2"}}), "sim fleet: speed: -2 is not between 0.01 and 1000");
  EXPECT_EQ(error({{"prefill-tokens-per-second", "1e-300"}}),
            "sim fleet: prefill-tokens-per-second: 1e-300 is not between 1 and 1000000000");
  EXPECT_EQ(error({{"scrape-interval", "0s"}}),
            "sim fleet: scrape-interval: 0s is not between 1ms and 24h0m0s");
  EXPECT_EQ(error({{"restart-every", "5s"}}),
            "sim fleet: restart-every: has no effect without restart-for, nor that without this");
  EXPECT_EQ(error({{"restart-every", "5s"}, {"restart-for", "2s"}, {"restart-notice", "3s"}}),
            "sim fleet: restart-notice: 3s is not between 0s and 2s");
  EXPECT_EQ(error({{"stall-for", "5s"}}),
            "sim fleet: stall-every: has no effect without stall-for, nor that without this");
  EXPECT_EQ(error({{"keep-batches", "true"}}), "sim fleet: keep-batches: has no effect without trace");
}

}  // namespace
}  // namespace penstock::simulator
