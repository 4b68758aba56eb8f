#include "simulator/fleet/fleet_gateway.h"

#include <gtest/gtest.h>

namespace penstock::simulator {
namespace {

std::unique_ptr<FleetGateway> gateway(const std::string& config, const Clock& clock, uint32_t engines = 4) {
  FleetGateway::Options options;
  options.engines = engines;
  options.num_blocks = 1000;
  options.scrape_interval = std::chrono::milliseconds(200);
  options.staleness = std::chrono::seconds(2);
  auto made = FleetGateway::create({"test", config, "test"}, options, clock);
  EXPECT_TRUE(made.ok()) << made.error().message;
  return made.ok() ? std::move(made).value() : nullptr;
}

FleetGateway::Prompt prompt(std::span<const uint32_t> tokens) {
  FleetGateway::Prompt out;
  out.request_id = "r";
  out.tokens = tokens;
  return out;
}

bool everybody(uint32_t) {
  return true;
}

TEST(FleetGatewayTest, ARequestCountsAtItsEngineUntilItsAnswerIsComplete) {
  ManualClock clock;
  const auto g = gateway("plugins:\n- type: active-request-scorer\n- type: max-score-picker\n", clock);
  ASSERT_NE(g, nullptr);
  const std::vector<uint32_t> tokens(100, 1);
  const auto first = g->decide(prompt(tokens), everybody);
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(g->requests_at(first->engine), 1U);
  const auto second = g->decide(prompt(tokens), everybody);
  ASSERT_TRUE(second.ok());
  EXPECT_NE(second->engine, first->engine);
  EXPECT_EQ(g->in_flight(), 2U);
  std::string token;
  for (const auto& choice : {*first, *second}) {
    g->first_token(choice.handle, token);
    g->finish(choice.handle, 100, 1, 0);
    EXPECT_EQ(g->requests_at(choice.engine), 0U);
  }
  EXPECT_EQ(g->in_flight(), 0U);
}

TEST(FleetGatewayTest, ItBelievesTheLastPageItSaw) {
  ManualClock clock;
  const auto g = gateway("plugins:\n- type: queue-scorer\n- type: max-score-picker\n", clock, 2);
  ASSERT_NE(g, nullptr);
  EXPECT_EQ(g->scrape_interval(), std::chrono::milliseconds(200));
  EngineStats busy(1000);
  busy.waiting_capacity = 5;
  const EngineStats idle(1000);
  const std::vector<uint32_t> tokens(100, 1);
  g->scraped(0, busy);
  g->scraped(1, idle);
  EXPECT_EQ(g->decide(prompt(tokens), everybody)->engine, 1U);
  clock.advance(std::chrono::milliseconds(200));
  g->scraped(0, idle);
  g->scraped(1, busy);
  EXPECT_EQ(g->decide(prompt(tokens), everybody)->engine, 0U);
}

TEST(FleetGatewayTest, ASessionIsToldWhereItWasAndReturnsThere) {
  ManualClock clock;
  const auto g = gateway("plugins:\n- type: session-affinity-scorer\n- type: max-score-picker\n", clock);
  ASSERT_NE(g, nullptr);
  const std::vector<uint32_t> tokens(100, 1);
  const auto first = g->decide(prompt(tokens), everybody);
  ASSERT_TRUE(first.ok());
  std::string token;
  g->first_token(first->handle, token);
  ASSERT_FALSE(token.empty());
  FleetGateway::Prompt next = prompt(tokens);
  next.session_token = token;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(g->decide(next, everybody)->engine, first->engine);
}

TEST(FleetGatewayTest, OnlyTheNamedEngineIsUsedWhereOneIsNamed) {
  ManualClock clock;
  const auto g = gateway("plugins:\n- type: random-picker\n", clock);
  ASSERT_NE(g, nullptr);
  const std::vector<uint32_t> tokens(10, 1);
  FleetGateway::Prompt only = prompt(tokens);
  for (const int32_t engine : {0, 3, 1}) {
    only.only = engine;
    EXPECT_EQ(g->decide(only, everybody)->engine, static_cast<uint32_t>(engine));
  }
}

TEST(FleetGatewayTest, AnEngineThatIsNotThereIsLeftForAnotherOneAndThenLeftOut) {
  ManualClock clock;
  const auto g = gateway("plugins:\n- type: round-robin-picker\n", clock);
  ASSERT_NE(g, nullptr);
  const std::vector<uint32_t> tokens(10, 1);
  const auto not_the_first = [](uint32_t engine) { return engine != 0; };
  uint32_t attempts = 0;
  for (int i = 0; i < 8; ++i) {
    const auto choice = g->decide(prompt(tokens), not_the_first);
    ASSERT_TRUE(choice.ok());
    EXPECT_TRUE(choice->connected);
    EXPECT_NE(choice->engine, 0U);
    attempts += choice->attempts;
  }
  EXPECT_EQ(attempts, 9U);  // one failed connect ejects it
  EXPECT_EQ(g->requests_at(0), 0U);

  const auto nobody = g->decide(prompt(tokens), [](uint32_t) { return false; });
  ASSERT_TRUE(nobody.ok());
  EXPECT_FALSE(nobody->connected);
  EXPECT_EQ(g->in_flight(), 8U);
}

TEST(FleetGatewayTest, AnEngineThatLeavesGetsNothingAndComesBackUnknown) {
  ManualClock clock;
  const auto g = gateway("plugins:\n- type: prefix-cache-scorer\n- type: max-score-picker\n", clock, 2);
  ASSERT_NE(g, nullptr);
  const std::vector<uint32_t> tokens(1000, 1);
  const auto first = g->decide(prompt(tokens), everybody);
  ASSERT_TRUE(first.ok());
  g->fail(first->handle);
  EXPECT_EQ(g->in_flight(), 0U);
  EXPECT_EQ(g->decide(prompt(tokens), everybody)->engine, first->engine);  // it has the prefix
  g->set_member(first->engine, false);
  const uint32_t other = 1 - first->engine;
  EXPECT_EQ(g->decide(prompt(tokens), everybody)->engine, other);
  g->set_member(first->engine, true);
  EXPECT_EQ(g->requests_at(first->engine), 0U);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(g->decide(prompt(tokens), everybody)->engine, other);
}

TEST(FleetGatewayTest, AConfigurationsOwnScrapeIntervalIsKeptAndRaisedAsServeDoes) {
  ManualClock clock;
  const auto interval = [&](const std::string& text) {
    const auto g = gateway(
        "plugins:\n- type: queue-scorer\n- type: metrics-data-source\n  parameters: {interval: " + text +
            "}\n",
        clock);
    return g == nullptr ? Duration::zero() : g->scrape_interval();
  };
  EXPECT_EQ(interval("1s"), std::chrono::seconds(1));
  EXPECT_EQ(interval("1ns"), std::chrono::milliseconds(50));
}

}  // namespace
}  // namespace penstock::simulator
