#include <signal.h>

#include <cstdio>

#include "cli/commands.h"
#include "simulator/sim_engine.h"
#include "telemetry/log.h"

namespace penstock::cli {

namespace {

// The flags as the simulator's own table describes them.
struct SimFlags {
  std::vector<config::ParamDoc> docs;
  std::vector<std::vector<std::string>> values;
  std::vector<bool> switches;
  int64_t loops = 1;
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

int run_engines(const SimFlags& flags) {
  std::vector<std::pair<std::string, std::string>> given;
  for (size_t i = 0; i < flags.docs.size(); ++i) {
    const std::string name = flag_name(flags.docs[i].name);
    if (flags.switches[i]) given.emplace_back(name, "true");
    for (const std::string& value : flags.values[i]) given.emplace_back(name, value);
  }
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

  io::LoopGroup loops(static_cast<size_t>(flags.loops));
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

}  // namespace

void add_sim(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("sim", "Simulated engines, to try and test against without a GPU.");
  command->require_subcommand(1);
  auto* engine = command->add_subcommand(
      "engine",
      "Run simulated engines: the HTTP surface and metrics of a vLLM server, a batching loop with prefill "
      "and "
      "decode times, a paged KV cache with prefix reuse, LoRA slots, and faults on demand.");
  auto flags = std::make_shared<SimFlags>();
  flags->docs = simulator::sim_engine_flags();
  flags->values.resize(flags->docs.size());
  flags->switches.resize(flags->docs.size());
  for (size_t i = 0; i < flags->docs.size(); ++i) {
    const config::ParamDoc& doc = flags->docs[i];
    const std::string name = "--" + flag_name(doc.name);
    std::string text = doc.text;
    if (!doc.unit.empty()) text += " [" + doc.unit + "]";
    if (!doc.default_value.empty() && doc.type != "bool") text += " (default " + doc.default_value + ")";
    if (doc.type == "bool") {
      engine->add_flag_callback(name, [flags, i] { flags->switches[i] = true; }, text);
    } else {
      engine->add_option(name, flags->values[i], text);
    }
  }
  engine->add_option("--loops", flags->loops, "Event loops the engines are spread over (default 1)")
      ->check(CLI::Range(1, 64));
  engine->footer(
      "Example: penstock sim engine --port 8001 --count 4 --model llama --adapter sql=adapters/sql");
  engine->callback([flags, &exit_code] { exit_code = run_engines(*flags); });
}

}  // namespace penstock::cli
