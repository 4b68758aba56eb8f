#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "assembly/outside_http.h"
#include "assembly/pool_runtime.h"
#include "base/clock.h"
#include "base/result.h"
#include "config/manifests.h"
#include "config/settings.h"
#include "director/access_log.h"
#include "io/loop.h"
#include "sharing/replicas.h"
#include "telemetry/metrics.h"
#include "telemetry/tracer.h"

namespace penstock::assembly {

// Its warnings are in the log; "" is an empty set.
Result<config::Manifests> read_manifests(const std::string& path);

// What a process stands on whatever its front door: event loops, pools with their signals, metrics, access
// log, traces, manifests. The front door is made on it and destroyed between stop_pools() and release().
//
// Life: construct, start_tracing(), share_state(), fill `manifests`, add_pool(); loops->start(),
// start_pools(); stop_pools() ends the loops, release() the rest. All from one thread, which runs none of the
// loops; pages and rollback() from any.
class Foundation {
 public:
  // `loops` 0: one per core.
  Foundation(int64_t loops, const config::TelemetrySettings& telemetry);

  // Off (tracer stays null) where neither setting, environment nor `defaults` switch it on.
  Status start_tracing(const config::TracingSettings& settings, telemetry::TracingOptions defaults);
  // State of the pools that are added afterwards is shared with other replicas, where the settings name a
  // store. It need not be there.
  Status share_state(const config::SharedStateSettings& settings);
  // The pool gets its rules out of `manifests`.
  Result<PoolRuntime*> add_pool(PoolSpec spec);
  // One of several pools that come and go while the loops run, with metrics of its own: their label `label`
  // is
  // "<namespace>/<name>". It has started. REQUIRES: `changes` is held; so of remove_pool().
  Result<std::shared_ptr<PoolRuntime>> add_pool_with_metrics(PoolSpec spec, std::string_view label);
  // Such a pool as its configuration makes it: does not start, and is none of `pools`.
  Result<std::shared_ptr<PoolRuntime>> try_pool(PoolSpec spec);
  // Stops it; it ends with its last reference, which a page may have for a moment.
  void remove_pool(const std::shared_ptr<PoolRuntime>& pool);
  std::vector<std::shared_ptr<PoolRuntime>> pools_now() const;
  // Again, after a reload of the manifests.
  void set_rules(PoolRuntime& pool) const;

  Status start_pools();
  void stop_pools();
  void release();

  // --- for the admin pages; any thread ---
  // {"ready":…,"listening":…,"draining":…,"pools":[…]}; with `cluster`, JSON, also "kubernetes".
  std::string readiness_json(bool ready, bool listening, bool draining, std::string_view cluster = {}) const;
  std::string decisions_json(size_t limit) const;
  std::optional<std::string> decision_json(std::string_view request_id) const;
  std::string plugin_states_json() const;
  std::string endpoints_json() const;
  std::string configuration_text() const;
  // {"state":"off"} where none is shared.
  std::string shared_state_json() const;
  // Rolls one pool's picker configuration back, "name" or "namespace/name"; "": the only one there is. JSON
  // {"pool","policy_epoch"}. Not from a loop.
  Result<std::string> rollback(std::string_view pool);

  // Held by whoever changes pools once they run: a reload, a rollback, their end.
  std::mutex changes;
  SystemClock clock;
  telemetry::MetricRegistry metrics;
  std::unique_ptr<io::LoopGroup> loops;
  std::unique_ptr<OutsideHttp> outside;
  std::unique_ptr<discovery::SlotAllocator> slots;
  std::unique_ptr<signals::SignalTable> signals;
  std::unique_ptr<signals::PoolMetrics> pool_metrics;
  std::unique_ptr<director::RequestMetrics> request_metrics;
  std::unique_ptr<director::AccessLog> access_log;  // nullptr: switched off
  std::unique_ptr<telemetry::Tracer> tracer;        // nullptr: switched off
  std::unique_ptr<sharing::Replicas> replicas;      // nullptr: nothing is shared
  std::vector<std::shared_ptr<PoolRuntime>> pools;  // where they come and go, pools_now()
  config::Manifests manifests;

 private:
  SharedKnowledge shared();
  Result<std::shared_ptr<PoolRuntime>> make_pool_with_metrics(PoolSpec spec, std::string_view label,
                                                              sharing::Replicas* shared_by);

  int64_t decisions_;
  mutable std::mutex pools_mutex_;  // of `pools`
  bool stopped_ = false;            // under `changes`
};

// A reload, part by part: each one that fails keeps its former state and is in the log.
class Reload {
 public:
  // True when `status` is ok.
  bool note(Status status, std::string_view what);
  // For a setting that a reload does not take: `same` is whether it is what it was.
  static void warn_of_restart(std::string_view what, bool same);
  // The first failure; the log says whether there was one.
  Status end();

 private:
  Status first_;
};

}  // namespace penstock::assembly
