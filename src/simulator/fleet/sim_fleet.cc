#include "simulator/fleet/sim_fleet.h"

#include <fmt/format.h>

#include "simulator/fleet/generators.h"
#include "simulator/fleet/trace_file.h"

namespace penstock::simulator {

namespace {

constexpr std::string_view kRates = "rates";

std::string names_of(const auto& entries) {
  std::string out;
  for (const auto& entry : entries) out += (out.empty() ? "" : ", ") + std::string(entry.name);
  return out;
}

Result<Workload> workload_of(const SimFleetOptions& o) {
  Result<Workload> workload = o.trace.empty() ? generate_workload(o.workload, static_cast<size_t>(o.requests),
                                                                  static_cast<uint64_t>(o.seed))
                                              : read_trace(o.trace, !o.keep_batches);
  if (!workload.ok()) return workload;
  if (o.requests > 0) workload->keep_first(static_cast<size_t>(o.requests));
  if (o.speed != 1) workload->speed_up(o.speed);
  return workload;
}

Result<FleetOptions> fleet_of(const SimFleetOptions& o) {
  FleetOptions fleet;
  fleet.engines = static_cast<uint32_t>(o.engines);
  fleet.gateways = static_cast<uint32_t>(o.gateways);
  fleet.engine.block_size = static_cast<uint32_t>(o.block_size);
  fleet.engine.num_blocks = static_cast<uint32_t>(o.num_blocks);
  fleet.engine.max_sequences = static_cast<uint32_t>(o.max_num_seqs);
  fleet.engine.max_batched_tokens = static_cast<uint32_t>(o.max_num_batched_tokens);
  fleet.engine.max_model_len = static_cast<uint32_t>(o.max_model_len);
  fleet.engine.prefix_caching = !o.no_prefix_caching;
  if (o.profile == kRates) {
    fleet.engine.step_time = StepTime(o.decode_ms, o.prefill_tokens_per_second);
  } else {
    Result<StepTime> profile = StepTime::profile(o.profile);
    if (!profile.ok()) return profile.error().wrap("--profile");
    fleet.engine.step_time = *profile;
  }
  fleet.scrape_interval = o.scrape_interval;
  fleet.staleness = o.staleness;
  fleet.stall_every = o.stall_every;
  fleet.stall_for = o.stall_for;
  fleet.warm_up = o.warm_up;
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
  b.field("workload", o.workload, "", "Kind of requests to draw: " + names_of(workload_kinds()) + ".");
  b.field("requests", o.requests, "requests",
          "The first so many of the trace, or so many drawn; 0: all, or as many as the kind says.");
  b.field("speed", o.speed, "ratio", "Arrivals come so many times as fast.");
  b.field(
      "keep-batches", o.keep_batches, "",
      "Requests with equal timestamps in the trace come at once; otherwise they are spread until the next.");
  b.field("policy", o.policy, "",
          "Built-in policy; may repeat. There are: " + names_of(builtin_policies()) +
              ". None and no --config: " + fmt::format("{}", fmt::join(default_fleet_policies(), ", ")) +
              ".");
  b.field("config", o.config, "", "EndpointPickerConfig file to run as a policy; may repeat.");
  b.field("engines", o.engines, "engines", "Engines in the fleet.");
  b.field("gateways", o.gateways, "gateways",
          "Gateways that share the requests at random, each with its own view of the engines.");
  b.field("profile", o.profile, "",
          "Measured step times: llama3-8b-h100 or llama3-8b-a100; \"rates\": the two rates below.");
  b.field("prefill-tokens-per-second", o.prefill_tokens_per_second, "tokens/s",
          "Prefill speed under \"rates\"; 0: no time at all.");
  b.field("decode-ms", o.decode_ms, "ms", "Length of a step without prefill under \"rates\".");
  b.field("block-size", o.block_size, "tokens", "Tokens of a KV cache block.");
  b.field("num-blocks", o.num_blocks, "blocks", "KV cache blocks of an engine; one is reserved.");
  b.field("max-num-seqs", o.max_num_seqs, "requests", "Sequences running at once on an engine.");
  b.field("max-num-batched-tokens", o.max_num_batched_tokens, "tokens",
          "Tokens of one step; longer prompts are chunked.");
  b.field("max-model-len", o.max_model_len, "tokens",
          "Longest prompt and answer together; at most what the blocks hold.");
  b.field("no-prefix-caching", o.no_prefix_caching, "", "Switch the engines' prefix reuse off.");
  b.field("scrape-interval", o.scrape_interval, "", "Time between two looks of a gateway at an engine.");
  b.field("staleness", o.staleness, "", "Age from which a signal is stale.");
  b.field("stall-every", o.stall_every, "", "Every so often no engine's metrics answer; 0: they always do.");
  b.field("stall-for", o.stall_for, "", "How long they don't.");
  b.field("warm-up", o.warm_up, "", "Requests that arrive before are served and not counted.");
  b.field("seed", o.seed, "", "Equal seeds give equal reports.");
  b.field("json", o.json, "", "Print JSON.");

  const auto within = [&](std::string_view name, auto value, auto low, auto high) {
    if (!(value >= low && value <= high)) b.fail(name, fmt::format("must be between {} and {}", low, high));
  };
  within("requests", o.requests, int64_t{0}, static_cast<int64_t>(kMaxGeneratedRequests));
  within("speed", o.speed, 0.001, 1000.0);
  within("engines", o.engines, int64_t{1}, int64_t{1024});
  within("gateways", o.gateways, int64_t{1}, int64_t{64});
  within("prefill-tokens-per-second", o.prefill_tokens_per_second, 0.0, 1e9);
  within("decode-ms", o.decode_ms, 0.0, 1e6);
  within("block-size", o.block_size, int64_t{1}, int64_t{4096});
  within("num-blocks", o.num_blocks, int64_t{2}, int64_t{1} << 24);
  within("max-num-seqs", o.max_num_seqs, int64_t{1}, int64_t{1} << 20);
  within("max-num-batched-tokens", o.max_num_batched_tokens, int64_t{1}, int64_t{1} << 26);
  within("max-model-len", o.max_model_len, int64_t{2}, int64_t{1} << 26);
  within("seed", o.seed, int64_t{0}, INT64_MAX);
  const auto period = [&](std::string_view name, Duration value, Duration low) {
    if (value < low || value > std::chrono::hours(24))
      b.fail(name, fmt::format("must be between {} ms and 24 h", to_millis(low)));
  };
  period("scrape-interval", o.scrape_interval, std::chrono::milliseconds(1));
  period("staleness", o.staleness, std::chrono::milliseconds(1));
  period("stall-every", o.stall_every, Duration::zero());
  period("stall-for", o.stall_for, Duration::zero());
  period("warm-up", o.warm_up, Duration::zero());
}

std::vector<config::ParamDoc> sim_fleet_flags() {
  return flag_docs<SimFleetOptions>();
}

Result<SimFleetOptions> parse_sim_fleet_flags(FlagValues flags) {
  return parse_flags<SimFleetOptions>(flags, "sim fleet");
}

std::vector<std::string> default_fleet_policies() {
  return {"round-robin", "random", "default", "near-tie", "expected-ttft"};
}

Result<FleetComparison> run_sim_fleet(const SimFleetOptions& options,
                                      const std::function<void(const std::string& policy)>& progress) {
  Result<FleetOptions> fleet = fleet_of(options);
  if (!fleet.ok()) return std::move(fleet).error();
  Result<std::vector<FleetPolicy>> policies = policies_of(options, prefill_tokens_per_second(fleet->engine));
  if (!policies.ok()) return std::move(policies).error();
  Result<Workload> workload = workload_of(options);
  if (!workload.ok()) return std::move(workload).error();

  FleetComparison out;
  out.workload = workload->name;
  out.requests = workload->requests.size();
  out.input_tokens = workload->input_tokens();
  out.output_tokens = workload->output_tokens();
  out.options = *fleet;
  out.profile = options.profile;
  out.bound = bound_of(*workload, fleet->engine, fleet->engines);
  for (const FleetPolicy& policy : *policies) {
    progress(policy.name);
    Result<FleetReport> report = run_fleet(*fleet, *workload, policy);
    if (!report.ok()) return std::move(report).error();
    out.policies.push_back(std::move(report).value());
  }
  return out;
}

}  // namespace penstock::simulator
