#include "scheduling/score_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using std::chrono::seconds;
using ::testing::DoubleNear;
using ::testing::ElementsAre;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr SignalSet kWaiting = signal_bit(Signal::kWaitingRequests);

TEST(ScoreRowTest, WhatIsNoProperScoreCountsAsZeroAndIsToldApart) {
  std::vector<double> row{0.5, kNaN, -0.25, kMissingScore, kMissingScore, 1.5, 0, -0.0};
  const ScoreFaults faults = clamp_row(row);
  EXPECT_THAT(row, ElementsAre(0.5, 0, 0, 0, 0, 1, 0, 0));
  EXPECT_EQ(faults.not_a_number, 1U);
  EXPECT_EQ(faults.negative, 1U);
  EXPECT_EQ(faults.missing, 2U);
  EXPECT_FALSE(clamp_row(row).any());
  std::vector<double> totals{1, 1, 1};
  std::vector<double> added{0.5, kNaN, 2};
  EXPECT_EQ(clamp_and_add_row(added, 3, totals).not_a_number, 1U);
  EXPECT_THAT(added, ElementsAre(0.5, 0, 1));
  EXPECT_THAT(totals, ElementsAre(2.5, 1, 4));
}

TEST(ScoreRowTest, RowsThatAreMarkedMissAllTheirScores) {
  std::vector<double> row(7, 1.0);
  mark_missing(std::span(row).first(6));
  EXPECT_EQ(row[6], 1.0);
  const ScoreFaults faults = clamp_row(row);
  EXPECT_EQ(faults.missing, 6U);
  EXPECT_EQ(faults.not_a_number, 0U);
  mark_missing({});
}

TEST(ScoreRowTest, LongRowsAreClampedAndAddedAsShortOnes) {
  std::vector<double> row;
  for (int i = 0; i < 11; ++i) row.push_back(0.15 * i - (i == 6 ? 2 : 0));
  row[3] = kNaN;
  std::vector<double> one_by_one = row;
  std::vector<double> totals(11, 0.5);
  std::vector<double> expected = totals;
  const ScoreFaults faults = clamp_and_add_row(row, 1.7, totals);
  EXPECT_EQ(faults.not_a_number, 1U);
  EXPECT_EQ(faults.negative, 1U);
  for (size_t i = 0; i < row.size(); ++i) {
    clamp_row(std::span(one_by_one).subspan(i, 1));
    expected[i] += one_by_one[i] * 1.7;
  }
  EXPECT_EQ(row, one_by_one);
  EXPECT_EQ(totals, expected);
}

TEST(ScoreRowTest, AContributionIsHeldWithinItsBoundWhateverTheSignOfItsWeight) {
  const std::vector<double> row{0, 0.5, 1};
  std::vector<double> totals(3, 10);
  add_row(row, 4, 1.5, totals);
  EXPECT_THAT(totals, ElementsAre(10, 11.5, 11.5));
  add_row(row, -4, 1.5, totals);
  EXPECT_THAT(totals, ElementsAre(10, 10, 10));
  add_row(row, 4, std::numeric_limits<double>::infinity(), totals);
  EXPECT_THAT(totals, ElementsAre(10, 12, 14));
}

struct Fade : testing::Test {
  TestPool pool{3};
  Freshness freshness;
  void age(size_t i, Duration age) {
    pool.signals.observed_at[0][i] = pool.now - age;
    pool.context->freshness = &freshness;
  }
  std::vector<double> fade(std::vector<double> row) {
    pool.context->freshness = &freshness;
    fade_row(*pool.context, kWaiting, kNoSlot, pool.candidates, row);
    return row;
  }
};

TEST_F(Fade, AnOldScoreGoesToTheMeanOfWhatIsKnownByItsInfluence) {
  age(0, seconds(6));  // influence 0.5: the mean is (0.5 * 1 + 0.2) / 2.5
  EXPECT_THAT(fade({1, 0.2, 0}), ElementsAre(DoubleNear(0.64, 1e-12), 0.2, 0));
}

TEST_F(Fade, NearTheSecondBoundAScoreNeitherDrawsNorRepels) {
  age(0, std::chrono::milliseconds(9999));
  EXPECT_THAT(fade({1, 0.4, 0.2}), ElementsAre(DoubleNear(0.3, 1e-3), 0.4, 0.2));
  EXPECT_THAT(fade({0, 0.4, 0.2}), ElementsAre(DoubleNear(0.3, 1e-3), 0.4, 0.2));
}

TEST_F(Fade, FreshScoresStayAndSoDoThoseOfUnknownValues) {
  EXPECT_THAT(fade({1, 0.2, 0}), ElementsAre(1, 0.2, 0));
  age(0, seconds(11));
  EXPECT_THAT(fade({0, 0.2, 1}), ElementsAre(0, 0.2, 1)) << "what the scorer gives to unknown ones";
  for (size_t i = 0; i < 3; ++i) age(i, seconds(11));
  EXPECT_THAT(fade({1, 0.2, 0}), ElementsAre(1, 0.2, 0)) << "nobody is known";
}

TEST_F(Fade, WhereAllAreEquallyOldTheOrderStaysAndTheSpreadShrinks) {
  for (size_t i = 0; i < 3; ++i) age(i, seconds(8));
  EXPECT_THAT(fade({1, 0.5, 0}), ElementsAre(0.625, 0.5, 0.375));
}

TEST_F(Fade, EqualScoresOfEqualAgeStayEqual) {
  age(0, seconds(5));
  age(2, seconds(5));
  const std::vector<double> row = fade({0.8, 0.1, 0.8});
  EXPECT_EQ(row[0], row[2]);
}

}  // namespace
}  // namespace penstock::scheduling
