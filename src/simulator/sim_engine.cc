#include "simulator/sim_engine.h"

#include <fmt/format.h>

#include <optional>

#include "base/strings.h"
#include "io/http_server.h"
#include "simulator/engine_server.h"

namespace penstock::simulator {

void bind(config::Binder& b, SimEngineOptions& o) {
  b.field("host", o.host, "", "Address to listen on.");
  b.field("port", o.port, "",
          "Port of the first engine; further engines take the next ones. 0: any free port.");
  b.field("count", o.count, "engines", "Engines in this process.");
  b.field("model", o.model, "",
          "Served model name; may repeat, the first one is shown in answers and metrics.");
  b.field("adapter", o.adapter, "", "LoRA adapter as name=path; may repeat.");
  b.field("dialect", o.dialect, "",
          "Whose metrics to show: vllm, vllm-old, sglang, trtllm-serve or triton-tensorrt-llm.");
  b.field("version", o.version, "", "Engine version to report.");
  b.field("api-key", o.api_key, "", "Key wanted for routes below /v1; empty: none.");
  int64_t seed = static_cast<int64_t>(o.seed);
  b.field("seed", seed, "", "Equal seeds give equal answers, ids and faults.");
  o.seed = static_cast<uint64_t>(seed);
  bind(b, static_cast<EngineFlags&>(o));
  b.field("time-scale", o.time_scale, "ratio", "Multiplies every duration; 0: none takes time.");
  b.field("max-num-queued-reqs", o.max_num_queued_reqs, "requests",
          "Waiting and running requests beyond which the engine answers 503; 0: no limit.");
  b.field("output-tokens", o.output_tokens, "tokens",
          "Mean length of answers; 0: max_tokens of the request, or 64 where it has none.");
  b.field("enable-prompt-tokens-details", o.enable_prompt_tokens_details, "",
          "Report cached tokens in usage.");
  b.field("enable-request-id-headers", o.enable_request_id_headers, "", "Answer with x-request-id.");
  b.field("enable-force-include-usage", o.enable_force_include_usage, "",
          "Usage in every chunk of every stream.");
  b.field("max-body-bytes", o.max_body_bytes, "bytes", "Longest request body; beyond: 413.");
  b.field("record-requests", o.record_requests, "requests", "Requests kept for GET /sim/requests.");
  b.field("responses-store", o.responses_store, "responses",
          "Responses that an engine keeps for previous_response_id, GET and cancel; 0: none, as vLLM without "
          "VLLM_ENABLE_RESPONSES_API_STORE.");
  b.field("fault", o.fault, "", "A fault as JSON, such as {\"status\": 503, \"count\": 10}; may repeat.");

  within(b, "port", o.port, 0, 65535);
  within(b, "count", o.count, 1, 1024);
  if (o.port > 0 && o.port <= 65535 && o.count > 0 && o.count > 65536 - o.port)
    b.fail("count", "the last port would be above 65535");
  check_blocks_in_all(b, o, o.count);
  for (const std::string& name : o.model) {
    if (name.empty()) b.fail("model", "a name is empty");
  }
  within(b, "time-scale", o.time_scale, 0, 1000);
  within(b, "max-num-queued-reqs", o.max_num_queued_reqs, 0, 1 << 30);
  within(b, "output-tokens", o.output_tokens, 0, 1 << 26);
  within(b, "max-body-bytes", o.max_body_bytes, 1, 1LL << 32);
  within(b, "record-requests", o.record_requests, 0, 10000);
  within(b, "responses-store", o.responses_store, 0, 1000000);
}

std::vector<config::ParamDoc> sim_engine_flags() {
  return flag_docs<SimEngineOptions>();
}

Result<SimEngineOptions> parse_sim_engine_flags(FlagValues flags) {
  return parse_flags<SimEngineOptions>(flags, "sim engine");
}

struct SimEngine::Running {
  io::Loop* loop = nullptr;
  std::shared_ptr<EngineServer> engine;
  std::unique_ptr<io::HttpServer> server;
};

SimEngine::SimEngine() = default;

SimEngine::~SimEngine() {
  stop();
}

Result<std::unique_ptr<SimEngine>> SimEngine::start(io::LoopGroup& loops, const SimEngineOptions& options) {
  Result<EngineServer::Settings> settings = EngineServer::settings_of(options);
  if (!settings) return std::move(settings).error();
  std::unique_ptr<SimEngine> sim(new SimEngine());
  for (int64_t i = 0; i < options.count; ++i) {
    auto running = std::make_unique<Running>();
    running->loop = &loops.at(static_cast<size_t>(i) % loops.size());
    settings->seed = options.seed + static_cast<uint64_t>(i);
    running->engine = std::make_shared<EngineServer>(*running->loop, *settings);
    io::HttpServerOptions http;
    http.max_body_bytes = static_cast<uint64_t>(options.max_body_bytes);
    http.idle_timeout = std::chrono::seconds(5);  // as uvicorn
    running->server = std::make_unique<io::HttpServer>(*running->loop, http, running->engine);
    const auto port = static_cast<uint16_t>(options.port == 0 ? 0 : options.port + i);
    const std::optional<io::SocketAddress> address = io::SocketAddress::from_ip(options.host, port);
    if (!address) return invalid_config("--host: \"" + options.host + "\" is not an IP address");
    Result<io::SocketAddress> bound = running->server->listen(*address);
    if (!bound) return std::move(bound).error().wrap("engine on port " + std::to_string(port));
    running->engine->set_port(bound->port());
    sim->ports_.push_back(bound->port());
    sim->engines_.push_back(std::move(running));
  }
  return sim;
}

void SimEngine::stop(Duration drain) {
  for (auto& running : engines_) {
    if (running->server != nullptr) running->server->stop(drain);
    running->server.reset();
    // The engine's timer belongs to its loop: the last reference is dropped there.
    running->loop->post([engine = std::move(running->engine)]() mutable { engine.reset(); });
  }
  engines_.clear();
}

}  // namespace penstock::simulator
