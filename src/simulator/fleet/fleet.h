#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "simulator/engine_model.h"
#include "simulator/fleet/policies.h"
#include "simulator/fleet/workload.h"

namespace penstock::simulator {

struct FleetOptions {
  uint32_t engines = 16;
  uint32_t gateways = 1;
  EngineModel::Options engine;  // of every engine
  // Each gateway looks at each engine so often, at a moment of its own, and takes what it saw for true until
  // the next time. A configuration's metrics source may name another interval.
  Duration scrape_interval = std::chrono::milliseconds(200);
  Duration staleness = std::chrono::seconds(2);              // age from which a signal is stale
  Duration sample_interval = std::chrono::milliseconds(50);  // between two looks at the balance
  Duration warm_up{};  // what arrives before is served and counts in no figure
  // No page answers from each multiple of stall_every on, for stall_for. 0: they always do.
  Duration stall_every{};
  Duration stall_for{};
  // At each multiple of restart_every the next engine, in turn, restarts: what runs and waits there fails,
  // its cache is lost, and for restart_for nobody can connect to it. Gateways know of it (it is no longer
  // ready) after restart_notice, and use it again once it is back. 0: none ever does.
  Duration restart_every{};
  Duration restart_for{};
  Duration restart_notice = std::chrono::seconds(1);  // REQUIRES: at most restart_for
  // What an answer should keep, FleetReport::met_goals; 0: no goal.
  Duration ttft_goal{};
  Duration tpot_goal{};
  uint64_t seed = 1;
};

// Of many numbers; zeros when there were none.
struct Quantiles {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};
// Takes the numbers in any order and sorts them. Quantile q is the smallest number that a share q of them
// does not exceed.
Quantiles quantiles_of(std::vector<double>& values);

// Of the requests of one class.
struct FleetClassReport {
  uint64_t requests = 0;
  uint64_t finished = 0;
  uint64_t rejected = 0;
  uint64_t failed = 0;
  Quantiles ttft_ms;
  Quantiles e2e_ms;
};

// What one policy made of the requests that arrived after the warm-up. A balance says how evenly something
// lies on the engines: the largest share over the mean share; 1 is even, the number of engines is all on one,
// 0: there was nothing.
struct FleetReport {
  std::string policy;
  uint64_t requests = 0;
  uint64_t finished = 0;
  uint64_t met_goals = 0;  // finished with both times within their goals
  uint64_t refused = 0;    // longer than the engines' context
  uint64_t rejected = 0;   // by the policy
  uint64_t failed = 0;     // with an engine that restarted, or because nobody could be reached
  uint64_t retried = 0;    // went to another engine than the policy's first choice, which was not there
  std::string rejection;   // why, the first time
  uint64_t fallbacks = 0;  // decisions in a fallback state

  Quantiles ttft_ms;
  Quantiles tpot_ms;  // of answers with at least two tokens
  Quantiles e2e_ms;
  uint64_t input_tokens = 0;
  uint64_t cached_tokens = 0;  // of those, found in the prefix cache
  uint64_t output_tokens = 0;
  double hit_ratio = 0;  // cached / input tokens

  std::vector<FleetClassReport> classes;  // as the workload's

  // Of looks every sample_interval from the warm-up on: the sum of the largest values over the sum of the
  // means.
  double queue_balance = 0;               // requests that wait in an engine
  double load_balance = 0;                // requests that wait or run there
  double peak_queue = 0;                  // the longest queue seen
  double mean_queue = 0;                  // over time and engines
  std::vector<uint64_t> engine_requests;  // by engine
  double request_balance = 0;
  double work_balance = 0;  // prompt tokens computed
  double goal_ratio() const {
    return requests == 0 ? 0 : static_cast<double>(met_goals) / static_cast<double>(requests);
  }

  // Over the whole run.
  uint64_t preemptions = 0;
  uint64_t restarts = 0;
  double simulated_seconds = 0;  // until the last answer
};

// Runs the workload through a fleet on a virtual clock: engines as engine_model.h has them, gateways that run
// the director, the scheduler and the plugins of `policy` as `penstock serve` does (fleet_gateway.h). Equal
// inputs give equal reports. Errors: the policy cannot be loaded. No network, no threads, no real time.
Result<FleetReport> run_fleet(const FleetOptions& options, const Workload& workload,
                              const FleetPolicy& policy);

// Whether run_fleet() could load the policy; its error.
Status check_policy(const FleetOptions& options, const FleetPolicy& policy);

// Whether an engine takes a prompt of so many tokens; others are refused.
bool takes_prompt(const EngineModel::Options& engine, uint32_t tokens);

// Prompt tokens a second that an idle engine computes in chunks as long as a step takes; 0: no time at all.
double prefill_tokens_per_second(const EngineModel::Options& engine);

}  // namespace penstock::simulator
