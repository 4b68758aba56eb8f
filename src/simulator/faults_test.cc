#include "simulator/faults.h"

#include <gtest/gtest.h>

namespace penstock::simulator {
namespace {

TEST(Faults, CountAndSkipChooseTheRequestsHit) {
  Faults faults(1);
  ASSERT_TRUE(faults.set(R"({"status": 503, "skip": 1, "count": 2})").ok());
  std::string hit;
  for (int i = 0; i < 5; ++i) hit += faults.pick("/v1/completions", true, "m") != nullptr ? 'x' : '.';
  EXPECT_EQ(hit, ".xx..");
  EXPECT_EQ(faults.injected(), 2U);
}

TEST(Faults, ProbabilityIsDrawnFromTheSeed) {
  const auto run = [](uint64_t seed) {
    Faults faults(seed);
    EXPECT_TRUE(faults.set(R"({"status": 500, "probability": 0.3})").ok());
    std::string hit;
    for (int i = 0; i < 1000; ++i) hit += faults.pick("/v1/completions", true, "m") != nullptr ? 'x' : '.';
    return hit;
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
  const std::string hit = run(7);
  EXPECT_NEAR(static_cast<double>(std::count(hit.begin(), hit.end(), 'x')), 300, 60);
}

TEST(Faults, MeetOnlyInferenceRoutesUnlessPathsAreGiven) {
  Faults faults(1);
  ASSERT_TRUE(faults.set(R"([{"status": 500, "paths": ["/tokenize"]}, {"delay_ms": 5, "model": "a"}])").ok());
  EXPECT_EQ(faults.pick("/tokenize", false, "a")->status, 500);
  EXPECT_EQ(faults.pick("/v1/completions", true, "a")->delay_ms, 5);
  EXPECT_EQ(faults.pick("/v1/completions", true, "b"), nullptr);
}

TEST(Faults, AnEmptyObjectClearsAndMistakesAreNamed) {
  Faults faults(1);
  ASSERT_TRUE(faults.set(R"({"hang": true})").ok());
  const Status typo = faults.set(R"({"stall": 1})");
  ASSERT_FALSE(typo.ok());
  EXPECT_NE(typo.error().message.find("stall"), std::string::npos);
  EXPECT_FALSE(faults.empty());
  EXPECT_FALSE(faults.set(R"({"sse": "wobbly"})").ok());
  EXPECT_FALSE(faults.set(R"({"status": 99})").ok());
  ASSERT_TRUE(faults.set("{}").ok());
  EXPECT_TRUE(faults.empty());
}

TEST(DamageMetrics, DropsAndRenamesWholeFamilies) {
  const std::string page =
      "# HELP vllm:num_requests_waiting W\n# TYPE vllm:num_requests_waiting gauge\n"
      "vllm:num_requests_waiting{engine=\"0\"} 3.0\n"
      "# HELP vllm:num_requests_waiting_by_reason "
      "R\nvllm:num_requests_waiting_by_reason{reason=\"capacity\"} 3.0\n"
      "# TYPE vllm:x histogram\nvllm:x_bucket{le=\"1.0\"} 1.0\nvllm:x_count 1.0\n";
  Fault fault;
  fault.metrics_drop = {"vllm:x"};
  fault.metrics_rename = {"vllm:num_requests_waiting=vllm:queue"};
  EXPECT_EQ(damage_metrics(fault, page),
            "# HELP vllm:queue W\n# TYPE vllm:queue gauge\nvllm:queue{engine=\"0\"} 3.0\n"
            "# HELP vllm:num_requests_waiting_by_reason R\n"
            "vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 3.0\n");
}

TEST(DamageEvents, KeepsWhatTheKindDoesNotTouch) {
  const std::string event = "data: {\"choices\":[1]}\n\n";
  EXPECT_EQ(damage_events("", event), event);
  EXPECT_EQ(damage_events("crlf", event), "data: {\"choices\":[1]}\r\n\r\n");
  EXPECT_EQ(damage_events("no_space", event), "data:{\"choices\":[1]}\n\n");
  EXPECT_EQ(damage_events("multi_line", event), "data: {\ndata: \"choices\":[1]}\n\n");
}

}  // namespace
}  // namespace penstock::simulator
