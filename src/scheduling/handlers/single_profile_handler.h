#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `single-profile-handler`: runs the one profile there is and makes its result primary. Takes no
// parameters. Example: profile "default" ran and chose A: primary is "default" with A; it failed: the error
// "failed to run scheduler profile 'default'".
class SingleProfileHandler final : public ProfileHandler {
 public:
  static constexpr std::string_view kType = "single-profile-handler";

  std::span<const uint32_t> pick(SchedulingContext& ctx, std::span<const std::string> profile_names,
                                 std::span<bool> done,
                                 std::span<const ProfileResult* const> results) const override;
  Result<SchedulingResult> process(SchedulingContext& ctx, std::span<const std::string> profile_names,
                                   std::span<const ProfileResult* const> results) const override;
  size_t required_profiles() const override { return 1; }
};

}  // namespace penstock::scheduling
