#include "simulator/fleet/sim_fleet.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

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
      text.starts_with("shared-prefix: 40 requests, 288000 prompt tokens, 40000 answer tokens; 3 engines "
                       "(llama3-8b-h100, 26311 blocks of 16), 2 gateways, scrape every 200 ms, seed 1\n"))
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
}

TEST(SimFleetTest, AConfigurationFileIsAPolicyNamedAfterIt) {
  const auto folder = std::filesystem::temp_directory_path() / ("fleet-test-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const auto path = folder / "least.yaml";
  std::ofstream(path) << "plugins:\n- type: active-request-scorer\n- type: max-score-picker\n";
  SimFleetOptions options = small({});
  options.config = {path.string()};
  const auto comparison = run(options);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(comparison.ok()) << comparison.error().message;
  ASSERT_EQ(comparison->policies.size(), 1U);
  EXPECT_EQ(comparison->policies[0].policy, "least");
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
  EXPECT_EQ(error(options), "--config: failed to load config from a file '/no/such.yaml'");
  options = small({});
  options.profile = "tpu";
  EXPECT_TRUE(error(options).starts_with("--profile: timing profile \"tpu\" is not known; there are: "));
  options = small({});
  options.workload = "none";
  EXPECT_TRUE(error(options).starts_with("workload \"none\" is not known; there are: "));
  options.trace = "/no/such/trace";
  EXPECT_EQ(error(options), "cannot read trace '/no/such/trace'");
}

TEST(SimFleetTest, FlagsAreCheckedByTheTableThatDescribesThem) {
  const std::vector<std::pair<std::string, std::string>> good = {{"engines", "4"},
                                                                 {"policy", "random"},
                                                                 {"policy", "default"},
                                                                 {"scrape-interval", "1s"},
                                                                 {"json", "true"}};
  const auto options = parse_sim_fleet_flags(good);
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->engines, 4);
  EXPECT_EQ(options->policy.size(), 2U);
  EXPECT_EQ(options->scrape_interval, std::chrono::seconds(1));
  EXPECT_TRUE(options->json);
  const std::vector<std::pair<std::string, std::string>> bad = {{"engines", "0"}};
  const auto refused = parse_sim_fleet_flags(bad);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("engines: must be between 1 and 1024"), std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace penstock::simulator
