#include "simulator/fleet/sim_fleet.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "simulator/fleet/generators.h"
#include "simulator/fleet/trace_file.h"

namespace penstock::simulator {

namespace {

Result<Workload> workload_of(const SimFleetOptions& o) {
  Result<Workload> workload = o.trace.empty() ? generate_workload(o.workload, static_cast<size_t>(o.requests),
                                                                  static_cast<uint64_t>(o.seed))
                                              : read_trace(o.trace, !o.keep_batches);
  if (!workload.ok()) return workload.error().wrap(o.trace.empty() ? "--workload" : "--trace");
  if (o.requests > 0) workload->keep_first(static_cast<size_t>(o.requests));
  if (o.speed != 1) workload->speed_up(o.speed);
  return workload;
}

Result<FleetOptions> fleet_of(const SimFleetOptions& o) {
  FleetOptions fleet;
  fleet.engines = static_cast<uint32_t>(o.engines);
  fleet.gateways = static_cast<uint32_t>(o.gateways);
  Result<EngineModel::Options> engine = engine_options(o);
  if (!engine.ok()) return std::move(engine).error();
  fleet.engine = *engine;
  fleet.scrape_interval = o.scrape_interval;
  fleet.staleness = o.staleness;
  fleet.stall_every = o.stall_every;
  fleet.stall_for = o.stall_for;
  fleet.restart_every = o.restart_every;
  fleet.restart_for = o.restart_for;
  fleet.restart_notice = o.restart_notice;
  fleet.warm_up = o.warm_up;
  fleet.ttft_goal = o.ttft_goal;
  fleet.tpot_goal = o.tpot_goal;
  fleet.seed = static_cast<uint64_t>(o.seed);
  return fleet;
}

Result<std::vector<FleetPolicy>> policies_of(const SimFleetOptions& o, double rate) {
  std::vector<FleetPolicy> out;
  const bool named = !o.policy.empty() || !o.config.empty();
  for (const std::string& name : named ? o.policy : default_fleet_policies()) {
    Result<FleetPolicy> policy = builtin_policy(name, rate);
    if (!policy.ok()) return policy.error().wrap("--policy");
    out.push_back(std::move(policy).value());
  }
  for (const std::string& path : o.config) {
    Result<FleetPolicy> policy = policy_from_file(path);
    if (!policy.ok()) return policy.error().wrap("--config");
    const bool taken =
        std::any_of(out.begin(), out.end(), [&](const FleetPolicy& p) { return p.name == policy->name; });
    if (taken) policy->name = path;
    out.push_back(std::move(policy).value());
  }
  return out;
}

}  // namespace

void bind(config::Binder& b, SimFleetOptions& o) {
  b.field(
      "trace", o.trace, "",
      "File of requests, a JSON object a line with timestamp, input_length, output_length and hash_ids, as "
      "Mooncake publishes them; empty: draw --workload.");
  b.field("workload", o.workload, "",
          "Kind of requests to draw where there is no trace; the kinds are listed below.");
  b.field("requests", o.requests, "requests",
          "How many: the first ones of the trace, or so many drawn; "
          "0: all of them, or the kind's own number.");
  b.field("speed", o.speed, "ratio",
          "How many times as fast everything arrives, pauses between turns included.");
  b.field(
      "keep-batches", o.keep_batches, "",
      "Requests with equal timestamps in the trace come at once; otherwise they are spread until the next.");
  b.field("policy", o.policy, "",
          fmt::format("A built-in policy, listed below; may repeat. Without this and --config: {}.",
                      fmt::join(default_fleet_policies(), ", ")));
  b.field("config", o.config, "",
          "A file with an EndpointPickerConfig, run as a policy of the file's name; may repeat.");
  b.field("engines", o.engines, "engines", "Engines in the fleet.");
  b.field("gateways", o.gateways, "gateways",
          "Gateways that share the requests at random, each with its own view of the engines.");
  bind(b, static_cast<EngineFlags&>(o));
  b.field("scrape-interval", o.scrape_interval, "", "Time between two looks of a gateway at an engine.");
  b.field("staleness", o.staleness, "",
          "Age from which a signal is stale: fallback states, and what strict mode does.");
  b.field(
      "stall-every", o.stall_every, "",
      "At each multiple of this time no metrics page answers any more, for --stall-for; 0: they always do.");
  b.field("stall-for", o.stall_for, "", "How long no metrics page answers.");
  b.field(
      "restart-every", o.restart_every, "",
      "At each multiple of this time the next engine in turn restarts: its requests fail, its cache is lost; "
      "0: none ever does.");
  b.field("restart-for", o.restart_for, "", "How long a restarting engine is away.");
  b.field("restart-notice", o.restart_notice, "",
          "Time until gateways know that it is not ready; until then they meet failed connections.");
  b.field("warm-up", o.warm_up, "", "Requests that arrive before this time are served and not counted.");
  b.field("ttft-goal", o.ttft_goal, "",
          "Time to first token that answers should keep: their share is printed; 0: no goal.");
  b.field("tpot-goal", o.tpot_goal, "",
          "Time per further token that answers should keep, as well; 0: no goal.");
  b.field("seed", o.seed, "", "Equal seeds give equal reports.");
  b.field("json", o.json, "", "Print JSON.");

  within(b, "requests", o.requests, 0, static_cast<int64_t>(kMaxGeneratedRequests));
  within(b, "speed", o.speed, 0.01, 1000);
  if (o.keep_batches && o.trace.empty()) b.fail("keep-batches", "has no effect without trace");
  within(b, "engines", o.engines, 1, 1024);
  check_blocks_in_all(b, o, o.engines);
  within(b, "gateways", o.gateways, 1, 64);
  within(b, "seed", o.seed, 0, INT64_MAX);
  constexpr Duration kDay = std::chrono::hours(24);
  within(b, "scrape-interval", o.scrape_interval, std::chrono::milliseconds(1), kDay);
  within(b, "staleness", o.staleness, std::chrono::milliseconds(1), kDay);
  within(b, "stall-every", o.stall_every, Duration::zero(), kDay);
  within(b, "stall-for", o.stall_for, Duration::zero(), kDay);
  if ((o.stall_every > Duration::zero()) != (o.stall_for > Duration::zero()))
    b.fail("stall-every", "has no effect without stall-for, nor that without this");
  within(b, "restart-every", o.restart_every, Duration::zero(), kDay);
  within(b, "restart-for", o.restart_for, Duration::zero(), kDay);
  if (o.restart_every > Duration::zero() && o.restart_every < std::chrono::seconds(1))
    b.fail("restart-every", "is less than 1s");
  if ((o.restart_every > Duration::zero()) != (o.restart_for > Duration::zero())) {
    b.fail("restart-every", "has no effect without restart-for, nor that without this");
  } else if (o.restart_every > Duration::zero()) {
    within(b, "restart-notice", o.restart_notice, Duration::zero(), o.restart_for);
  }
  within(b, "warm-up", o.warm_up, Duration::zero(), kDay);
  within(b, "ttft-goal", o.ttft_goal, Duration::zero(), kDay);
  within(b, "tpot-goal", o.tpot_goal, Duration::zero(), kDay);
}

std::string sim_fleet_lists() {
  std::string out;
  const auto list = [&](std::string_view title, const auto& entries) {
    out += fmt::format("{}:\n", title);
    for (const auto& entry : entries) out += fmt::format("  {:<18}{}\n", entry.name, entry.summary);
  };
  list("Workloads", workload_kinds());
  list("Policies", builtin_policies());
  return out;
}

std::vector<config::ParamDoc> sim_fleet_flags() {
  return flag_docs<SimFleetOptions>();
}

Result<SimFleetOptions> parse_sim_fleet_flags(FlagValues flags) {
  return parse_flags<SimFleetOptions>(flags, "sim fleet");
}

std::vector<std::string> default_fleet_policies() {
  return {"round-robin", "default", "strict", "capped-prefix", "expected-ttft"};
}

Result<FleetComparison> run_sim_fleet(const SimFleetOptions& options,
                                      const std::function<void(const std::string& policy)>& progress) {
  Result<FleetOptions> fleet = fleet_of(options);
  if (!fleet.ok()) return std::move(fleet).error();
  Result<std::vector<FleetPolicy>> policies = policies_of(options, prefill_tokens_per_second(fleet->engine));
  if (!policies.ok()) return std::move(policies).error();
  for (const FleetPolicy& policy : *policies) {
    if (Status loads = check_policy(*fleet, policy); !loads.ok()) return std::move(loads).error();
  }
  Result<Workload> workload = workload_of(options);
  if (!workload.ok()) return std::move(workload).error();

  FleetComparison out;
  out.workload = workload->name;
  out.requests = workload->requests.size();
  out.input_tokens = workload->input_tokens();
  out.output_tokens = workload->output_tokens();
  out.classes = workload->classes;
  out.options = *fleet;
  out.profile = options.profile.empty() ? kRates : options.profile;
  out.bound = bound_of(*workload, *fleet);
  for (const FleetPolicy& policy : *policies) {
    progress(policy.name);
    Result<FleetReport> report = run_fleet(*fleet, *workload, policy);
    if (!report.ok()) return std::move(report).error();
    out.policies.push_back(std::move(report).value());
  }
  return out;
}

}  // namespace penstock::simulator
