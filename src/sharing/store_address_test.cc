#include "sharing/store_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::sharing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(StoreAddress, IsTakenFromItsUrl) {
  const auto plain = parse_store_url("redis://cache");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->shown(), "redis://cache:6379/0");
  EXPECT_FALSE(plain->tls);
  const auto full = parse_store_url("rediss://me:p%40ss%3A@[::1]:7000/3");
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(full->user, "me");
  EXPECT_EQ(full->password, "p@ss:");
  EXPECT_EQ(full->host, "::1");
  EXPECT_TRUE(full->tls);
  EXPECT_EQ(full->shown(), "rediss://[::1]:7000/3") << "nothing of the password";
  EXPECT_EQ(parse_store_url("redis://:secret@h")->user, "");
  EXPECT_EQ(parse_store_url("redis://h/")->database, 0U);
}

TEST(StoreAddress, AnythingElseIsRefusedWithoutTellingThePassword) {
  for (const char* bad : {"http://h", "h:6379", "redis://", "redis://h:0", "redis://h:70000", "redis://h/x",
                          "redis://h/70000", "redis://h?db=1", "redis://a%2:secret@h", "redis://u:secret@"}) {
    const auto parsed = parse_store_url(bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidConfig);
    EXPECT_THAT(parsed.error().message, Not(HasSubstr("secret")));
  }
}

}  // namespace
}  // namespace penstock::sharing
