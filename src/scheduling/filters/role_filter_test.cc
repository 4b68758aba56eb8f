#include "scheduling/filters/role_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/filters/decode_filter.h"
#include "scheduling/filters/encode_filter.h"
#include "scheduling/filters/prefill_filter.h"
#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::ElementsAre;

TEST(RoleFilterTest, EachKeepsItsRolesAndOnlyDecodeKeepsUnlabelled) {
  const std::vector<std::string> roles = {
      "decode", "prefill", "encode", "prefill-decode", "both", "encode-prefill", "encode-prefill-decode"};
  TestPool pool(roles.size() + 1);
  for (size_t i = 0; i < roles.size(); ++i) pool.endpoint(i).labels.emplace(kRoleLabel, roles[i]);
  EXPECT_THAT(pool.keep(DecodeFilter()), ElementsAre("e0", "e3", "e4", "e6", "e7"));
  EXPECT_THAT(pool.keep(PrefillFilter()), ElementsAre("e1", "e3", "e4", "e5", "e6"));
  EXPECT_THAT(pool.keep(EncodeFilter()), ElementsAre("e2", "e5", "e6"));
}

}  // namespace
}  // namespace penstock::scheduling
