#include "discovery/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::discovery {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DiscoveredEndpoint at(std::string name, std::string address, std::optional<uint16_t> port) {
  DiscoveredEndpoint e;
  e.name = std::move(name);
  e.address = std::move(address);
  e.port = port;
  return e;
}

std::vector<std::string> ids(const PoolSnapshot& snapshot) {
  std::vector<std::string> out;
  for (const auto& e : snapshot.endpoints) out.push_back(e->id);
  return out;
}

class Journal final : public EndpointListener {
 public:
  void endpoint_added(const std::shared_ptr<const Endpoint>& e) override { lines.push_back("+" + e->id); }
  void endpoint_updated(const std::shared_ptr<const Endpoint>& a,
                        const std::shared_ptr<const Endpoint>& b) override {
    lines.push_back("~" + b->id + " " + a->host_port + ">" + b->host_port);
  }
  void endpoint_removed(const std::shared_ptr<const Endpoint>& e) override { lines.push_back("-" + e->id); }
  std::vector<std::string> lines;
};

class PoolTest : public ::testing::Test {
 protected:
  ManualClock clock;
  SlotAllocator slots{std::chrono::seconds(30)};
};

TEST_F(PoolTest, PublishesEndpointsOrderedByIdAndTellsListeners) {
  Pool pool({.name = "p"}, slots, clock);
  PoolReader reader(pool);
  Journal journal;
  pool.add_listener(&journal);
  EXPECT_THAT(ids(*reader.get()), IsEmpty());
  EXPECT_THAT(pool.apply("file", {at("b", "10.0.0.2", 8000), at("a", "10.0.0.1", 8000)}), IsEmpty());
  EXPECT_THAT(ids(*reader.get()), ElementsAre("default/a", "default/b"));
  EXPECT_EQ(reader.get()->endpoints[0]->host_port, "10.0.0.1:8000");
  EXPECT_EQ(reader.get()->endpoints[0]->metrics_host, "10.0.0.1:8000");
  pool.apply("file", {at("a", "10.0.0.1", 8000)});
  EXPECT_THAT(journal.lines, ElementsAre("+default/a", "+default/b", "-default/b"));
  Journal late;
  pool.add_listener(&late);
  EXPECT_THAT(late.lines, ElementsAre("+default/a"));
  pool.remove_listener(&journal);
  pool.remove_listener(&late);
}

TEST_F(PoolTest, SaysNothingWhenNothingChanged) {
  Pool pool({.name = "p"}, slots, clock);
  pool.apply("file", {at("a", "10.0.0.1", 8000)});
  const auto before = pool.snapshot();
  pool.apply("file", {at("a", "10.0.0.1", 8000)});
  EXPECT_EQ(pool.snapshot(), before);
}

TEST_F(PoolTest, AnUpdateKeepsSlotAndLiveSide) {
  Pool pool({.name = "p"}, slots, clock);
  Journal journal;
  pool.add_listener(&journal);
  pool.apply("file", {at("a", "10.0.0.1", 18000)});
  const auto before = pool.snapshot()->endpoints[0];
  before->live->load.fetch_add(EndpointLive::pack(1, 100));
  DiscoveredEndpoint changed = at("a", "10.0.0.1", 18000);
  changed.labels["llm-d.ai/role"] = "prefill";
  pool.apply("file", {changed});
  const auto after = pool.snapshot()->endpoints[0];
  EXPECT_EQ(after->slot, before->slot);
  EXPECT_EQ(after->live, before->live);
  EXPECT_EQ(EndpointLive::requests_of(after->live->load), 1U);
  EXPECT_EQ(after->label("llm-d.ai/role"), "prefill");
  EXPECT_THAT(journal.lines, ElementsAre("+default/a", "~default/a 10.0.0.1:18000>10.0.0.1:18000"));
  pool.remove_listener(&journal);
}

TEST_F(PoolTest, AnotherAddressUnderTheSameNameIsAnotherEndpoint) {
  Pool pool({.name = "p"}, slots, clock);
  Journal journal;
  pool.add_listener(&journal);
  pool.apply("file", {at("a", "10.0.0.1", 18000), at("b", "10.0.0.2", 18000)});
  const auto before = pool.snapshot()->endpoints[0];
  before->live->load.fetch_add(EndpointLive::pack(1, 100));
  before->live->consecutive_failures = 7;
  pool.apply("file", {at("a", "10.0.0.1", 18001), at("b", "10.0.0.2", 18000)});
  const auto after = pool.snapshot()->endpoints[0];
  EXPECT_NE(after->slot, before->slot);
  EXPECT_NE(after->live, before->live);
  EXPECT_EQ(EndpointLive::requests_of(after->live->load), 0U);
  EXPECT_EQ(after->live->consecutive_failures, 0U);
  EXPECT_EQ(EndpointLive::requests_of(before->live->load), 1U);  // of the request that is still there
  EXPECT_THAT(ids(*pool.snapshot()), ElementsAre("default/a", "default/b"));
  EXPECT_THAT(journal.lines, ElementsAre("+default/a", "+default/b", "-default/a", "+default/a"));
  EXPECT_EQ(slots.in_use(), 2U);
  pool.remove_listener(&journal);
}

TEST_F(PoolTest, SelectsByLabels) {
  Pool pool({.name = "p", .selector = {{"app", "vllm"}}}, slots, clock);
  DiscoveredEndpoint mine = at("a", "10.0.0.1", 8000);
  mine.labels = {{"app", "vllm"}, {"zone", "z"}};
  DiscoveredEndpoint other = at("b", "10.0.0.2", 8000);
  other.labels = {{"app", "sglang"}};
  pool.apply("file", {mine, other});
  EXPECT_THAT(ids(*pool.snapshot()), ElementsAre("default/a"));
  pool.reconfigure({{"app", "sglang"}}, {});
  EXPECT_THAT(ids(*pool.snapshot()), ElementsAre("default/b"));
}

TEST_F(PoolTest, TargetPortsCountOnlyWhereTheEndpointNamesNoPort) {
  Pool pool({.name = "p", .target_ports = {8000, 8001}}, slots, clock);
  pool.apply("file", {at("a", "10.0.0.1", std::nullopt), at("b", "fd00::1", 9000)});
  const auto snapshot = pool.snapshot();
  EXPECT_THAT(ids(*snapshot), ElementsAre("default/a-rank-0", "default/a-rank-1", "default/b"));
  EXPECT_EQ(snapshot->endpoints[1]->rank, 1);
  EXPECT_EQ(snapshot->endpoints[1]->host_port, "10.0.0.1:8001");
  EXPECT_EQ(snapshot->endpoints[2]->host_port, "[fd00::1]:9000");
  pool.reconfigure({}, {8000});
  EXPECT_THAT(ids(*pool.snapshot()), ElementsAre("default/a", "default/b"));
}

TEST_F(PoolTest, ARankThatTheSourceNamesIsPartOfTheIdEvenWhereThereIsOneOnly) {
  Pool pool({.name = "p"}, slots, clock);
  DiscoveredEndpoint first = at("pod", "10.0.0.1", 8000);
  first.rank = 0;
  DiscoveredEndpoint third = at("pod", "10.0.0.1", 8002);
  third.rank = 2;
  EXPECT_THAT(pool.apply("kubernetes", {first, third}), IsEmpty());
  EXPECT_THAT(ids(*pool.snapshot()), ElementsAre("default/pod-rank-0", "default/pod-rank-2"));
  EXPECT_EQ(pool.snapshot()->endpoints[1]->rank, 2);
  EXPECT_EQ(pool.snapshot()->endpoints[1]->name, "pod");
}

TEST_F(PoolTest, NamesWhatItCouldNotTake) {
  Pool pool({.name = "p", .max_endpoints = 2}, slots, clock);
  const auto problems =
      pool.apply("file", {at("a", "10.0.0.1", std::nullopt), at("b", "10.0.0.2", 1), at("b", "10.0.0.3", 1),
                          at("c", "10.0.0.4", 1), at("d", "10.0.0.5", 1)});
  EXPECT_THAT(problems, ElementsAre(HasSubstr("names no port and pool \"p\" has no targetPorts"),
                                    HasSubstr("\"default/b\" is named twice"), HasSubstr("its limit")));
  EXPECT_THAT(ids(*pool.snapshot()), ElementsAre("default/b", "default/c"));
}

TEST_F(PoolTest, TheFirstOfTwoSourcesKeepsAName) {
  Pool pool({.name = "p"}, slots, clock);
  pool.apply("static", {at("a", "10.0.0.1", 1)});
  EXPECT_THAT(pool.apply("file", {at("a", "10.0.0.2", 1)}), ElementsAre(HasSubstr("named twice")));
  EXPECT_EQ(pool.snapshot()->endpoints[0]->address, "10.0.0.1");
  pool.apply("static", {});
  EXPECT_EQ(pool.snapshot()->endpoints[0]->address, "10.0.0.2");
}

TEST_F(PoolTest, ASlotRestsBeforeAnotherEndpointGetsIt) {
  Pool pool({.name = "p"}, slots, clock);
  pool.apply("file", {at("a", "10.0.0.1", 1)});
  const EndpointSlot first = pool.snapshot()->endpoints[0]->slot;
  pool.apply("file", {at("b", "10.0.0.1", 1)});
  EXPECT_NE(pool.snapshot()->endpoints[0]->slot, first);
  clock.advance(std::chrono::seconds(31));
  pool.apply("file", {at("b", "10.0.0.1", 1), at("c", "10.0.0.2", 1)});
  EXPECT_EQ(pool.snapshot()->endpoints[1]->slot, first);
}

TEST_F(PoolTest, RefusesEndpointsBeyondTheSlots) {
  SlotAllocator two(std::chrono::seconds(30), 2);
  Pool pool({.name = "p"}, two, clock);
  EXPECT_THAT(pool.apply("file", {at("a", "h", 1), at("b", "h", 2), at("c", "h", 3)}),
              ElementsAre(HasSubstr("no endpoint slot is left")));
  EXPECT_EQ(pool.snapshot()->endpoints.size(), 2U);
  EXPECT_EQ(two.in_use(), 2U);
}

TEST_F(PoolTest, APoolThatGoesReturnsItsSlotsAndTellsOfEveryRemoval) {
  Journal journal;
  {
    Pool pool({.name = "p"}, slots, clock);
    pool.add_listener(&journal);
    pool.apply("file", {at("a", "h", 1)});
  }
  EXPECT_EQ(slots.in_use(), 0U);
  EXPECT_THAT(journal.lines, ElementsAre("+default/a", "-default/a"));
}

}  // namespace
}  // namespace penstock::discovery
