#include "scheduling/producers/latency_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "scheduling/fake_outside.h"

namespace penstock::scheduling {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

LatencyServiceSettings settings() {
  LatencyServiceSettings out;
  out.take_urls("http://predictor:8001/", "http://trainer:8000");
  return out;
}

struct LatencyServiceTest : testing::Test {
  ManualClock clock;
  FakeOutside outside;
  telemetry::MetricRegistry metrics;
  std::shared_ptr<LatencyService> service;

  void make(const LatencyServiceSettings& with = settings()) {
    service = std::make_shared<LatencyService>(with, outside, clock, 1, "p", metrics);
  }
  std::shared_ptr<LatencyQuestion> ask(size_t rows = 1) {
    std::vector<EndpointSlot> slots(rows);
    for (size_t i = 0; i < rows; ++i) slots[i] = static_cast<EndpointSlot>(i);
    return service->ask(slots, std::vector<LatencyRow>(rows));
  }
  static double ttft(const LatencyQuestion& question, EndpointSlot slot) {
    size_t hint = 0;
    const LatencyTimes* times = question.of(slot, hint);
    return times == nullptr ? -1 : times->ttft_ms;
  }
  bool counted(std::string_view outcome, int times) {
    return metrics.render().find("penstock_latency_predictor_calls_total{plugin_name=\"p\",outcome=\"" +
                                 std::string(outcome) + "\"} " + std::to_string(times) + "\n") !=
           std::string::npos;
  }
};

TEST_F(LatencyServiceTest, QuestionsOfOneWindowShareACall) {
  make();
  const auto first = ask(2);
  const auto second = ask(1);
  EXPECT_TRUE(outside.posts.empty());
  outside.pass(milliseconds(1));
  ASSERT_EQ(outside.posts.size(), 1U);
  EXPECT_EQ(outside.posts[0].url, "http://predictor:8001/predict/bulk/strict");
  EXPECT_FALSE(first->answered());
  outside.answer(0, 200, predictions({10, 20, 30}));
  ASSERT_TRUE(first->answered() && second->answered());
  EXPECT_EQ(first->failure() + second->failure(), "");
  EXPECT_EQ(ttft(*first, 0), 10);
  EXPECT_EQ(ttft(*first, 1), 20);
  EXPECT_EQ(ttft(*second, 0), 30);
  EXPECT_EQ(ttft(*second, 7), -1) << "not asked about";
  EXPECT_TRUE(counted("ok", 1));
}

TEST_F(LatencyServiceTest, ABulkIsNoLargerThanThePredictorTakes) {
  make();
  const auto question = ask(250);
  outside.pass(milliseconds(1));
  ASSERT_EQ(outside.posts.size(), 3U);
  outside.answer(2, 200, predictions(std::vector<double>(50, 3)));
  outside.answer(0, 200, predictions(std::vector<double>(100, 1)));
  EXPECT_FALSE(question->answered());
  outside.answer(1, 200, predictions(std::vector<double>(100, 2)));
  ASSERT_TRUE(question->answered());
  EXPECT_EQ(ttft(*question, 99), 1);
  EXPECT_EQ(ttft(*question, 100), 2);
  EXPECT_EQ(ttft(*question, 249), 3);
}

TEST_F(LatencyServiceTest, APredictorThatHangsIsWaitedForUntilTheDeadlineAndNoLonger) {
  make();
  const auto question = ask();
  bool told = false;
  question->when_answered([](void* flag) { *static_cast<bool*>(flag) = true; }, &told);
  outside.pass(milliseconds(399));
  EXPECT_FALSE(told);
  outside.pass(milliseconds(1));
  EXPECT_TRUE(told);
  EXPECT_EQ(question->failure(), "the latency predictor gave no answer within 400 ms");
  outside.late(0);
  EXPECT_TRUE(counted("timeout", 1));
}

TEST_F(LatencyServiceTest, GarbageAndErrorsEndTheQuestionWithWhatIsWrong) {
  make();
  const auto failure_of = [&](int status, std::string body) {
    const auto question = ask();
    outside.pass(milliseconds(1));
    outside.answer(outside.posts.size() - 1, status, std::move(body));
    clock.advance(seconds(2));
    return question->failure();
  };
  EXPECT_THAT(failure_of(200, "<html>"), HasSubstr("is no JSON object"));
  EXPECT_THAT(failure_of(200, predictions({1, 2})), HasSubstr("or too many"));
  EXPECT_EQ(failure_of(503, "{}"), "the latency predictor answered with status 503");
  EXPECT_EQ(failure_of(0, ""), "the latency predictor gave no answer: refused");
  EXPECT_TRUE(counted("garbage", 2));
  EXPECT_TRUE(counted("status", 1));
  EXPECT_TRUE(counted("connect", 1));
}

TEST_F(LatencyServiceTest, OneThatKeepsFailingIsLeftAloneForAWhile) {
  make();
  for (uint32_t i = 0; i < LatencyService::kFailuresUntilDown; ++i) {
    ask();
    outside.pass(milliseconds(1));
    outside.answer(i, 0, "");
  }
  EXPECT_THAT(metrics.render(), HasSubstr("penstock_latency_predictor_up{plugin_name=\"p\"} 0\n"));
  const auto spared = ask();
  EXPECT_TRUE(spared->answered());
  EXPECT_EQ(spared->failure(), "the latency predictor is down");
  clock.advance(LatencyService::kDownPause);
  const auto hangs = ask();
  EXPECT_FALSE(hangs->answered());
  EXPECT_EQ(ask()->failure(), "the latency predictor is down") << "one finds out for all";
  clock.advance(settings().deadline);
  const auto tried = ask();
  outside.pass(milliseconds(1));
  outside.answer(outside.posts.size() - 1, 200, predictions({4, 5}));
  EXPECT_EQ(ttft(*tried, 0), 5);
  EXPECT_THAT(metrics.render(), HasSubstr("penstock_latency_predictor_up{plugin_name=\"p\"} 1\n"));
  EXPECT_FALSE(ask()->answered());
}

TEST_F(LatencyServiceTest, CallsUnderWayAreBoundedAndWhoWaitsTooLongIsToldSo) {
  LatencyServiceSettings few = settings();
  few.max_calls = 1;
  few.window = Duration::zero();
  make(few);
  const auto first = ask();
  const auto second = ask();
  const auto third = ask();
  ASSERT_EQ(outside.posts.size(), 1U);
  outside.answer(0, 200, predictions({1}));
  ASSERT_EQ(outside.posts.size(), 2U) << "those that wait share the next call";
  outside.answer(1, 200, predictions({2, 3}));
  EXPECT_EQ(ttft(*third, 0), 3);
  EXPECT_TRUE(first->answered() && second->answered());

  ask();
  const auto stuck = ask();
  outside.pass(few.deadline);
  EXPECT_THAT(stuck->failure(), HasSubstr("within 400 ms"));
  outside.late(2);
  EXPECT_EQ(outside.posts.size(), 3U) << "nobody waits for it any more";
  ask();
  const auto refused = ask(LatencyService::kMaxQueuedRows);
  EXPECT_FALSE(refused->answered());
  EXPECT_THAT(ask()->failure(), HasSubstr("too many questions wait"));
}

TEST_F(LatencyServiceTest, SamplesGoOutInBulkAndTooManyAreThinned) {
  LatencyServiceSettings small = settings();
  small.max_samples = 10;
  make(small);
  LatencySample sample;
  for (int i = 0; i < 50; ++i) {
    sample.ttft_ms = i % 2 == 0 ? 5 : 0;
    sample.tpot_ms = i % 2 == 0 ? 0 : 2;
    service->teach(sample);
  }
  outside.pass(milliseconds(999));
  EXPECT_TRUE(outside.posts.empty());
  outside.pass(milliseconds(1));
  ASSERT_EQ(outside.posts.size(), 1U);
  EXPECT_EQ(outside.posts[0].url, "http://trainer:8000/add_training_data_bulk");
  const auto occurrences = [&](const std::string& text) {
    size_t count = 0;
    for (size_t at = 0; (at = outside.posts[0].body.find(text, at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_EQ(occurrences("\"actual_ttft_ms\":5"), 5U);
  EXPECT_EQ(occurrences("\"actual_tpot_ms\":2"), 5U);
  outside.answer(0, 202, "");
  const auto samples = [&](const char* outcome, int count) {
    return HasSubstr("penstock_latency_training_samples_total{plugin_name=\"p\",outcome=\"" +
                     std::string(outcome) + "\"} " + std::to_string(count) + "\n");
  };
  EXPECT_THAT(metrics.render(), samples("sent", 10));
  EXPECT_THAT(metrics.render(), samples("thinned", 30));
  EXPECT_THAT(metrics.render(), samples("dropped", 10)) << "no more than four calls' worth are kept";
  service->teach(sample);
  outside.pass(seconds(1));
  outside.answer(1, 500, "");
  EXPECT_THAT(metrics.render(), samples("dropped", 11));
}

TEST(LatencyServiceSettingsTest, TheEnvironmentIsReadAsTheReferencesClientDoes) {
  const std::map<std::string, const char*> variables{
      {"PREDICTION_SERVER_URL", "http://a:1, http://b:2/"},
      {"TRAINING_SERVER_URL", "http://t:3"},
      {"LATENCY_COALESCE_WINDOW_MS", "0"},
      {"LATENCY_MAX_BULK_SIZE", "101"},
      {"LATENCY_MAX_CONCURRENT_DISPATCHES", "7"},
      {"LATENCY_MAX_SAMPLE_SIZE", "x"},
      {"LATENCY_FLUSH_INTERVAL_SEC", "3"},
      {"LATENCY_HTTP_TIMEOUT_SEC", "2"},
  };
  LatencyServiceSettings read;
  read.take_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second;
  });
  EXPECT_THAT(read.prediction_urls, ElementsAre("http://a:1", "http://b:2"));
  EXPECT_EQ(read.training_url, "http://t:3");
  EXPECT_EQ(read.window, Duration::zero());
  EXPECT_EQ(read.max_bulk_rows, 100U) << "at most 100";
  EXPECT_EQ(read.max_calls, 7U);
  EXPECT_EQ(read.max_samples, 1000U) << "no number";
  EXPECT_EQ(read.flush_interval, seconds(3));
  EXPECT_EQ(read.training_timeout, seconds(2));
  EXPECT_EQ(read.deadline, milliseconds(400));
  EXPECT_THAT(read.text(), StartsWith("http://a:1,http://b:2 http://t:3 "));
}

}  // namespace
}  // namespace penstock::scheduling
