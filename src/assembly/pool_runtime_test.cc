#include "assembly/pool_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "assembly/foundation.h"
#include "config/node.h"

namespace penstock::assembly {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

PoolSpec pool_with(const std::string& picker, Duration interval = milliseconds(50),
                   const std::string& ns = "default") {
  PoolSpec spec;
  spec.settings.name = "p";
  spec.settings.ns = ns;
  spec.settings.config_inline = *config::parse_document(picker, "test");
  spec.settings.metrics.interval = interval;
  return spec;
}

TEST(PoolRuntimeTest, ARollbackGoesToTheFormerConfigurationWhateverTheTimesOfScrapesWere) {
  const std::string queue = "plugins: [{type: queue-scorer}]";
  const std::string cache = "plugins: [{type: kv-cache-utilization-scorer}]";
  Foundation foundation(1, {});
  const auto added = foundation.add_pool(pool_with(queue));
  ASSERT_TRUE(added.ok()) << added.error().message;
  PoolRuntime& pool = **added;
  EXPECT_EQ(pool.rollback().error().code, ErrorCode::kNotFound);
  const std::string first = pool.policy()->effective_config;

  ASSERT_TRUE(pool.reload(pool_with(cache)).ok());
  const std::string second = pool.policy()->effective_config;
  ASSERT_NE(second, first);
  ASSERT_TRUE(pool.reload(pool_with(cache, milliseconds(100))).ok());
  EXPECT_EQ(pool.policy()->epoch, 3U);

  ASSERT_TRUE(pool.rollback().ok());
  EXPECT_EQ(pool.policy()->effective_config, first);
  ASSERT_TRUE(pool.rollback().ok());
  EXPECT_EQ(pool.policy()->effective_config, second);
}

TEST(PoolRuntimeTest, ARollbackTellsPoolsOfOneNameApart) {
  const std::string picker = "plugins: [{type: queue-scorer}]";
  Foundation foundation(1, {});
  ASSERT_TRUE(foundation.add_pool(pool_with(picker, milliseconds(50), "a")).ok());
  ASSERT_TRUE(foundation.add_pool(pool_with(picker, milliseconds(50), "b")).ok());
  EXPECT_EQ(foundation.rollback("p").error().message, "which pool? There are a/p, b/p");
  EXPECT_EQ(foundation.rollback("").error().message, "which pool? There are a/p, b/p");
  EXPECT_EQ(foundation.rollback("c/p").error().message, "there is no pool 'c/p'; there are a/p, b/p");
  EXPECT_THAT(foundation.rollback("a/p").error().message, HasSubstr("a/p has had no other configuration"));
}

}  // namespace
}  // namespace penstock::assembly
