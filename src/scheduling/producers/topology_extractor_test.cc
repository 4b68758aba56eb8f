#include "scheduling/producers/topology_extractor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

TEST(TopologyExtractorTest, ReadsPlacesFromLabels) {
  TestPool pool(2);
  pool.endpoint(0).labels = {{"topology.kubernetes.io/zone", "z1"}, {"h", "host"}};
  const DataProducer* producer = nullptr;
  const auto plugin = make_as("topology-extractor", producer, "hostname: h", &pool.slots);
  ASSERT_TRUE(producer->produce(*pool.context).ok());
  const auto column = pool.attributes->column<Topology>(pool.slots.slot(data_keys::kTopology));
  EXPECT_EQ(column[0].zone, "z1");
  EXPECT_EQ(column[0].hostname, "host");
  EXPECT_EQ(column[0].rack, "");
  EXPECT_FALSE(column[1].known());
}

TEST(TopologyExtractorTest, LabelsAreReadOnceForAMembership) {
  TestPool pool(2);
  const DataProducer* producer = nullptr;
  const auto plugin = make_as("topology-extractor", producer, "", &pool.slots);
  const auto zone = [&] {
    pool.restart();
    EXPECT_TRUE(producer->produce(*pool.context).ok());
    return pool.attributes->column<Topology>(pool.slots.slot(data_keys::kTopology))[1].zone;
  };
  EXPECT_EQ(zone(), "");
  pool.endpoint(1).labels = {{"topology.kubernetes.io/zone", "z1"}};
  EXPECT_EQ(zone(), "");
  ++pool.pool.epoch;
  EXPECT_EQ(zone(), "z1");
}

}  // namespace
}  // namespace penstock::scheduling
