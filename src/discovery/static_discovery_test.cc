#include "discovery/static_discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::discovery {
namespace {

using ::testing::HasSubstr;

TEST(StaticDiscoveryTest, MakesAnEndpointOfEachUrl) {
  const auto all =
      static_endpoints({"http://127.0.0.1:8001", "https://engine.example.com:8443", "[::1]:8000"}, "");
  ASSERT_TRUE(all.ok()) << all.error().message;
  ASSERT_EQ(all->size(), 3U);
  EXPECT_EQ((*all)[0].address, "127.0.0.1");
  EXPECT_EQ((*all)[0].port, 8001);
  EXPECT_TRUE((*all)[1].tls);
  EXPECT_EQ((*all)[2].address, "::1");
}

TEST(StaticDiscoveryTest, NamesAUrlThatIsWrongOrRepeated) {
  EXPECT_THAT(static_endpoints({"ftp://x"}).error().message, HasSubstr("ftp://x"));
  EXPECT_THAT(static_endpoints({"http://h:1", "http://h:1"}).error().message, HasSubstr("given twice"));
}

}  // namespace
}  // namespace penstock::discovery
