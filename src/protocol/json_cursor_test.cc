#include "protocol/json_cursor.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include <string>

namespace penstock::protocol {
namespace {

bool accepts(const std::string& text) {
  Arena arena;
  JsonCursor cursor(text, &arena);
  cursor.skip();
  return cursor.finish();
}

std::string value_of(const std::string& literal) {
  Arena arena;
  JsonCursor cursor(literal, &arena);
  JsonString out;
  if (!cursor.string(out) || !cursor.finish()) return "<error>";
  return std::string(out.value);
}

TEST(JsonCursor, AcceptsAndRefusesWhatTheGrammarSays) {
  for (const char* good : {"{}", "[]", " { } ", "null", "true", "false", "0", "-0", "1.5e-3", "\"\"", "[1,2]",
                           "{\"a\":{\"b\":[{}]}}", "\t\r\n[ 1 , \"x\" ]\n"})
    EXPECT_TRUE(accepts(good)) << good;
  for (const char* bad : {"",
                          " ",
                          "{",
                          "[",
                          "}",
                          "{\"a\"}",
                          "{\"a\":}",
                          "{\"a\":1,}",
                          "[1,]",
                          "[,1]",
                          "[1 2]",
                          "{\"a\" 1}",
                          "{a:1}",
                          "01",
                          "1.",
                          ".5",
                          "+1",
                          "1e",
                          "--1",
                          "-",
                          "tru",
                          "nul",
                          "truee",
                          "NaN",
                          "Infinity",
                          "\"",
                          "\"\\\"",
                          "\"\\q\"",
                          "\"\\u12\"",
                          "\"\\u12g4\"",
                          "\"a\nb\"",
                          "{} {}",
                          "{}x",
                          "[1]]",
                          "'a'",
                          "\xEF\xBB\xBF{}",
                          "{\"a\":1 \"b\":2}",
                          "[\"a\":1]"})
    EXPECT_FALSE(accepts(bad)) << bad;
  EXPECT_FALSE(accepts(std::string("\"a\0b\"", 5)));
}

TEST(JsonCursor, RefusesNestingBeyondOneHundredLevels) {
  EXPECT_TRUE(accepts(std::string(100, '[') + std::string(100, ']')));
  EXPECT_FALSE(accepts(std::string(102, '[') + std::string(102, ']')));
  EXPECT_FALSE(accepts(std::string(100000, '[')));
  std::string objects;
  for (int i = 0; i < 101; ++i) objects += "{\"a\":";
  EXPECT_FALSE(accepts(objects + "1" + std::string(101, '}')));
}

TEST(JsonCursor, ResolvesEscapesWhereverTheyStandInABlock) {
  EXPECT_EQ(value_of(R"("\"\\\/\b\f\n\r\t")"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(value_of(R"("\u0041\u00e9\u20ac\ud83d\ude00")"), "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  for (size_t before = 0; before < 140; ++before) {
    for (size_t after : {0, 1, 15, 63, 64, 65}) {
      const std::string a(before, 'a');
      const std::string b(after, 'b');
      EXPECT_EQ(value_of("\"" + a + "\\n" + b + "\""), a + "\n" + b);
      EXPECT_EQ(value_of("\"" + a + "\\\\" + b + "\""), a + "\\" + b);
      EXPECT_EQ(value_of("\"" + a + "\\ud83d\\ude00\\\"" + b + "\""), a + "\xF0\x9F\x98\x80\"" + b);
    }
  }
}

TEST(JsonCursor, LoneSurrogatesBecomeReplacementCharactersAndRawBytesStay) {
  EXPECT_EQ(value_of(R"("\ud83d")"), "\xEF\xBF\xBD");
  EXPECT_EQ(value_of(R"("\ude00x")"), "\xEF\xBF\xBDx");
  EXPECT_EQ(value_of(R"("\ud83d\u0041")"),
            "\xEF\xBF\xBD"
            "A");
  EXPECT_EQ(value_of(R"("\ud83d\ud83d\ude00")"), "\xEF\xBF\xBD\xF0\x9F\x98\x80");
  EXPECT_EQ(value_of("\"\xFF\xC3\""), "\xFF\xC3");
  EXPECT_EQ(value_of(R"("\u0000")"), std::string(1, '\0'));
}

TEST(JsonCursor, AgreesWithSimdjsonOnMutatedDocuments) {
  const std::string document =
      R"({"a":[1,-2.5e3,true,false,null,"x\n\u00e9\\"],"b":{"c":"0123456789012345678901234567890123456789012345678901234567890123456789\"end"},"d":[[],{}]})";
  simdjson::dom::parser parser;
  const std::string palette = "{}[]\",:\\u0 1-.e\n";
  size_t disagreements = 0;
  for (size_t i = 0; i < document.size(); ++i) {
    for (const char c : palette) {
      for (int mode = 0; mode < 3; ++mode) {
        std::string text = document;
        if (mode == 0) text[i] = c;
        if (mode == 1) text.insert(i, 1, c);
        if (mode == 2) text.erase(i, 1);
        simdjson::dom::element element;
        const bool expected = parser.parse(simdjson::padded_string(text)).get(element) == simdjson::SUCCESS;
        if (accepts(text) != expected) {
          ++disagreements;
          ADD_FAILURE() << text;
        }
        if (disagreements > 3) return;
      }
    }
  }
}

TEST(JsonCursor, ReadsNumbersAsCountsOnlyWhenIntegralAndNotNegative) {
  EXPECT_EQ(integral_value("0"), 0);
  EXPECT_EQ(integral_value("50"), 50);
  EXPECT_EQ(integral_value("50.0"), 50);
  EXPECT_EQ(integral_value("1e2"), 100);
  EXPECT_EQ(integral_value("1.5"), std::nullopt);
  EXPECT_EQ(integral_value("-1"), std::nullopt);
  EXPECT_EQ(integral_value("12345678901234567890"), std::nullopt);
}

TEST(JsonCursor, NamesTheOffsetOfAnError) {
  JsonCursor cursor("{\"a\": tru}", nullptr);
  EXPECT_FALSE(cursor.skip());
  EXPECT_EQ(cursor.error_text(), "invalid literal at offset 6");
  JsonCursor cut("{\"a\":", nullptr);
  EXPECT_FALSE(cut.skip());
  EXPECT_EQ(cut.error_text(), "unexpected end of JSON input at offset 5");
}

}  // namespace
}  // namespace penstock::protocol
