#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "inference/shared_prefixes.h"
#include "io/loop.h"
#include "sharing/store_connection.h"
#include "telemetry/metrics.h"

namespace penstock::sharing {

class SharedPool;

struct ReplicasOptions {
  StoreOptions store;
  std::string ca_file;       // PEM, for rediss://; "" the system's
  bool skip_verify = false;  // of the store's certificate
  std::string replica;       // who this is, for people
  // On the age of what others told: beyond it their load is unknown and counts as none.
  Duration staleness = std::chrono::seconds(1);
  Duration interval = std::chrono::milliseconds(50);  // between two exchanges with the store
  bool load = true;
  bool prefixes = true;
  size_t stream_length = 4096;  // batches of prefixes that the store keeps of a pool
  size_t loops = 1;             // that prefixes are entered on
  // How block hashes come about, whatever the configuration: those of replicas that say otherwise are not
  // taken. The hashes depend on no secret and no process.
  std::string hashing = "xxh64-chain/1 estimate/1";
};

// What the replicas of a gateway or picker tell each other through Redis or Valkey: each one's requests and
// tokens in flight at every endpoint, and the prefixes it sent where.
//
//   penstock:{<namespace>/<pool>}:load    hash, a field for each replica: its LoadRecord
//   penstock:{<namespace>/<pool>}:prefix  stream, capped: prefix batches
//
// One thread and one connection for all pools, one round trip an interval. Decisions only read two atomics
// of each endpoint (EndpointLive::others, others_unseen) that this thread writes, and the prefix index;
// nothing waits for the store, and without it everything fades within the staleness bound and each replica
// goes by what it knows itself. Bounds: 64 replicas, 256 KiB of queued prefixes a loop and pool (what
// finds no room is dropped), 512 KiB of them an exchange, 16 batches of others an exchange.
//
// Life: create(), join() for each pool, start(), stop(). join() also later. A pool that joins again, even
// before its former life here has left, is another one to all others: the former's load and prefixes are no
// less true.
class Replicas {
 public:
  // kInvalidConfig for files of TLS that can't be used. The registry outlives it.
  static Result<std::unique_ptr<Replicas>> create(ReplicasOptions options,
                                                  telemetry::MetricRegistry& metrics);
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  using Members = std::function<std::shared_ptr<const PoolSnapshot>()>;
  // Any thread. `members` is called from this one's own until SharedPool::leave() returns.
  std::shared_ptr<SharedPool> join(const std::string& ns, const std::string& name, Members members);
  void start();
  // Takes this replica's load out of the store where that is done at once; ends the thread. Idempotent.
  void stop();

  // {"store","state","error","replica","staleness_bound_s","pools":{"<namespace>/<name>":{"incarnation",
  // "replicas":[…]}}}.
  std::string state_json() const;

 private:
  struct Impl;
  explicit Replicas(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// "POD_NAME" of the environment, else the host's name: who a replica is where nobody says.
std::string default_replica();

}  // namespace penstock::sharing
