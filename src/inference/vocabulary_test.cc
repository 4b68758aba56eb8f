#include <gtest/gtest.h>

#include "inference/attributes.h"
#include "inference/endpoint.h"
#include "inference/plugin.h"

namespace penstock {
namespace {

TEST(EndpointLiveTest, OneWordHoldsRequestsAndTokens) {
  EndpointLive live;
  live.load.fetch_add(EndpointLive::pack(1, 100000));
  live.load.fetch_add(EndpointLive::pack(1, 7));
  EXPECT_EQ(EndpointLive::requests_of(live.load), 2U);
  EXPECT_EQ(EndpointLive::tokens_of(live.load), 100007U);
  live.load.fetch_sub(EndpointLive::pack(1, 100000));
  EXPECT_EQ(EndpointLive::requests_of(live.load), 1U);
  EXPECT_EQ(EndpointLive::tokens_of(live.load), 7U);
}

TEST(AttributeTableTest, AbsentColumnReadsAsEmpty) {
  Arena arena;
  AttributeTable table(arena, 2, 3);
  EXPECT_TRUE(table.column<PrefixMatch>(0).empty());
  EXPECT_TRUE(table.column<PrefixMatch>(kNoSlot).empty());
  table.create<PrefixMatch>(0)[2].match_blocks = 5;
  EXPECT_EQ(table.column<PrefixMatch>(0)[2].match_blocks, 5U);
}

#ifndef NDEBUG
TEST(AttributeTableDeathTest, ASlotIsReadAsWhatItWasCreatedAs) {
  Arena arena;
  AttributeTable table(arena, 2, 3);
  table.create<InFlightLoad>(0);
  table.create_value<CacheSource>(1);
  EXPECT_NE(table.value<CacheSource>(1), nullptr);
  EXPECT_DEATH((void)table.column<EndpointScalar>(0), "another type");
  EXPECT_DEATH((void)table.value<InFlightLoad>(0), "another type");
  EXPECT_DEATH((void)table.value<SessionId>(1), "another type");
}
#endif

TEST(DataKeyTest, TextNamesTypeAndProducer) {
  EXPECT_EQ(data_keys::kPrefixMatch.text(), "PrefixCacheMatchInfoDataKey/approx-prefix-cache-producer");
  EXPECT_EQ(data_keys::kPrefixMatch.with_producer("mine").producer, "mine");
  EXPECT_EQ(data_keys::kPrefixMatch.with_producer(""), data_keys::kPrefixMatch);
}

}  // namespace
}  // namespace penstock
