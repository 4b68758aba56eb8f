#include "assembly/known_types.h"

#include <gtest/gtest.h>

namespace penstock::assembly {
namespace {

TEST(KnownTypes, AreSortedAndFound) {
  const auto types = known_types();
  EXPECT_TRUE(std::is_sorted(types.begin(), types.end(),
                             [](const KnownType& a, const KnownType& b) { return a.type < b.type; }));
  EXPECT_EQ(types.size(), 97U);
  ASSERT_NE(find_known_type("agent-identity"), nullptr);
  EXPECT_EQ(find_known_type("agent-identity")->stability, Stability::kAlpha);
  EXPECT_EQ(find_known_type("tokenizer")->replaced_by, "token-producer");
  EXPECT_EQ(find_known_type("zzz"), nullptr);
}

}  // namespace
}  // namespace penstock::assembly
