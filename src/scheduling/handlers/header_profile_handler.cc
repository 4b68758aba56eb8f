#include "scheduling/handlers/header_profile_handler.h"

#include <algorithm>

#include "base/strings.h"
#include "telemetry/log.h"

namespace penstock::scheduling {

void HeaderProfileHandler::bind(config::Binder& b, Params& p) {
  std::string header = "EPP-Profile";
  b.field("headerName", header, "", "Name of the header that names the profile.");
  b.field("defaultProfile", p.default_profile, "", "Profile of requests without that header.");
  p.header = ascii_lower(trim(header));
  p.default_profile = std::string(trim(p.default_profile));
}

size_t HeaderProfileHandler::wanted(const SchedulingContext& ctx,
                                    std::span<const std::string> profile_names) const {
  if (profile_names.size() == 1) return 0;
  std::string_view name = trim(find_header(ctx.request.headers, params_.header).value_or(std::string_view()));
  if (name.empty()) name = params_.default_profile;
  return static_cast<size_t>(std::find(profile_names.begin(), profile_names.end(), name) -
                             profile_names.begin());
}

std::span<const uint32_t> HeaderProfileHandler::pick(
    SchedulingContext& ctx, std::span<const std::string> profile_names, std::span<bool> done,
    std::span<const ProfileResult* const> /*results*/) const {
  if (std::any_of(done.begin(), done.end(), [](bool ran) { return ran; })) return {};
  const size_t index = wanted(ctx, profile_names);
  if (index == profile_names.size()) {
    telemetry::log_debug("the request names a scheduling profile that does not exist",
                         {{"x-request-id", ctx.request.request_id}, {"header", params_.header}});
    return {};
  }
  return ctx.arena.make_filled<uint32_t>(1, static_cast<uint32_t>(index));
}

Result<SchedulingResult> HeaderProfileHandler::process(SchedulingContext& ctx,
                                                       std::span<const std::string> profile_names,
                                                       std::span<const ProfileResult* const> results) const {
  const size_t index = wanted(ctx, profile_names);
  if (index == profile_names.size()) {
    return Error{ErrorCode::kInternal, "header profile handler: no profile ran for header " + params_.header};
  }
  if (results[index] == nullptr) {
    return Error{ErrorCode::kInternal, "failed to run scheduler profile '" + profile_names[index] + "'"};
  }
  return SchedulingResult{ctx.arena.make_filled<const ProfileResult*>(1, results[index]), results[index], 0};
}

}  // namespace penstock::scheduling
