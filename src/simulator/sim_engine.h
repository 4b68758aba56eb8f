#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "config/params.h"
#include "io/loop.h"
#include "simulator/engine_flags.h"
#include "simulator/flag_values.h"

namespace penstock::simulator {

// What `penstock sim engine` takes; the names in bind() are the flags'. Several engines run in one
// process, on consecutive ports, each with its own cache and state.
struct SimEngineOptions : EngineFlags {
  std::string host = "127.0.0.1";
  int64_t port = 8000;               // of the first engine; 0: the system chooses each
  int64_t count = 1;                 // engines
  std::vector<std::string> model;    // served names, the first one is shown; empty: "sim-model"
  std::vector<std::string> adapter;  // "name=path"
  std::string dialect = "vllm";
  std::string version = "0.32.0";
  std::string api_key;  // empty: open
  uint64_t seed = 0;

  double time_scale = 1.0;          // multiplies every duration
  int64_t max_num_queued_reqs = 0;  // 0: no limit
  int64_t output_tokens =
      0;  // mean length of answers that nothing else limits; 0: 64 where max_tokens is absent
  bool enable_prompt_tokens_details = false;
  bool enable_request_id_headers = false;
  bool enable_force_include_usage = false;
  int64_t max_body_bytes = 256 << 20;
  int64_t responses_store = 0;     // responses kept for previous_response_id and GET /v1/responses/{id}
  int64_t record_requests = 0;     // last so many requests kept for GET /sim/requests
  std::vector<std::string> fault;  // JSON objects, see faults.h
};

void bind(config::Binder& b, SimEngineOptions& options);
// The flags of `penstock sim engine`, from the same table.
std::vector<config::ParamDoc> sim_engine_flags();
// Options from flags (flag_values.h). Errors name flag and value.
Result<SimEngineOptions> parse_sim_engine_flags(FlagValues flags);

// Running simulated engines. Beside the engine's own routes each serves
//   GET  /sim/state     requests received, running, waiting, aborted, blocks, adapters … as JSON
//   GET  /sim/faults    the faults as they were set
//   POST /sim/faults    replaces them (JSON, see faults.h; {} clears); DELETE clears
//   GET  /sim/requests  the last requests as received, with `record_requests`
// and takes a fault for a single request from the header x-sim-fault (same JSON).
class SimEngine {
 public:
  // Listens and serves; engine i lives wholly on loop i modulo the group's size. The loops may start
  // before or after.
  static Result<std::unique_ptr<SimEngine>> start(io::LoopGroup& loops, const SimEngineOptions& options);
  // Stops; REQUIRES: the loops still run, or never did.
  ~SimEngine();

  // From outside the loops, while they run: lets answers end for up to `drain`, then closes. Idempotent.
  void stop(Duration drain = Duration::zero());
  // Where each engine listens.
  const std::vector<uint16_t>& ports() const { return ports_; }

 private:
  struct Running;
  SimEngine();
  std::vector<std::unique_ptr<Running>> engines_;
  std::vector<uint16_t> ports_;
};

}  // namespace penstock::simulator
