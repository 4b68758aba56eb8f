#include "base/units.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

using namespace std::chrono_literals;

TEST(DurationTextTest, ReadsWhatGoReads) {
  EXPECT_EQ(*parse_duration("60s"), 60s);
  EXPECT_EQ(*parse_duration("1m30s"), 90s);
  EXPECT_EQ(*parse_duration("250ms"), 250ms);
  EXPECT_EQ(*parse_duration("1.5h"), 90min);
  EXPECT_EQ(*parse_duration("0"), 0s);
  EXPECT_EQ(*parse_duration("-1s"), -1s);
  for (const char* bad : {"", "60", "s", "1x", "1s2", ".s", "1..5s"})
    EXPECT_FALSE(parse_duration(bad).ok()) << bad;
}

TEST(DurationTextTest, PrintsWhatGoPrints) {
  EXPECT_EQ(format_duration(30s), "30s");
  EXPECT_EQ(format_duration(60s), "1m0s");
  EXPECT_EQ(format_duration(150s), "2m30s");
  EXPECT_EQ(format_duration(200ms), "200ms");
  EXPECT_EQ(format_duration(1500ms), "1.5s");
  EXPECT_EQ(format_duration(0s), "0s");
  EXPECT_EQ(format_duration(3600s), "1h0m0s");
}

TEST(QuantityTest, ReadsSuffixesAndRoundsUp) {
  EXPECT_EQ(*parse_quantity("1Gi"), 1073741824);
  EXPECT_EQ(*parse_quantity("500Mi"), 524288000);
  EXPECT_EQ(*parse_quantity("1k"), 1000);
  EXPECT_EQ(*parse_quantity("500M"), 500000000);
  EXPECT_EQ(*parse_quantity("1024"), 1024);
  EXPECT_EQ(*parse_quantity("1e3"), 1000);
  EXPECT_EQ(*parse_quantity("1500m"), 2);
  EXPECT_EQ(*parse_quantity("-5"), -5);
  for (const char* bad : {"", "Gi", "1Q", "10Ei", "1 k"}) EXPECT_FALSE(parse_quantity(bad).ok()) << bad;
}

}  // namespace
}  // namespace penstock
