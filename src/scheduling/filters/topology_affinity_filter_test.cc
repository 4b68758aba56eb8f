#include "scheduling/filters/topology_affinity_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/scorers/topology_affinity_scorer.h"
#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;

// e0 is the peer; e1: same host, e2: same rack, e3: same zone, e4: nothing in common, e5: place unknown.
struct TopologyTest : testing::Test {
  TestPool pool{6};
  void places(bool with_peer = true) {
    auto column = pool.attributes->create<Topology>(pool.slots.slot(data_keys::kTopology));
    column[0] = {"h1", "r1", "z1", "g1"};
    column[1] = {"h1", "", "", ""};
    column[2] = {"h2", "r1", "z1", "g1"};
    column[3] = {"", "", "z1", ""};
    column[4] = {"h9", "r9", "z9", "g9"};
    if (with_peer)
      pool.attributes->create_value<PeerEndpoint>(pool.slots.slot(data_keys::kPeerEndpoint))->endpoint = 0;
  }
  std::vector<std::string> keep(std::string_view parameters) {
    const Filter* filter = nullptr;
    const auto plugin = make_as("topology-affinity-filter", filter, parameters, &pool.slots);
    return filter == nullptr ? std::vector<std::string>{"not made"} : pool.keep(*filter);
  }
};

TEST_F(TopologyTest, KeepsWhoIsNearEnough) {
  places();
  EXPECT_THAT(keep(""), ElementsAre("e0", "e1"));
  EXPECT_THAT(keep("minAffinity: rack"), ElementsAre("e0", "e1", "e2"));
  EXPECT_THAT(keep("minAffinity: zone"), ElementsAre("e0", "e1", "e2", "e3"));
}

TEST_F(TopologyTest, NobodyNearEnoughOrNoPeerKeepsAll) {
  places();
  pool.candidates = {2, 4, 5};
  EXPECT_THAT(keep(""), ElementsAre("e2", "e4", "e5"));
  pool.candidates = {0, 1, 2, 3, 4, 5};
  pool.restart();
  places(false);
  EXPECT_EQ(keep("").size(), 6U);
  EXPECT_FALSE(make_plugin("topology-affinity-filter", "minAffinity: planet").ok());
}

TEST_F(TopologyTest, ScoresFallWithDistance) {
  const Scorer* scorer = nullptr;
  const auto plugin = make_as("topology-affinity-scorer", scorer, "", &pool.slots);
  places();
  EXPECT_THAT(pool.score(*scorer), ElementsAre(1, 1, 0.2, 0.05, 0, 0));
  EXPECT_EQ(pool.explain(*scorer, 2), "same rack as the peer");
  pool.restart();
  places(false);
  EXPECT_THAT(pool.score(*scorer), ElementsAre(0, 0, 0, 0, 0, 0));
}

}  // namespace
}  // namespace penstock::scheduling
