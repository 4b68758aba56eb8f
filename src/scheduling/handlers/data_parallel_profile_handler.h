#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `data-parallel-profile-handler`: for engines whose ranks sit behind one port. Runs the one profile there
// is; the chosen rank goes into x-data-parallel-host-port, the request itself to the primary port.
// Example: target 10.0.0.1:8002: header 10.0.0.1:8002, destination 10.0.0.1:8000.
//
// Unlike the reference it keeps the target's scores and data; primaryPort 0 leaves the destination alone.
class DataParallelProfileHandler final : public ProfileHandler, public PreRequest {
 public:
  static constexpr std::string_view kType = "data-parallel-profile-handler";
  struct Params {
    int primary_port = 8000;
  };
  static void bind(config::Binder& b, Params& p);
  explicit DataParallelProfileHandler(const Params& params)
      : primary_port_(static_cast<uint16_t>(params.primary_port)) {}

  std::span<const uint32_t> pick(SchedulingContext& ctx, std::span<const std::string> profile_names,
                                 std::span<bool> done,
                                 std::span<const ProfileResult* const> results) const override;
  Result<SchedulingResult> process(SchedulingContext& ctx, std::span<const std::string> profile_names,
                                   std::span<const ProfileResult* const> results) const override;
  Status pre_request(SchedulingContext& ctx, const SchedulingResult& result) const override;
  size_t required_profiles() const override { return 1; }

 private:
  uint16_t primary_port_;
};

// A primaryPort parameter: 0 or 1 to 65535.
void check_primary_port(config::Binder& b, int port);
// The header that names the rank of the primary's first target.
void set_data_parallel_header(SchedulingContext& ctx, const SchedulingResult& result);

}  // namespace penstock::scheduling
