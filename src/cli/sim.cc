#include <signal.h>

#include <cstdio>
#include <ctime>

#include "cli/commands.h"
#include "simulator/fleet/sim_fleet.h"
#include "simulator/sim_engine.h"
#include "telemetry/log.h"

namespace penstock::cli {

namespace {

// The flags as the simulator's own table describes them.
struct SimFlags {
  std::vector<config::ParamDoc> docs;
  std::vector<std::vector<std::string>> values;
  std::vector<bool> switches;
};

// "num_blocks" or "numBlocks" -> "num-blocks".
std::string flag_name(std::string_view field) {
  std::string out;
  for (const char c : field) {
    if (c == '_') {
      out += '-';
    } else if (c >= 'A' && c <= 'Z') {
      out += '-';
      out += static_cast<char>(c + ('a' - 'A'));
    } else {
      out += c;
    }
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> given_flags(const SimFlags& flags) {
  std::vector<std::pair<std::string, std::string>> given;
  for (size_t i = 0; i < flags.docs.size(); ++i) {
    const std::string name = flag_name(flags.docs[i].name);
    if (flags.switches[i]) given.emplace_back(name, "true");
    for (const std::string& value : flags.values[i]) given.emplace_back(name, value);
  }
  return given;
}

std::shared_ptr<SimFlags> add_flags(CLI::App& command, std::vector<config::ParamDoc> docs) {
  auto flags = std::make_shared<SimFlags>();
  flags->docs = std::move(docs);
  flags->values.resize(flags->docs.size());
  flags->switches.resize(flags->docs.size());
  for (size_t i = 0; i < flags->docs.size(); ++i) {
    const config::ParamDoc& doc = flags->docs[i];
    const std::string name = "--" + flag_name(doc.name);
    std::string text = doc.text;
    if (!doc.unit.empty()) text += " [" + doc.unit + "]";
    if (!doc.default_value.empty() && doc.type != "bool") text += " (default " + doc.default_value + ")";
    if (doc.type == "bool") {
      command.add_flag_callback(name, [flags, i] { flags->switches[i] = true; }, text);
    } else {
      command.add_option(name, flags->values[i], text)->type_name(doc.type);
    }
  }
  return flags;
}

int run_engines(const SimFlags& flags, int64_t loop_count) {
  const auto given = given_flags(flags);
  auto options = simulator::parse_sim_engine_flags(given);
  if (!options.ok()) {
    complain(options.error().message);
    return kUsage;
  }
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  telemetry::init_logging(telemetry::LogLevel::kInfo);

  io::LoopGroup loops(static_cast<size_t>(loop_count));
  loops.start();
  auto engines = simulator::SimEngine::start(loops, *options);
  if (!engines.ok()) {
    complain(engines.error().message);
    return kFailed;
  }
  for (const uint16_t port : (*engines)->ports()) {
    telemetry::log_info("simulated engine listening",
                        {{"address", options->host + ":" + std::to_string(port)}});
  }
  int number = 0;
  sigwait(&signals, &number);
  (*engines)->stop(std::chrono::milliseconds(200));
  engines->reset();
  loops.stop();
  telemetry::flush_logs();
  return kOk;
}

int run_fleet_command(const SimFlags& flags) {
  const auto given = given_flags(flags);
  const auto options = simulator::parse_sim_fleet_flags(given);
  if (!options.ok()) {
    complain(options.error().message);
    return kUsage;
  }
  telemetry::init_logging(telemetry::LogLevel::kError);
  const std::clock_t began = std::clock();
  const auto comparison = simulator::run_sim_fleet(*options, [](const std::string& policy) {
    std::fprintf(stderr, "penstock: policy %s\n", policy.c_str());
  });
  telemetry::flush_logs();
  if (!comparison.ok()) {
    complain(comparison.error().message);
    return kFailed;
  }
  const std::string report =
      options->json ? simulator::render_json(*comparison) : simulator::render_text(*comparison);
  std::fputs(report.c_str(), stdout);
  double simulated = 0;
  for (const simulator::FleetReport& policy : comparison->policies) simulated += policy.simulated_seconds;
  std::fprintf(stderr, "penstock: simulated %.0f s in %.1f s of CPU\n", simulated,
               static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC);
  return kOk;
}

}  // namespace

void add_sim(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "sim", "Simulated engines and fleets, to try, test and compare against without a GPU.");
  command->require_subcommand(1);
  command->footer("Their flags: penstock sim engine --help, penstock sim fleet --help");
  auto* engine = command->add_subcommand(
      "engine",
      "Run simulated engines: the HTTP surface and metrics of a vLLM server, a batching loop with prefill "
      "and decode times, a paged KV cache with prefix reuse, LoRA slots, and faults on demand.");
  auto engine_flags = add_flags(*engine, simulator::sim_engine_flags());
  auto loops = std::make_shared<int64_t>(1);
  engine->add_option("--loops", *loops, "Event loops the engines are spread over (default 1)")
      ->check(CLI::Range(1, 64));
  engine->footer(
      "Example: penstock sim engine --port 8001 --count 4 --model llama --adapter sql=adapters/sql");
  engine->callback([engine_flags, loops, &exit_code] { exit_code = run_engines(*engine_flags, *loops); });

  auto* fleet = command->add_subcommand(
      "fleet",
      "Compare policies: run one workload through a fleet of simulated engines on a virtual clock, under one "
      "configuration after the other, decided by the same code that serves; print time to first token, time "
      "per output token, prefix hits and balance of each beside what nobody can better.");
  auto fleet_flags = add_flags(*fleet, simulator::sim_fleet_flags());
  fleet->footer(simulator::sim_fleet_lists() +
                "\nExample: penstock sim fleet --trace conversation_trace.jsonl --speed 6 --gateways 4 "
                "--policy round-robin --policy default --config mine.yaml");
  fleet->callback([fleet_flags, &exit_code] { exit_code = run_fleet_command(*fleet_flags); });
}

}  // namespace penstock::cli
