#include "director/decision_log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace penstock::director {
namespace {

DecisionRecord record_of(std::string_view id, TimePoint at) {
  DecisionRecord record;
  record.request_id = id;
  record.pool = "p";
  record.fairness_id = "default-flow";
  record.winner = "default/a";
  record.arrived_at = at;
  record.endpoint_chosen_at = at + std::chrono::microseconds(1500);
  return record;
}

TimePoint second(int n) {
  return TimePoint(std::chrono::seconds(n));
}

TEST(DecisionLog, KeepsACopyThatOutlivesTheRequestsMemory) {
  DecisionLog log({1, 4});
  {
    Arena arena;
    ProfileRecord profile;
    profile.profile_name = arena.copy("default");
    profile.picker_name = arena.copy("best");
    profile.picked = arena.copy("default/a");
    auto scorers = arena.make_filled<ScorerRecord>(1);
    scorers[0] = {arena.copy("queue"), 2.0};
    profile.scorers = scorers;
    auto top = arena.make_filled<CandidateRecord>(1);
    top[0].endpoint_id = arena.copy("default/a");
    top[0].total = 1.5;
    const std::array<float, 1> scores{0.75F};
    top[0].scores = scores;
    profile.top = top;
    auto profiles = arena.make_filled<ProfileRecord>(1);
    profiles[0] = profile;
    DecisionRecord record = record_of(arena.copy("r1"), second(1));
    record.profiles = profiles;
    log.begin(0, record, {});
  }
  const auto json = log.find_json("r1");
  ASSERT_TRUE(json);
  EXPECT_NE(json->find(R"("endpoint_chosen":1.5)"), std::string::npos) << *json;
  EXPECT_NE(json->find(R"("picker":"best","picked":"default/a")"), std::string::npos) << *json;
  EXPECT_NE(json->find(R"("scores":{"queue":0.75})"), std::string::npos) << *json;
}

TEST(DecisionLog, ForgetsTheOldestAndListsTheNewestFirst) {
  DecisionLog log({1, 2});
  for (int i = 1; i <= 3; ++i) {
    const std::string id = "r" + std::to_string(i);
    log.begin(0, record_of(id, second(i)), {});
  }
  EXPECT_FALSE(log.find_json("r1"));
  const std::string list = log.list_json(10);
  EXPECT_LT(list.find("\"r3\""), list.find("\"r2\""));
  EXPECT_EQ(log.list_json(1).find("\"r2\""), std::string::npos);
}

TEST(DecisionLog, KeepsABoundedPartOfWhatClientsSend) {
  DecisionLog log({1, 4});
  const std::string huge(1 << 20, 'x');
  DecisionRecord record = record_of("r1", second(1));
  record.identity = record.fairness_id = record.incoming_model = record.target_model = huge;
  log.begin(0, record, huge);
  const auto json = log.find_json("r1");
  ASSERT_TRUE(json);
  EXPECT_LT(json->size(), 4096U);
}

TEST(DecisionLog, IsListedWholeWhileLoopsGoOnWritingIt) {
  DecisionLog log({2, 2048});
  std::atomic<bool> stop{false};
  std::vector<std::thread> loops;
  for (size_t loop = 0; loop < 2; ++loop) {
    loops.emplace_back([&, loop] {
      for (int i = 1; !stop; ++i) {
        const DecisionLog::Handle handle = log.begin(loop, record_of("r" + std::to_string(i), second(i)), {});
        Outcome outcome;
        outcome.reason = "ok";
        log.finish(handle, outcome);
      }
    });
  }
  size_t full = 0;
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (full < 3 && std::chrono::steady_clock::now() < give_up) {
    const std::string list = log.list_json(1500);
    ASSERT_TRUE(list.starts_with('[') && list.ends_with(']'));
    EXPECT_EQ(list.find(",,"), std::string::npos);
    EXPECT_EQ(list.find("[,"), std::string::npos);
    EXPECT_EQ(list.find(",]"), std::string::npos);
    size_t entries = 0;
    for (size_t at = 0; (at = list.find("\"request_id\"", at)) != std::string::npos; ++at) ++entries;
    EXPECT_LE(entries, 1500U);
    if (entries > 0) ++full;
    (void)log.find_json("r1");
  }
  EXPECT_EQ(full, 3U);
  stop = true;
  for (std::thread& loop : loops) loop.join();
}

TEST(DecisionLog, TellsTheOutcomeOnlyOfTheDecisionItBelongsTo) {
  DecisionLog log({1, 1});
  const DecisionLog::Handle first = log.begin(0, record_of("r1", second(1)), {});
  log.begin(0, record_of("r2", second(2)), "no endpoints");
  Outcome outcome;
  outcome.status = 200;
  outcome.reason = "ok";
  log.finish(first, outcome);
  const auto json = log.find_json("r2");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->find("outcome"), std::string::npos);
  EXPECT_NE(json->find(R"("error":"no endpoints")"), std::string::npos);
}

}  // namespace
}  // namespace penstock::director
