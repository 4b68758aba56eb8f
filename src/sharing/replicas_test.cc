#include "sharing/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>

#include "base/eventually.h"
#include "base/hash.h"
#include "base/temporary_folder.h"
#include "sharing/fake_store.h"
#include "sharing/shared_pool.h"

namespace penstock::sharing {
namespace {

using testing::FakeStore;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kLoadKey = "penstock:{ns/pool}:load";
constexpr std::string_view kPrefixKey = "penstock:{ns/pool}:prefix";

// Learns as the index would: blocks of 64 tokens.
class Learner final : public SharedPrefixes {
 public:
  Learner() { set_identity("approx", "approx-prefix-cache-producer"); }
  void tell(std::shared_ptr<PrefixOutlet>) override {}
  bool learn(const Endpoint& endpoint, uint32_t block_size, std::span<const uint64_t> hashes) const override {
    if (block_size != 64) return false;
    const std::lock_guard lock(mutex_);
    learnt_.push_back(endpoint.id + " " + std::to_string(hashes.size()) + " blocks to " +
                      std::to_string(hashes.back()));
    return true;
  }
  std::vector<std::string> learnt() const {
    const std::lock_guard lock(mutex_);
    return learnt_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::string> learnt_;
};

// What is told counts for ever, however slow the machine is.
ReplicasOptions patient() {
  ReplicasOptions options;
  options.staleness = std::chrono::hours(1);
  options.store.timeout = std::chrono::seconds(20);
  return options;
}

// "ns/e0" and "ns/e1", or the other way round.
std::shared_ptr<PoolSnapshot> two_endpoints(bool swapped = false) {
  auto members = std::make_shared<PoolSnapshot>();
  for (const int i : {0, 1}) {
    auto endpoint = std::make_shared<Endpoint>();
    const int number = swapped ? 1 - i : i;
    endpoint->slot = static_cast<EndpointSlot>(i);
    endpoint->id = "ns/e" + std::to_string(number);
    endpoint->host_port = "10.0.0." + std::to_string(number) + ":8000";
    endpoint->live = std::make_shared<EndpointLive>();
    members->endpoints.push_back(endpoint);
  }
  return members;
}

// One process: its pool of two endpoints, whose numbers depend on the process as real ones may.
struct Process {
  Process(const FakeStore& store, const std::string& name, ReplicasOptions options = patient(),
          bool swapped = false) {
    options.store.address = *parse_store_url(store.url());
    options.replica = name;
    options.interval = std::chrono::milliseconds(5);
    auto made = Replicas::create(std::move(options), metrics);
    if (!made.ok()) ADD_FAILURE() << made.error().message;
    replicas = *std::move(made);
    const auto members = two_endpoints(swapped);
    for (const size_t number : {0, 1}) endpoints[number] = members->endpoints[swapped ? 1 - number : number];
    pool = replicas->join("ns", "pool", [members] { return members; });
    learner = std::make_shared<Learner>();
    pool->set_producers({learner});
    replicas->start();
  }
  ~Process() { replicas->stop(); }

  EndpointLive& live(size_t i) const { return *endpoints[i]->live; }
  void put_load(size_t i, uint64_t requests, uint64_t tokens) const {
    live(i).load = EndpointLive::pack(requests, tokens);
  }
  uint64_t others(size_t i) const { return EndpointLive::requests_of(live(i).others); }
  void enter(size_t i, std::vector<uint64_t> hashes, uint32_t block_size = 64) const {
    pool->entered("approx", *endpoints[i], block_size, hashes);
  }
  double value(const std::string& sample) const {
    const std::string page = metrics.render();
    const size_t at = page.find("\n" + sample + " ");
    if (at == std::string::npos) return -1;
    return std::stod(page.substr(at + sample.size() + 2));
  }
  uint64_t prefixes(const std::string& event) const {
    return static_cast<uint64_t>(std::max(
        value("penstock_shared_state_prefixes_total{pool=\"ns/pool\",event=\"" + event + "\"}"), 0.0));
  }
  std::string state() const { return replicas->state_json(); }
  bool in_state(const std::string& name) const {
    return state().find("\"state\":\"" + name + "\",\"since_s\"") != std::string::npos;
  }

  telemetry::MetricRegistry metrics;
  std::unique_ptr<Replicas> replicas;
  std::array<std::shared_ptr<const Endpoint>, 2> endpoints;
  std::shared_ptr<SharedPool> pool;
  std::shared_ptr<Learner> learner;
};

TEST(Replicas, SeeEachOthersLoadAndNotTheirOwn) {
  FakeStore store;
  const Process a(store, "a");
  const Process b(store, "b", patient(), true);
  const Process c(store, "c");
  a.put_load(0, 3, 900);
  a.live(0).unseen.add();
  b.put_load(0, 1, 10);
  EXPECT_TRUE(eventually([&] { return a.others(0) == 1 && b.others(0) == 3 && c.others(0) == 4; }));
  EXPECT_EQ(EndpointLive::tokens_of(c.live(0).others), 910U);
  EXPECT_TRUE(eventually([&] { return c.live(0).others_unseen == 1; }));
  EXPECT_EQ(c.live(0).in_flight().requests, 4U);
  EXPECT_EQ(c.others(1), 0U);
  a.put_load(0, 0, 0);
  EXPECT_TRUE(eventually([&] { return b.others(0) == 0 && c.others(0) == 1; }));
  EXPECT_TRUE(eventually([&] {
    return c.value("penstock_shared_state_staleness_seconds{pool=\"ns/pool\",replica=\"a\"}") >= 0;
  }));
  EXPECT_EQ(c.value("penstock_shared_state_staleness_bound_seconds"), 3600);
  EXPECT_EQ(c.value("penstock_shared_state_connected"), 1);
  EXPECT_TRUE(eventually(
      [&] { return c.value("penstock_shared_state_replicas{pool=\"ns/pool\",state=\"fresh\"}") == 2; }));
}

TEST(Replicas, WriteOnlyWhenSomethingChangedOrTheHeartbeatIsDue) {
  FakeStore store;
  const Process a(store, "a");
  EXPECT_TRUE(eventually([&] { return store.commands("HGETALL") > 20; }));
  const size_t reads = store.commands("HGETALL");
  EXPECT_TRUE(eventually([&] { return store.commands("HGETALL") > reads + 40; }));
  EXPECT_EQ(store.commands("HSET"), 1U) << "the heartbeat is a quarter of the bound";
  a.put_load(1, 1, 0);
  EXPECT_TRUE(eventually([&] { return store.commands("HSET") == 2; }));
}

TEST(Replicas, NoKeyOutlivesThemForLong) {
  FakeStore store;
  const Process a(store, "a");
  EXPECT_TRUE(eventually([&] { return store.commands("PEXPIRE") >= 2; }));
  a.enter(0, {1});
  EXPECT_TRUE(eventually([&] { return a.prefixes("told") == 1; }));
  EXPECT_GE(store.commands("PEXPIRE"), 4U) << "the stream was made only now";
}

TEST(Replicas, OneThatEndsTakesItsLoadAlong) {
  FakeStore store;
  const Process a(store, "a");
  {
    const Process b(store, "b");
    b.put_load(0, 2, 0);
    EXPECT_TRUE(eventually([&] { return a.others(0) == 2; }));
  }
  EXPECT_TRUE(eventually([&] { return a.others(0) == 0; }));
  EXPECT_EQ(store.hash(std::string(kLoadKey)).size(), 1U);
}

TEST(Replicas, TheLoadOfOneThatDiedVanishesWithinTheBound) {
  FakeStore store;
  ReplicasOptions options;
  options.staleness = std::chrono::milliseconds(300);
  const Process a(store, "a", options);
  {
    const Process b(store, "b", options);
    b.put_load(0, 2, 0);
    EXPECT_TRUE(eventually([&] { return a.others(0) == 2; }));
    store.answer_with("HDEL", "ERR as if nobody had said farewell");
  }
  EXPECT_TRUE(eventually([&] { return a.others(0) == 0; }));
  EXPECT_EQ(store.hash(std::string(kLoadKey)).size(), 2U) << "its record is still there";
  EXPECT_THAT(a.state(), HasSubstr("\"state\":\"stale\""));
}

TEST(Replicas, LearnWhereOthersSentPrefixesAndSkipTheirOwn) {
  FakeStore store;
  const Process a(store, "a");
  const Process b(store, "b", patient(), true);
  a.enter(0, {1, 2, 3});
  a.enter(1, {7});
  EXPECT_TRUE(eventually([&] { return b.learner->learnt().size() == 2; }));
  EXPECT_THAT(b.learner->learnt(), ::testing::ElementsAre("ns/e0 3 blocks to 3", "ns/e1 1 blocks to 7"));
  EXPECT_TRUE(eventually([&] { return b.prefixes("applied") == 2 && a.prefixes("told") == 2; }));
  EXPECT_TRUE(a.learner->learnt().empty());
}

TEST(Replicas, ANewcomerLearnsWhatTheStoreKept) {
  FakeStore store;
  const Process a(store, "a");
  for (uint64_t i = 0; i < 50; ++i) {
    a.enter(0, {i + 1});
    EXPECT_TRUE(eventually([&] { return a.prefixes("told") == i + 1; }));
  }
  const Process late(store, "late");
  EXPECT_TRUE(eventually([&] { return late.learner->learnt().size() == 50; }));
}

TEST(Replicas, ANewcomerReadsWhatTheStoreKeptOnceItKnowsItsEndpointsAndWhoLearns) {
  FakeStore store;
  const Process a(store, "a");
  a.enter(0, {1, 2});
  EXPECT_TRUE(eventually([&] { return a.prefixes("told") == 1; }));
  const auto asked_more = [&] {
    const size_t before = store.commands("HGETALL");
    return eventually([&] { return store.commands("HGETALL") > before + 20; });
  };
  std::atomic<bool> known = false;
  const auto learner = std::make_shared<Learner>();
  const auto late = a.replicas->join(
      "ns", "pool", [&known, all = two_endpoints(), none = std::make_shared<PoolSnapshot>()] {
        return known ? all : none;
      });
  late->set_producers({learner});
  EXPECT_TRUE(asked_more());
  EXPECT_EQ(a.prefixes("unknown_endpoint"), 0U);
  late->set_producers({});
  known = true;
  EXPECT_TRUE(asked_more());
  EXPECT_EQ(a.prefixes("unknown_endpoint"), 0U);
  late->set_producers({learner});
  EXPECT_TRUE(eventually([&] { return learner->learnt().size() == 1; }));
  late->leave();
}

TEST(Replicas, BlocksOfAnotherSizeAndOfUnknownEndpointsAreCountedAndLeftAlone) {
  FakeStore store;
  const Process a(store, "a");
  const Process b(store, "b");
  a.enter(0, {1}, 128);
  Endpoint stranger = *a.endpoints[0];
  stranger.host_port = "10.9.9.9:1";
  a.pool->entered("approx", stranger, 64, std::vector<uint64_t>{1});
  a.pool->entered("another producer", *a.endpoints[0], 64, std::vector<uint64_t>{1});
  EXPECT_TRUE(
      eventually([&] { return b.prefixes("other_block_size") == 1 && b.prefixes("unknown_endpoint") == 2; }));
  EXPECT_TRUE(b.learner->learnt().empty());
}

TEST(Replicas, ThatHashBlocksAnotherWayShareLoadAndNoPrefixes) {
  FakeStore store;
  ReplicasOptions other = patient();
  other.hashing = "another";
  const Process a(store, "a", other);
  const Process b(store, "b");
  a.put_load(0, 2, 0);
  a.enter(0, {1, 2});
  EXPECT_TRUE(eventually([&] { return b.prefixes("other_hashing") == 1 && b.others(0) == 2; }));
  EXPECT_TRUE(b.learner->learnt().empty());
  EXPECT_THAT(b.state(), HasSubstr("refused: it hashes blocks another way"));
  EXPECT_TRUE(eventually([&] {
    return b.value("penstock_shared_state_replicas{pool=\"ns/pool\",state=\"other_hashing\"}") == 1;
  }));
}

TEST(Replicas, WhatTheStoreHoldsOfOthersKindsIsCountedAndReadPast) {
  FakeStore store;
  store.set_field(std::string(kLoadKey), "x/1", "garbage");
  store.add_entry(std::string(kPrefixKey), "garbage");
  store.add_entry(std::string(kPrefixKey), std::string("PSP\x07 of a later version"));
  const Process a(store, "a");
  const Process b(store, "b");
  b.enter(0, {5});
  EXPECT_TRUE(eventually([&] { return a.learner->learnt().size() == 1; }));
  EXPECT_EQ(a.prefixes("unreadable"), 1U);
  EXPECT_EQ(a.prefixes("other_version"), 1U);
  EXPECT_THAT(a.state(), HasSubstr("\"state\":\"unreadable\""));
}

// --- faults of the store ---------------------------------------------------------------------------------

TEST(ReplicasWithoutStore, BeginWithoutItAndFindItLater) {
  FakeStore store;
  store.down();
  const Process a(store, "a");
  EXPECT_TRUE(eventually([&] { return a.in_state("connect"); })) << a.state();
  EXPECT_EQ(a.value("penstock_shared_state_connected"), 0);
  a.put_load(0, 2, 0);
  store.up();
  const Process b(store, "b");
  EXPECT_TRUE(eventually([&] { return b.others(0) == 2; }));
  EXPECT_TRUE(a.in_state("connected"));
}

TEST(ReplicasWithoutStore, LoadOfOthersFadesAndComesBackWithIt) {
  FakeStore store;
  ReplicasOptions options = patient();
  options.staleness = std::chrono::milliseconds(300);
  const Process a(store, "a", options);
  const Process b(store, "b", options);
  a.put_load(0, 2, 0);
  EXPECT_TRUE(eventually([&] { return b.others(0) == 2; }));
  store.down();
  EXPECT_TRUE(eventually([&] { return b.others(0) == 0; }));
  EXPECT_EQ(b.value("penstock_shared_state_connected"), 0);
  store.up();
  EXPECT_TRUE(eventually([&] { return b.others(0) == 2; }));
}

TEST(ReplicasWithoutStore, OneThatHangsIsLeftAfterTheTimeout) {
  FakeStore store;
  ReplicasOptions options;
  options.staleness = std::chrono::milliseconds(300);
  options.store.timeout = std::chrono::milliseconds(200);
  const Process a(store, "a", options);
  const Process b(store, "b", options);
  a.put_load(0, 2, 0);
  EXPECT_TRUE(eventually([&] { return b.others(0) == 2; }));
  store.hang(true);
  EXPECT_TRUE(eventually([&] { return b.in_state("timeout") && b.others(0) == 0; }));
  store.hang(false);
  EXPECT_TRUE(eventually([&] { return b.others(0) == 2 && b.in_state("connected"); }));
}

TEST(ReplicasWithoutStore, AFullOneIsReadOnAndWrittenAgainWhenItCanBe) {
  FakeStore store;
  const Process a(store, "a");
  const Process b(store, "b");
  a.put_load(0, 2, 0);
  EXPECT_TRUE(eventually([&] { return b.others(0) == 2 && a.others(0) == 0; }));
  for (const char* command : {"HSET", "XADD"})
    store.answer_with(command, "OOM command not allowed when used memory > 'maxmemory'.");
  a.enter(0, {1});
  EXPECT_TRUE(eventually([&] { return a.in_state("full") && a.prefixes("dropped") == 1; })) << a.state();
  EXPECT_EQ(a.value("penstock_shared_state_connected"), 1);
  EXPECT_EQ(store.connections(), 2U) << "on the same connection";
  for (const char* command : {"HSET", "XADD"}) store.answer_with(command, "");
  a.put_load(0, 3, 0);
  EXPECT_TRUE(eventually([&] { return a.in_state("connected") && b.others(0) == 3; }));
}

TEST(ReplicasWithoutStore, OneThatRefusesIsAskedAgainOnANewConnection) {
  for (const char* error : {"READONLY You can't write against a read only replica.",
                            "LOADING Redis is loading", "MASTERDOWN Link with MASTER is down"}) {
    FakeStore store;
    store.answer_with("HSET", error);
    const Process a(store, "a");
    EXPECT_TRUE(eventually([&] { return a.in_state("unavailable") && store.connections() > 2; }))
        << a.state();
    store.answer_with("HSET", "");
    EXPECT_TRUE(eventually([&] { return a.in_state("connected"); }));
  }
}

TEST(ReplicasWithoutStore, APasswordIsReadFromItsFileWithEveryConnection) {
  FakeStore store;
  store.require_password("second");
  const TemporaryFolder folder;
  ReplicasOptions options = patient();
  options.store.password_file = folder.write("password", "first\n");
  const Process a(store, "a", options);
  EXPECT_TRUE(eventually([&] { return a.in_state("unauthorized"); })) << a.state();
  EXPECT_THAT(a.state(), Not(HasSubstr("first")));
  folder.write("password", "second\n");
  EXPECT_TRUE(eventually([&] { return a.in_state("connected"); }));
}

TEST(ReplicasWithoutStore, APasswordThatCannotBeReadOrIsNotTakenIsUnauthorized) {
  FakeStore store;
  ReplicasOptions options = patient();
  options.store.password_file = "/nonexistent/password";
  const Process unread(store, "a", options);
  EXPECT_TRUE(eventually([&] { return unread.in_state("unauthorized"); })) << unread.state();
  EXPECT_THAT(unread.state(), HasSubstr("/nonexistent/password"));

  store.answer_with("AUTH", "ERR Client sent AUTH, but no password is set");
  options.store.password_file.clear();
  options.store.password = "secret";
  const Process untaken(store, "b", options);
  EXPECT_TRUE(eventually([&] { return untaken.in_state("unauthorized"); })) << untaken.state();
}

TEST(ReplicasWithoutStore, WhatIsNoReplyAndWhatIsTooLargeEndTheConnectionOnly) {
  FakeStore store;
  const Process a(store, "a");
  const Process b(store, "b");
  EXPECT_TRUE(eventually([&] { return a.in_state("connected"); }));
  const auto both_come_back_after = [&](const char* command, const char* bytes) {
    const size_t before = store.connections();
    store.answer_raw(command, bytes);
    EXPECT_TRUE(eventually([&] { return store.connections() == before + 1; })) << bytes;
    EXPECT_TRUE(eventually([&] { return a.in_state("connected") && b.in_state("connected"); }));
  };
  both_come_back_after("HGETALL", "HTTP/1.1 400 Bad Request\r\n\r\n");
  both_come_back_after("XREAD", "$4000000000\r\n");
  both_come_back_after("TIME", "+yesterday\r\n");
  both_come_back_after("HGETALL", "+OK\r\n+OK\r\n");
  a.put_load(0, 1, 0);
  b.put_load(0, 2, 0);
  EXPECT_TRUE(eventually([&] { return a.others(0) == 2 && b.others(0) == 1; }));
  a.enter(0, {9});
  EXPECT_TRUE(eventually([&] { return b.learner->learnt().size() == 1; }));
}

TEST(ReplicasWithoutStore, QueuedPrefixesAreBoundedAndTheRestIsDropped) {
  FakeStore store;
  store.down();
  const Process a(store, "a");
  const std::vector<uint64_t> prompt(1000, 1);
  for (int i = 0; i < 100; ++i) a.enter(0, prompt);
  EXPECT_TRUE(eventually([&] { return a.prefixes("dropped") >= 60; }))
      << "of 100 times 8 KB, 256 KiB are kept";
  store.up();
  EXPECT_TRUE(eventually(
      [&] { return a.prefixes("told") > 0 && a.prefixes("told") + a.prefixes("dropped") == 100; }));
}

TEST(ReplicasWithoutStore, ABatchOfSeveralPromptsIsNoLongerThanItsLimit) {
  FakeStore store;
  store.down();
  const Process a(store, "a");
  const std::vector<uint64_t> prompt(3000, 1);
  for (int i = 0; i < 6; ++i) a.enter(0, prompt);
  store.up();
  EXPECT_TRUE(eventually([&] { return a.prefixes("told") == 6; }));
  EXPECT_EQ(store.entries(std::string(kPrefixKey)), 6U) << "two of 24 KB are more than 32 KiB";
}

TEST(SharedPool, ThatIsLeftIsAskedNothingMore) {
  FakeStore store;
  Process a(store, "a");
  EXPECT_TRUE(eventually([&] { return store.hash(std::string(kLoadKey)).size() == 1; }));
  a.pool->leave();
  a.enter(0, {1});
  EXPECT_TRUE(eventually([&] { return a.state().find("ns/pool") == std::string::npos; }));
  EXPECT_EQ(store.entries(std::string(kPrefixKey)), 0U);
}

TEST(SharedPool, ThatIsLeftHasNoSeries) {
  FakeStore store;
  const Process a(store, "a");
  const Process b(store, "b");
  b.enter(0, {1});
  EXPECT_TRUE(eventually([&] {
    return a.prefixes("applied") == 1 &&
           a.value("penstock_shared_state_staleness_seconds{pool=\"ns/pool\",replica=\"b\"}") >= 0;
  }));
  a.pool->leave();
  EXPECT_TRUE(eventually([&] { return a.metrics.render().find("ns/pool") == std::string::npos; }));
  // Nor after more exchanges.
  const size_t asked = store.commands("TIME");
  EXPECT_TRUE(eventually([&] { return store.commands("TIME") > asked + 20; }));
  EXPECT_EQ(a.metrics.render().find("ns/pool"), std::string::npos);
}

TEST(SharedPool, ThatComesAgainIsAnotherOneThoughItsFormerLifeStillEnds) {
  FakeStore store;
  const Process a(store, "a");
  const Process b(store, "b");
  a.put_load(0, 2, 200);
  a.enter(1, {7});
  EXPECT_TRUE(eventually([&] { return b.others(0) == 2 && b.prefixes("applied") == 1; }));
  const auto members = two_endpoints();
  const auto learner = std::make_shared<Learner>();
  const auto again = a.replicas->join("ns", "pool", [members] { return members; });
  again->set_producers({learner});
  members->endpoints[0]->live->load = EndpointLive::pack(3, 30);
  EXPECT_TRUE(eventually([&] { return b.others(0) == 5; })) << "both lives have requests there";
  EXPECT_TRUE(eventually([&] { return learner->learnt().size() == 1; })) << "what the former life sent";
  a.pool->leave();
  EXPECT_TRUE(eventually([&] { return b.others(0) == 3; }));
  EXPECT_EQ(store.hash(std::string(kLoadKey)).size(), 2U);
  EXPECT_TRUE(eventually([&] {
    return a.value("penstock_shared_state_replicas{pool=\"ns/pool\",state=\"fresh\"}") == 1;
  })) << "the series are those of the new life";
}

}  // namespace
}  // namespace penstock::sharing
