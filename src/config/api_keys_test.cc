#include "config/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::config {
namespace {

constexpr std::string_view kSecret = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

TEST(ApiKeys, FindTheNameOfAKeyByItsHash) {
  auto keys = ApiKeys::decode("keys:\n- name: team-a\n  sha256: \"" + std::string(kSecret) + "\"\n", "k");
  ASSERT_TRUE(keys.ok()) << keys.error().message;
  ASSERT_NE((*keys)->find("secret"), nullptr);
  EXPECT_EQ(*(*keys)->find("secret"), "team-a");
  EXPECT_EQ((*keys)->find("Secret"), nullptr);
  EXPECT_EQ((*keys)->find(""), nullptr);
}

TEST(ApiKeys, OnlyAnExplicitEmptyListLetsNobodyIn) {
  for (const char* empty : {"", "# nothing\n", "keys:\n", "{}"}) {
    auto keys = ApiKeys::decode(empty, "k.yaml");
    ASSERT_FALSE(keys.ok()) << empty;
    EXPECT_THAT(keys.error().message, testing::HasSubstr("k.yaml: keys: nothing is listed"));
  }
  auto nobody = ApiKeys::decode("keys: []\n", "k.yaml");
  ASSERT_TRUE(nobody.ok()) << nobody.error().message;
  EXPECT_EQ((*nobody)->find("secret"), nullptr);
}

TEST(ApiKeys, RefuseWhatIsNotADigest) {
  auto keys = ApiKeys::decode("keys:\n- {name: a, sha256: abc}\n- {name: \"\", sha256: \"" +
                                  std::string(kSecret) + "\"}\n- {name: b, key: x}\n",
                              "keys.yaml");
  ASSERT_FALSE(keys.ok());
  EXPECT_THAT(keys.error().message,
              testing::HasSubstr("keys[0].sha256: expected 64 hexadecimal digits (line 2)"));
  EXPECT_THAT(keys.error().message, testing::HasSubstr("keys[1].name: must not be empty"));
  EXPECT_THAT(keys.error().message, testing::HasSubstr("keys[2]: unknown field \"key\""));
  const std::string twice = "keys:\n- {name: a, sha256: \"" + std::string(kSecret) +
                            "\"}\n- {name: b, sha256: \"" + std::string(kSecret) + "\"}\n";
  EXPECT_FALSE(ApiKeys::decode(twice, "k").ok());
  EXPECT_FALSE(ApiKeys::load("/nonexistent/keys.yaml").ok());
}

}  // namespace
}  // namespace penstock::config
