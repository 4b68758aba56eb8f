#include "director/response_holders.h"

#include <gtest/gtest.h>

#include "director/testing.h"

namespace penstock::director {
namespace {

using testing::make_endpoint;
using Known = ResponseHolders::Known;
using std::chrono::hours;

class ResponseHoldersTest : public ::testing::Test {
 protected:
  ResponseHoldersTest() {
    for (EndpointSlot i = 0; i < 3; ++i) {
      snapshot.endpoints.push_back(
          make_endpoint(i, std::string(1, static_cast<char>('a' + i)), static_cast<uint16_t>(9000 + i)));
    }
  }
  void note(std::string_view id, size_t endpoint) {
    holders.note(id, *snapshot.endpoints[endpoint], clock.now());
  }
  // Name of the endpoint, "gone", or "".
  std::string find(std::string_view id, bool counts = true) {
    const ResponseHolders::Found found = holders.find(id, snapshot, clock.now(), counts);
    if (found.known == Known::kHere) return snapshot.endpoints[found.candidate]->name;
    return found.known == Known::kGone ? "gone" : "";
  }
  uint64_t looked_up(std::string_view result) {
    return metrics.response_lookups.with({"pool", result}).value();
  }
  uint64_t forgotten(std::string_view why) { return metrics.responses_forgotten.with({"pool", why}).value(); }

  ManualClock clock;
  telemetry::MetricRegistry registry;
  RequestMetrics metrics{registry};
  ResponseHolders holders{"pool", metrics, 7};
  PoolSnapshot snapshot;
};

TEST_F(ResponseHoldersTest, AResponseIsFoundWhereItWasMade) {
  note("resp_1", 1);
  note("resp_2", 2);
  EXPECT_EQ(find("resp_1"), "b");
  EXPECT_EQ(find("resp_2"), "c");
  EXPECT_EQ(find("resp_3"), "");
  EXPECT_EQ(looked_up("found"), 2U);
  EXPECT_EQ(looked_up("unknown"), 1U);
  EXPECT_EQ(metrics.responses_held.with({"pool"}).value(), 2);
}

TEST_F(ResponseHoldersTest, WhoMadeAnIdLastHoldsIt) {
  note("resp_1", 1);
  note("resp_1", 2);
  EXPECT_EQ(find("resp_1"), "c");
  EXPECT_EQ(holders.size(), 1U);
}

TEST_F(ResponseHoldersTest, AnEndpointThatLeftIsGoneAndOneThatComesBackIsFoundWhereverItStands) {
  note("resp_1", 1);
  const auto endpoint = snapshot.endpoints[1];
  snapshot.endpoints.erase(snapshot.endpoints.begin() + 1);
  EXPECT_EQ(find("resp_1"), "gone");
  EXPECT_EQ(looked_up("gone"), 1U);
  auto again = make_endpoint(77, "b", 9001);
  snapshot.endpoints.insert(snapshot.endpoints.begin(), again);
  EXPECT_EQ(find("resp_1"), "b");
}

TEST_F(ResponseHoldersTest, TheLeastRecentlyUsedIsForgottenFirst) {
  holders.configure({.entries = 2});
  note("resp_1", 0);
  note("resp_2", 0);
  EXPECT_EQ(find("resp_1"), "a");
  note("resp_3", 0);
  EXPECT_EQ(find("resp_2"), "");
  EXPECT_EQ(find("resp_1"), "a");
  EXPECT_EQ(find("resp_3"), "a");
  EXPECT_EQ(forgotten("capacity"), 1U);
  holders.configure({.entries = 1});
  EXPECT_EQ(holders.size(), 1U);
  EXPECT_EQ(find("resp_3"), "a");
}

TEST_F(ResponseHoldersTest, WhatNobodyAsksForExpires) {
  note("resp_1", 0);
  note("resp_2", 0);
  clock.advance(hours(23));
  EXPECT_EQ(find("resp_1"), "a");
  EXPECT_EQ(find("resp_2", false), "a");  // explaining keeps nothing
  clock.advance(hours(1));
  EXPECT_EQ(find("resp_2"), "");
  EXPECT_EQ(find("resp_1"), "a");
  clock.advance(hours(24));
  note("resp_3", 1);
  EXPECT_EQ(holders.size(), 1U);
  EXPECT_EQ(forgotten("expired"), 2U);
}

TEST_F(ResponseHoldersTest, SwitchedOffNothingIsLearnedAndDeletedOnesAreForgotten) {
  note("resp_1", 0);
  holders.forget("resp_1");
  holders.forget("resp_1");
  EXPECT_EQ(find("resp_1"), "");
  EXPECT_EQ(forgotten("deleted"), 1U);
  note("resp_2", 0);
  holders.configure({.entries = 0});
  EXPECT_FALSE(holders.on());
  note("resp_3", 0);
  EXPECT_EQ(holders.size(), 0U);
}

TEST_F(ResponseHoldersTest, IdsOfAnySizeDoNoHarm) {
  note("", 0);
  note(std::string(ResponseHolders::kMaxIdBytes + 1, 'x'), 0);
  EXPECT_EQ(holders.size(), 0U);
  EXPECT_EQ(find(std::string(1 << 20, 'x')), "");
}

TEST_F(ResponseHoldersTest, ExplainingCountsNothing) {
  note("resp_1", 0);
  EXPECT_EQ(find("resp_1", false), "a");
  EXPECT_EQ(looked_up("found"), 0U);
}

}  // namespace
}  // namespace penstock::director
