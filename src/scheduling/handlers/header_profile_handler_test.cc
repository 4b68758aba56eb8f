#include "scheduling/handlers/header_profile_handler.h"

#include <gtest/gtest.h>

#include <array>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

struct HeaderProfile : testing::Test {
  TestPool pool{1};
  const ProfileHandler* handler = nullptr;
  std::unique_ptr<Plugin> plugin = make_as("header-profile-handler", handler);
  std::vector<std::string> names{"encode", "prefill", "decode"};

  // Name of the profile that runs for this header value; "": none.
  std::string runs(std::optional<std::string_view> value) {
    const HeaderField fields[] = {{"epp-profile", value.value_or("")}};
    pool.request.headers = value ? std::span<const HeaderField>(fields) : std::span<const HeaderField>();
    std::array<bool, 3> done{};
    const std::vector<const ProfileResult*> results(names.size(), nullptr);
    const auto picked = handler->pick(*pool.context, names, std::span(done).first(names.size()), results);
    return picked.empty() ? std::string() : names[picked[0]];
  }
};

TEST_F(HeaderProfile, RunsWhatTheHeaderNames) {
  EXPECT_EQ(runs(std::nullopt), "decode");
  EXPECT_EQ(runs("  "), "decode");
  EXPECT_EQ(runs(" prefill "), "prefill");
  EXPECT_EQ(runs("Prefill"), "");
}

TEST_F(HeaderProfile, ASingleProfileRunsWhateverTheHeaderSays) {
  names = {"x"};
  EXPECT_EQ(runs("foo"), "x");
}

TEST_F(HeaderProfile, TheProfileThatRanIsPrimary) {
  const HeaderField fields[] = {{"epp-profile", "encode"}};
  pool.request.headers = fields;
  ProfileResult encode{"encode", {}, {}, {}, nullptr};
  const ProfileResult* const results[] = {&encode, nullptr, nullptr};
  const auto result = handler->process(*pool.context, names, results);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->primary, &encode);
  const ProfileResult* const failed[] = {nullptr, nullptr, nullptr};
  EXPECT_EQ(handler->process(*pool.context, names, failed).error().message,
            "failed to run scheduler profile 'encode'");
  bool done[] = {true, false, false};
  EXPECT_TRUE(handler->pick(*pool.context, names, done, results).empty());
}

}  // namespace
}  // namespace penstock::scheduling
