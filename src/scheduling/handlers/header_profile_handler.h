#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `header-profile-handler`: runs the profile that the request's header names (trimmed, case-sensitive), the
// default one without a header; a single profile runs whatever the header says. A name that no profile has:
// nothing runs, which the client sees as 429.
// Examples with profiles encode, prefill, decode: no header: decode; " prefill ": prefill; "Prefill": none.
class HeaderProfileHandler final : public ProfileHandler {
 public:
  static constexpr std::string_view kType = "header-profile-handler";
  struct Params {
    std::string header = "epp-profile";  // lower-case
    std::string default_profile = "decode";
  };
  static void bind(config::Binder& b, Params& p);
  explicit HeaderProfileHandler(Params params) : params_(std::move(params)) {}

  std::span<const uint32_t> pick(SchedulingContext& ctx, std::span<const std::string> profile_names,
                                 std::span<bool> done,
                                 std::span<const ProfileResult* const> results) const override;
  Result<SchedulingResult> process(SchedulingContext& ctx, std::span<const std::string> profile_names,
                                   std::span<const ProfileResult* const> results) const override;

 private:
  // Index of the profile to run; profile_names.size(): none.
  size_t wanted(const SchedulingContext& ctx, std::span<const std::string> profile_names) const;

  Params params_;
};

}  // namespace penstock::scheduling
