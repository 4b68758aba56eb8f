#include "scheduling/handlers/single_profile_handler.h"

#include <algorithm>

namespace penstock::scheduling {

std::span<const uint32_t> SingleProfileHandler::pick(
    SchedulingContext& ctx, std::span<const std::string> profile_names, std::span<bool> done,
    std::span<const ProfileResult* const> /*results*/) const {
  if (std::all_of(done.begin(), done.end(), [](bool ran) { return ran; })) return {};
  std::span<uint32_t> all = ctx.arena.make_span<uint32_t>(profile_names.size());
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

Result<SchedulingResult> SingleProfileHandler::process(SchedulingContext& ctx,
                                                       std::span<const std::string> profile_names,
                                                       std::span<const ProfileResult* const> results) const {
  if (profile_names.size() != 1) {
    return Error{ErrorCode::kInternal,
                 "single profile handler is intended to be used with a single profile, failed to process "
                 "multiple profiles"};
  }
  if (results[0] == nullptr) {
    return Error{ErrorCode::kInternal, "failed to run scheduler profile '" + profile_names[0] + "'"};
  }
  return SchedulingResult{ctx.arena.make_filled<const ProfileResult*>(1, results[0]), results[0], 0};
}

}  // namespace penstock::scheduling
