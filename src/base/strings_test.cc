#include "base/strings.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(StringsTest, ParsesOnlyWholeNumbers) {
  EXPECT_EQ(parse_u64("42"), 42U);
  EXPECT_EQ(parse_u64("-1"), std::nullopt);
  EXPECT_EQ(parse_u64("4 "), std::nullopt);
  EXPECT_EQ(parse_u64(""), std::nullopt);
  EXPECT_EQ(parse_u64("18446744073709551616"), std::nullopt);
  EXPECT_EQ(parse_i64("-9"), -9);
  EXPECT_EQ(parse_double("1.7e9"), 1.7e9);
  EXPECT_EQ(parse_double("1.5x"), std::nullopt);
}

TEST(StringsTest, QuotesControlCharactersAndReplacesInvalidUtf8) {
  EXPECT_EQ(json_quote("a\"b\\c\n\x01"), "\"a\\\"b\\\\c\\n\\u0001\"");
  EXPECT_EQ(json_quote("\xC3\xA9\xFF"), "\"\xC3\xA9\xEF\xBF\xBD\"");
  EXPECT_EQ(json_quote("\xED\xA0\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

TEST(StringsTest, SplitKeepsEmptyParts) {
  EXPECT_EQ(split("a,,b", ',').size(), 3U);
  EXPECT_EQ(split("", ',').size(), 1U);
}

TEST(StringsTest, TrimAndCaseFoldAsciiOnly) {
  EXPECT_EQ(trim(" \ta b\r\n"), "a b");
  EXPECT_TRUE(ascii_iequals("Content-Type", "content-TYPE"));
  EXPECT_FALSE(ascii_iequals("a", "ab"));
}

}  // namespace
}  // namespace penstock
