#include "scheduling/handlers/data_parallel_profile_handler.h"

#include "telemetry/log.h"

namespace penstock::scheduling {

void check_primary_port(config::Binder& b, int port) {
  if (port < 0 || port > 65535) {
    b.fail("primaryPort", "invalid primaryPort: must be between 1 and 65535, got " + std::to_string(port));
  }
}

void set_data_parallel_header(SchedulingContext& ctx, const SchedulingResult& result) {
  if (ctx.edits == nullptr || result.primary == nullptr || result.primary->targets.empty()) return;
  ctx.edits->set_request("x-data-parallel-host-port",
                         ctx.pool.endpoints[result.primary->targets[0]]->host_port);
}

void DataParallelProfileHandler::bind(config::Binder& b, Params& p) {
  b.field("primaryPort", p.primary_port, "", "Port that requests are sent to, whatever rank was chosen.");
  if (!b.describing()) check_primary_port(b, p.primary_port);
}

std::span<const uint32_t> DataParallelProfileHandler::pick(
    SchedulingContext& ctx, std::span<const std::string> profile_names, std::span<bool> done,
    std::span<const ProfileResult* const> /*results*/) const {
  if (profile_names.size() != 1) {
    telemetry::log_debug("data-parallel-profile-handler needs exactly one scheduling profile",
                         {{"x-request-id", ctx.request.request_id}});
    return {};
  }
  if (done[0]) return {};
  return ctx.arena.make_filled<uint32_t>(1, 0);
}

Result<SchedulingResult> DataParallelProfileHandler::process(
    SchedulingContext& ctx, std::span<const std::string> profile_names,
    std::span<const ProfileResult* const> results) const {
  if (results.size() != 1 || results[0] == nullptr) {
    return Error{ErrorCode::kInternal, "failed to run scheduler profile '" +
                                           (profile_names.empty() ? std::string() : profile_names[0]) + "'"};
  }
  return SchedulingResult{ctx.arena.make_filled<const ProfileResult*>(1, results[0]), results[0],
                          primary_port_};
}

Status DataParallelProfileHandler::pre_request(SchedulingContext& ctx, const SchedulingResult& result) const {
  set_data_parallel_header(ctx, result);
  return {};
}

}  // namespace penstock::scheduling
