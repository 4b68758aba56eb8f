#include "scheduling/session_affinity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "base/base64.h"
#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Base64, IsTheStandardOneWithPadding) {
  Arena arena;
  for (const auto& [text, code] : std::vector<std::pair<std::string, std::string>>{
           {"default/pod-a", "ZGVmYXVsdC9wb2QtYQ=="},
           {"default/vllm-0-rank-1", "ZGVmYXVsdC92bGxtLTAtcmFuay0x"},
           {"/pod1", "L3BvZDE="},
           {"", ""}}) {
    EXPECT_EQ(base64_encode(text), code);
    EXPECT_EQ(base64_decode(code, arena), text);
  }
  for (const std::string_view bad : {"L3BvZDE", "L3BvZD?=", "====", "L=BvZDE=", "a"}) {
    EXPECT_FALSE(base64_decode(bad, arena).has_value()) << bad;
  }
}

struct SessionTest : testing::Test {
  TestPool pool{3};
  std::vector<HeaderField> fields;

  void header(std::string_view name, std::string_view value) {
    fields = {{name, value}};
    pool.request.headers = fields;
  }
  // Tells the plugin that `picked` of `scored` was chosen; returns the answer's header edits as text.
  std::string picked(const Plugin& plugin, std::vector<Candidate> scored, Candidate picked) {
    HeaderEdits edits(pool.arena);
    pool.context->edits = &edits;
    const std::array<Candidate, 1> targets{picked};
    ProfileResult primary;
    primary.profile_name = "default";
    primary.targets = targets;
    primary.scored = scored;
    const ProfileResult* const profiles[] = {&primary};
    EXPECT_TRUE(
        dynamic_cast<const PreRequest&>(plugin).pre_request(*pool.context, {profiles, &primary, 0}).ok());
    pool.context->edits = nullptr;
    std::string out;
    for (const HeaderEdits::Edit& edit : edits.response())
      out += std::string(edit.name) + ": " + std::string(edit.value);
    return out;
  }
};

TEST_F(SessionTest, ATokenLeadsBackToTheEndpointThatGaveIt) {
  const Filter* filter = nullptr;
  const auto plugin = make_as("session-affinity-filter", filter, "", &pool.slots);
  EXPECT_EQ(pool.keep(*filter).size(), 3U);
  EXPECT_EQ(picked(*plugin, {0, 1, 2}, 1), "x-session-token: " + base64_encode("ns/e1"));
  const std::string token = base64_encode("ns/e1");
  header("x-session-token", token);
  EXPECT_THAT(pool.keep(*filter), ElementsAre("e1"));
}

TEST_F(SessionTest, TokensThatLeadNowhereKeepAll) {
  const Filter* filter = nullptr;
  const auto plugin = make_as("multicluster-session-affinity-filter", filter,
                              "encodedEndpointHeaderConfig: {header: ' X-Mine '}", &pool.slots);
  for (const std::string& token :
       {std::string("%%%"), base64_encode("ns/e9"), std::string(), std::string(5000, 'A')}) {
    header("x-mine", token);
    EXPECT_EQ(pool.keep(*filter).size(), 3U);
  }
  EXPECT_THAT(picked(*plugin, {0}, 0), HasSubstr("x-mine: "));
}

TEST_F(SessionTest, ASessionIsBoundAndReboundOnlyWhenItsEndpointIsAbsent) {
  const Filter* filter = nullptr;
  const auto plugin = make_as("session-affinity-filter", filter, "strategy: session_id", &pool.slots);
  header("x-session-id", " s ");
  EXPECT_EQ(pool.keep(*filter).size(), 3U);
  EXPECT_EQ(picked(*plugin, {0, 1, 2}, 0), "");
  EXPECT_THAT(pool.keep(*filter), ElementsAre("e0"));
  pool.candidates = {1, 2};
  pool.restart();
  EXPECT_EQ(pool.keep(*filter).size(), 2U);
  picked(*plugin, {1, 2}, 2);
  pool.candidates = {0, 1, 2};
  EXPECT_THAT(pool.keep(*filter), ElementsAre("e2"));
}

TEST_F(SessionTest, AScorerThatLosesDoesNotMoveTheSession) {
  const Scorer* scorer = nullptr;
  const auto plugin = make_as("session-affinity-scorer", scorer, "strategy: session_id", &pool.slots);
  header("x-session-id", "s");
  EXPECT_THAT(pool.score(*scorer), ElementsAre(0, 0, 0));
  picked(*plugin, {0, 1}, 0);
  picked(*plugin, {0, 1}, 1);
  EXPECT_THAT(pool.score(*scorer), ElementsAre(1, 0, 0));
  EXPECT_EQ(pool.explain(*scorer, 0), "the session's endpoint");
}

TEST_F(SessionTest, ATableIsStateToLookAtAndATokenInTheAnswerIsNone) {
  for (const std::string_view type : {"session-affinity-filter", "session-affinity-scorer"}) {
    const auto table = *make_plugin(type, "strategy: session_id");
    EXPECT_EQ(table->dump_state(), R"({"sessions":0,"maxSessions":65536})");
    EXPECT_FALSE(table->works_on_answers());
    header("x-session-id", "s");
    picked(*table, {0, 1, 2}, 0);
    EXPECT_EQ(table->dump_state(), R"({"sessions":1,"maxSessions":65536})");
    const auto token = *make_plugin(type);
    EXPECT_EQ(token->dump_state(), std::nullopt);
    EXPECT_TRUE(token->works_on_answers());
  }
}

TEST_F(SessionTest, OldSessionsAreForgottenBySweeps) {
  const Filter* filter = nullptr;
  const auto plugin =
      make_as("session-affinity-filter", filter,
              "{strategy: session_id, sessionIdConfig: {evictionTtlSeconds: 5}}", &pool.slots);
  header("x-session-id", "s");
  picked(*plugin, {0, 1, 2}, 0);
  pool.now += std::chrono::seconds(11);
  pool.restart();
  header("x-session-id", "other");
  picked(*plugin, {0, 1, 2}, 1);
  header("x-session-id", "s");
  EXPECT_EQ(pool.keep(*filter).size(), 3U);
}

TEST_F(SessionTest, SourcesAreAskedInOrder) {
  const Filter* filter = nullptr;
  const auto plugin = make_as("session-affinity-filter", filter,
                              "{strategy: session_id, sessionIdConfig: {sources: [{header: X-A}, {attribute: "
                              "SessionIDDataKey, producer: mine}]}}",
                              &pool.slots);
  pool.attributes->create_value<SessionId>(pool.slots.slot({"SessionIDDataKey", "mine"}))->text = "s";
  picked(*plugin, {0, 1, 2}, 2);
  EXPECT_THAT(pool.keep(*filter), ElementsAre("e2"));
  header("x-a", "t");
  EXPECT_EQ(pool.keep(*filter).size(), 3U);
}

TEST(SessionTable, SweepsALittleAtATime) {
  SessionTable table;
  const TimePoint now(std::chrono::seconds(1));
  const TimePoint later = now + std::chrono::seconds(100);
  const Duration ttl = std::chrono::seconds(5);
  const Duration interval = std::chrono::seconds(10);
  const auto absent = [](std::string_view) { return false; };
  for (uint64_t s = 1; s <= SessionTable::kMaxSwept + 10; ++s) table.bind(s, "ns/e0", now, absent);
  table.sweep(later, ttl, interval);
  EXPECT_EQ(table.size(), 10U);
  table.sweep(later, ttl, interval);
  EXPECT_EQ(table.size(), 0U);
  // Then it rests.
  table.bind(1, "ns/e0", now, absent);
  table.sweep(later + interval / 2, ttl, interval);
  EXPECT_EQ(table.size(), 1U);
  table.sweep(later + interval, ttl, interval);
  EXPECT_EQ(table.size(), 0U);
}

TEST(SessionTable, IsBounded) {
  SessionTable table;
  Arena arena;
  const TimePoint now(std::chrono::seconds(1));
  const auto absent = [](std::string_view) { return false; };
  for (uint64_t s = 1; s <= SessionTable::kMaxSessions + 10; ++s) table.bind(s, "ns/e0", now, absent);
  EXPECT_EQ(table.size(), SessionTable::kMaxSessions);
  EXPECT_EQ(table.find(1, arena), "");
  EXPECT_EQ(table.find(SessionTable::kMaxSessions + 10, arena), "ns/e0");
}

TEST(SessionAffinityParams, RefusesWhatItCannotUse) {
  const auto error = [](std::string_view parameters) {
    const auto made = make_plugin("session-affinity-filter", parameters);
    return made.ok() ? std::string("made") : made.error().message;
  };
  EXPECT_THAT(error("strategy: cookie"),
              HasSubstr("strategy must be \"encoded_endpoint_header\" or \"session_id\", got \"cookie\""));
  EXPECT_THAT(error("{strategy: session_id, sessionIdConfig: {sources: [{}]}}"),
              HasSubstr("sources[0]: exactly one of header or attribute must be set"));
  EXPECT_THAT(error("{strategy: session_id, sessionIdConfig: {evictionTtlSeconds: -1}}"),
              HasSubstr("evictionTtlSeconds must be > 0"));
  EXPECT_EQ(error("{strategy: session_id, sessionIdConfig: {evictionTtlSeconds: 0}}"), "made");
}

}  // namespace
}  // namespace penstock::scheduling
