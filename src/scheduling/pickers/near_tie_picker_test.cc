#include "scheduling/pickers/near_tie_picker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

struct NearTie : testing::Test {
  TestPool pool{3};
  std::vector<Candidate> pick(std::string_view parameters, std::vector<double> totals, uint64_t seed = 1) {
    const Picker* picker = nullptr;
    const auto plugin = make_as("near-tie-picker", picker, parameters);
    if (picker == nullptr) return {99};
    pool.restart(seed);
    const auto out = picker->pick(*pool.context, pool.candidates, totals);
    return {out.begin(), out.end()};
  }
  void load(size_t i, uint64_t tokens) { pool.endpoint(i).live->load = EndpointLive::pack(1, tokens); }
};

TEST_F(NearTie, OfTwoThatHardlyDifferTheLessLoadedIsTaken) {
  load(0, 900);
  load(1, 100);
  for (uint64_t seed = 1; seed < 20; ++seed) EXPECT_THAT(pick("", {4.8, 4.79, 1}, seed), ElementsAre(1));
}

TEST_F(NearTie, WhatOtherReplicasHaveInFlightCounts) {
  load(0, 100);
  load(1, 300);
  pool.endpoint(0).live->others = EndpointLive::pack(2, 500);
  for (uint64_t seed = 1; seed < 20; ++seed) EXPECT_THAT(pick("", {4.8, 4.79, 1}, seed), ElementsAre(1));
}

TEST_F(NearTie, OutsideOfEpsilonTheBestWins) {
  load(0, 900);
  EXPECT_THAT(pick("", {4.8, 4.7, 1}), ElementsAre(0));
  EXPECT_THAT(pick("{relative: true, epsilon: 0.001}", {4.8, 4.79, 1}), ElementsAre(0));
  EXPECT_THAT(pick("epsilon: 0", {1, 2, 2}).front(), ::testing::AnyOf(1U, 2U));
}

TEST_F(NearTie, RandomChoiceReachesEveryTieAndReplays) {
  std::set<Candidate> seen;
  for (uint64_t seed = 1; seed < 40; ++seed) {
    const auto first = pick("choice: random", {1, 1, 0}, seed);
    EXPECT_EQ(first, pick("choice: random", {1, 1, 0}, seed));
    seen.insert(first[0]);
  }
  EXPECT_THAT(seen, UnorderedElementsAre(0U, 1U));
}

TEST_F(NearTie, FallbacksFollowByTotal) {
  load(0, 900);
  EXPECT_THAT(pick("maxNumOfEndpoints: 3", {4.8, 4.79, 1}), ElementsAre(1, 0, 2));
  EXPECT_THAT(pick("maxNumOfEndpoints: 9", {3, 1, 2}), ElementsAre(0, 2, 1));
}

TEST_F(NearTie, ItsExplanationIsTheLoadThatDecidesBetweenTies) {
  load(1, 900);
  const Picker* picker = nullptr;
  std::string out;
  const auto by_load = make_as("near-tie-picker", picker);
  picker->explain(*pool.context, 1, out);
  EXPECT_EQ(out, "900 tokens in flight, 1 requests");
  out.clear();
  const auto by_lot = make_as("near-tie-picker", picker, "choice: random");
  picker->explain(*pool.context, 1, out);
  EXPECT_EQ(out, "");
}

TEST_F(NearTie, RefusesBadParameters) {
  for (const std::string_view bad : {"epsilon: -1", "{relative: true, epsilon: 2}", "choice: best"})
    EXPECT_FALSE(make_plugin("near-tie-picker", bad).ok()) << bad;
}

}  // namespace
}  // namespace penstock::scheduling
