#include "base/escapes.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(Escapes, PercentDecodingLeavesWhatIsNoEscape) {
  EXPECT_EQ(percent_decode("line%0aend %C3%BC%7F"), "line\nend ü\x7f");
  EXPECT_EQ(percent_decode("%"), "%");
  EXPECT_EQ(percent_decode("%4"), "%4");
  EXPECT_EQ(percent_decode("%zz%41%4g"), "%zzA%4g");
}

TEST(Escapes, HexDigitsAreReadInEitherCase) {
  EXPECT_EQ(hex_digit('0'), 0);
  EXPECT_EQ(hex_digit('f'), 15);
  EXPECT_EQ(hex_digit('A'), 10);
  for (const char c : {'g', 'G', '`', ':', '/', '@'}) EXPECT_EQ(hex_digit(c), -1);
}

}  // namespace
}  // namespace penstock
