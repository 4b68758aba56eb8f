#include "base/spelling.h"

#include <gtest/gtest.h>

#include <array>

namespace penstock {
namespace {

TEST(NearestWord, FindsWhatAMisspeltWordWasMeantToBe) {
  constexpr std::array<std::string_view, 4> kWords{"queue-scorer", "kv-cache-utilization-scorer", "--listen",
                                                   "--loops"};
  EXPECT_EQ(nearest_word("queue-scorrer", kWords), "queue-scorer");
  EXPECT_EQ(nearest_word("qeue-scorer", kWords), "queue-scorer");
  EXPECT_EQ(nearest_word("kv-cache-scorer", kWords), "") << "twelve letters are another word";
  EXPECT_EQ(nearest_word("--lisen", kWords), "--listen");
  EXPECT_EQ(nearest_word("--loops", kWords), "--loops");
  EXPECT_EQ(nearest_word("--port", kWords), "");
  EXPECT_EQ(nearest_word("", kWords), "");
  EXPECT_EQ(nearest_word(std::string(1000, 'a'), kWords), "");
}

}  // namespace
}  // namespace penstock
