#include "scheduling/handlers/single_profile_handler.h"

#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

TEST(SingleProfileHandlerTest, RunsTheProfileOnceAndMakesItPrimary) {
  TestPool pool(1);
  const SingleProfileHandler handler;
  const std::vector<std::string> names{"default"};
  bool done[1] = {false};
  const ProfileResult result{"default", {}, {}, {}, nullptr};
  const ProfileResult* results[1] = {nullptr};
  const auto first = handler.pick(*pool.context, names, done, results);
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0], 0U);
  done[0] = true;
  results[0] = &result;
  EXPECT_TRUE(handler.pick(*pool.context, names, done, results).empty());
  auto processed = handler.process(*pool.context, names, results);
  ASSERT_TRUE(processed.ok());
  EXPECT_EQ(processed->primary, &result);
  ASSERT_EQ(processed->profiles.size(), 1U);
  EXPECT_EQ(processed->profiles[0], &result);
}

TEST(SingleProfileHandlerTest, NamesTheProfileThatFailed) {
  TestPool pool(1);
  const ProfileResult* results[2] = {nullptr, nullptr};
  const SingleProfileHandler handler;
  auto failed = handler.process(*pool.context, std::vector<std::string>{"default"}, {results, 1});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "failed to run scheduler profile 'default'");
  auto two = handler.process(*pool.context, std::vector<std::string>{"a", "b"}, results);
  ASSERT_FALSE(two.ok());
  EXPECT_EQ(two.error().message,
            "single profile handler is intended to be used with a single profile, failed to process multiple "
            "profiles");
}

}  // namespace
}  // namespace penstock::scheduling
