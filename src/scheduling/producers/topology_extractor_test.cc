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

std::shared_ptr<const NotifiedObject> pod(const std::string& name, const std::string& text) {
  return std::make_shared<const NotifiedObject>(
      NotifiedObject{"ns", name, *config::parse_document(text, "test")});
}

TEST(TopologyExtractorTest, WhereTheHostLabelIsMissingTheReadyPodsHostnameCounts) {
  TestPool pool(3);
  pool.endpoint(0).labels = {{"kubernetes.io/hostname", "label"}};
  const DataProducer* producer = nullptr;
  const auto plugin = make_as("topology-extractor", producer, "", &pool.slots);
  const auto* extractor = dynamic_cast<const ObjectExtractor*>(plugin.get());
  ASSERT_NE(extractor, nullptr);
  EXPECT_EQ(extractor->object_kind().text(), "v1/Pod");
  const auto hosts = [&] {
    pool.restart();
    EXPECT_TRUE(producer->produce(*pool.context).ok());
    std::string out;
    for (const Topology& place : pool.attributes->column<Topology>(pool.slots.slot(data_keys::kTopology)))
      out += std::string(place.hostname) + ";";
    return out;
  };
  EXPECT_EQ(hosts(), "label;;;");
  constexpr const char* kReady =
      "{spec: {hostname: node-1}, status: {conditions: [{type: Ready, status: 'True'}]}}";
  const std::string unready =
      "{spec: {hostname: node-2}, status: {conditions: [{type: Ready, status: 'False'}]}}";
  extractor->objects({pod("e0", kReady), pod("e1", kReady), pod("e2", unready)});
  EXPECT_EQ(hosts(), "label;node-1;;");
  const std::string leaving =
      "{metadata: {deletionTimestamp: '2026-01-01T00:00:00Z'}, spec: {hostname: node-1}, "
      "status: {conditions: [{type: Ready, status: 'True'}]}}";
  extractor->objects({pod("e1", leaving), pod("e2", kReady)});
  EXPECT_EQ(hosts(), "label;;node-1;");
  extractor->objects({});
  EXPECT_EQ(hosts(), "label;;;");
}

}  // namespace
}  // namespace penstock::scheduling
