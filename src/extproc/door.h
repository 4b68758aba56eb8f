#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "director/access_log.h"
#include "director/collected.h"
#include "director/director.h"
#include "discovery/registry.h"
#include "extproc/pool_choice.h"
#include "io/grpc.h"
#include "io/loop.h"
#include "signals/signal_table.h"
#include "telemetry/metrics.h"

namespace penstock::telemetry {
class Tracer;
}

namespace penstock::extproc {

inline constexpr std::string_view kProcessPath = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

// What to do once a request is on its way. Leaving the response phase means ending the stream with OK right
// after the last answer to the request, so that the answer costs nothing here and nothing is seen of it; the
// reservation is then a credit that ends with the endpoint's next fresh scrape.
enum class ResponsePhase : uint8_t {
  kAlways,  // stay
  kAuto,    // leave where nothing needs the answer
  kNever,   // leave
};

struct DoorOptions {
  size_t piece_bytes = 62000;  // of a body in one answer; Envoy recommends less than 64 KiB
  ResponsePhase response_phase = ResponsePhase::kAlways;
  bool response_metrics = true;  // kAuto: the answer is needed for its metrics
  bool emit_scores = false;
  bool subset_filter = true;
  bool json_errors = false;         // refusals as JSON in the client's shape instead of the reference's text
  bool trust_request_id = true;     // take the client's x-request-id
  bool stream_metrics = false;      // the reference's extproc_* families
  int64_t body_bytes = 64 << 20;    // of one request; beyond: 413
  int64_t header_bytes = 64 << 10;  // beyond: 431
  int64_t buffered_bytes = int64_t{1} << 30;         // of request bodies in memory at once; beyond: 503
  int64_t streams = 100000;                          // open at once; beyond: 503
  Duration body_timeout = std::chrono::seconds(60);  // longest silence before a request is complete; then 408
  Duration body_total_timeout =
      std::chrono::minutes(5);          // all of a request, from the stream's begin; then 408
  uint64_t seed = 0;                    // of decisions; 0: from the system
  telemetry::Tracer* tracer = nullptr;  // outlives the door; nullptr: no traces
};

// A pool that is picked from. All pointers outlive the Door, or left().
struct DoorPool {
  director::Pool* pool = nullptr;
  discovery::Pool* members = nullptr;
  signals::SignalTable* signals = nullptr;
  Duration freshness_budget = std::chrono::seconds(2);
  telemetry::MetricRegistry* metrics = nullptr;  // the pool's own; nullptr: the door's
};

// A pool within a door.
struct ServedPool;
using PoolHandle = std::shared_ptr<ServedPool>;

// What the door writes when /metrics is asked for.
std::span<const director::CollectedFamily> collected_families();

// envoy.service.ext_proc.v3.ExternalProcessor over one pool, or over several among which each stream chooses
// with its first word (PoolChoice): reads each stream, lets the pool's director decide, and answers as the
// data plane's body modes want it. Decides nothing itself. A stream that means no pool ends with NOT_FOUND
// (the pool is none of ours) or FAILED_PRECONDITION (it names several, or none): for the data plane the
// picker has failed, and the pool's failureMode says what follows.
//
// Life: make it, serve() on a router before the server starts; destroy it after the loops have ended and
// before they are destroyed.
class Door {
 public:
  // Of a listener that is one pool's alone: the prefix of its name (ConnectionInfo::listener).
  static constexpr std::string_view kPoolListener = "ext-proc-pool";

  struct Stats {
    int64_t open_streams = 0;
    int64_t active = 0;     // requests that are not over: a stream may stay open longer
    int64_t undecided = 0;  // streams whose request is not answered yet
    int64_t buffered_bytes = 0;
    int64_t credits = 0;
    uint64_t streams = 0;
  };

  // `access_log` may be nullptr. Everything passed by reference outlives the Door.
  Door(io::LoopGroup& loops, telemetry::MetricRegistry& metrics, const Clock& clock,
       director::AccessLog* access_log, DoorOptions options);
  // Of one pool, which every stream means.
  Door(io::LoopGroup& loops, telemetry::MetricRegistry& metrics, const Clock& clock,
       director::AccessLog* access_log, DoorOptions options, DoorPool pool);
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  void serve(io::GrpcRouter& router);

  // --- several pools, as they come and go; from one thread, outside the loops ---
  PoolHandle add(DoorPool pool);
  struct NamedPool {
    PoolHandle pool;
    PoolNames names;
  };
  // What streams that begin from now on choose among.
  void choose_among(std::vector<NamedPool> pools);
  // The pool's last streams go on to their end, and then nothing here refers to it. REQUIRES: the last
  // choose_among() was without it.
  void leave(const PoolHandle& pool);
  // Nothing refers to it any more. REQUIRES: leave().
  bool left(const PoolHandle& pool) const;

  // Streams that are cut from now on are the door's doing, not the client's.
  void begin_stop();
  Stats stats() const;
  // Gives back what every loop keeps for the next streams; posted to the loops.
  void release_idle_memory();

  // Where a body would go, without sending it: see director::Director::explain(). Call on one of the loops.
  struct ExplainRequest {
    std::string method = "POST";
    std::string path;
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers;  // lower-case names; kPoolField is the pool's
    std::string pool;                                          // "" as kPoolField says, or the only one
  };
  Result<std::string> explain(const ExplainRequest& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::extproc
