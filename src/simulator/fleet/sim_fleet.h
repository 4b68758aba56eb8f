#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "config/params.h"
#include "simulator/engine_flags.h"
#include "simulator/flag_values.h"
#include "simulator/fleet/report.h"

namespace penstock::simulator {

// What `penstock sim fleet` takes; the names in bind() are the flags'.
struct SimFleetOptions : EngineFlags {
  SimFleetOptions() { profile = "llama3-8b-h100"; }

  std::string trace;  // a file (trace_file.h); empty: `workload`
  std::string workload = "conversation";
  int64_t requests = 0;  // at most; 0: all of the trace, the workload's own number
  double speed = 1;
  bool keep_batches = false;
  std::vector<std::string> policy;  // built-in ones
  std::vector<std::string> config;  // files
  int64_t engines = 16;
  int64_t gateways = 1;
  Duration scrape_interval = std::chrono::milliseconds(200);
  Duration staleness = std::chrono::seconds(2);
  Duration stall_every{};
  Duration stall_for{};
  Duration restart_every{};
  Duration restart_for{};
  Duration restart_notice = std::chrono::seconds(1);
  Duration warm_up{};
  Duration ttft_goal{};
  Duration tpot_goal{};
  int64_t seed = 1;
  bool json = false;
};

void bind(config::Binder& b, SimFleetOptions& options);
std::vector<config::ParamDoc> sim_fleet_flags();
// For --help: each kind of workload and each built-in policy with what it is, a line each.
std::string sim_fleet_lists();
// Errors name flag and value.
Result<SimFleetOptions> parse_sim_fleet_flags(FlagValues flags);

// The policies that are compared when none is named.
std::vector<std::string> default_fleet_policies();

// Runs one workload under one policy after the other. `progress` is told the name of each policy before it
// runs. Errors, all of them before the first policy runs: a trace, workload, profile or policy that cannot be
// had.
Result<FleetComparison> run_sim_fleet(const SimFleetOptions& options,
                                      const std::function<void(const std::string& policy)>& progress);

}  // namespace penstock::simulator
