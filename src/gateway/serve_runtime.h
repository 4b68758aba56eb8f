#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "assembly/foundation.h"
#include "base/clock.h"
#include "base/result.h"
#include "config/manifests.h"
#include "config/settings.h"
#include "gateway/gateway.h"
#include "io/loop.h"

namespace penstock::gateway {

// What `penstock serve` runs on: the settings document (or what flags made of it), and what pools that only
// manifests name are given.
struct ServeOptions {
  config::Settings settings;
  std::optional<config::PoolSettings> manifest_pool_defaults;
};

// A whole gateway process without its command line: event loops, pools, signals, listeners, admin pages.
//
// Life: create() checks everything that can be checked without the network; start() listens; drain() and
// stop() end it. reload() reads every file again. All from one thread, which runs none of the loops.
class ServeRuntime {
 public:
  static Result<std::unique_ptr<ServeRuntime>> create(ServeOptions options);
  ~ServeRuntime();
  ServeRuntime(const ServeRuntime&) = delete;
  ServeRuntime& operator=(const ServeRuntime&) = delete;

  // Discovery, scraping and listeners. The addresses bound are logged.
  Status start();
  // Files again: manifests, configurations, API keys, certificates, credentials, endpoints; also other files
  // than before for a listener's keys and certificate. Each part that fails keeps its former state; the first
  // failure is returned, all are logged. `options` is made anew by the caller; what only a restart takes
  // (listeners and pools that come or go, addresses, limits, timeouts) is named in a warning.
  Status reload(ServeOptions options);
  // No new connections, not ready any more; running requests end by themselves.
  void begin_drain();
  // Requests still running; 0: drained.
  int64_t active_requests() const;
  // Gives running requests up to `drain`, then cuts them; ends the loops.
  void stop(Duration drain);

  // --- for the admin pages; any thread ---
  bool ready() const;
  std::string readiness_json() const;
  std::string decisions_json(size_t limit) const { return base_->decisions_json(limit); }
  std::optional<std::string> decision_json(std::string_view request_id) const {
    return base_->decision_json(request_id);
  }
  std::string plugin_states_json() const { return base_->plugin_states_json(); }
  std::string endpoints_json() const { return base_->endpoints_json(); }
  std::string configuration_text() const { return base_->configuration_text(); }
  std::string shared_state_json() const { return base_->shared_state_json(); }
  Result<std::string> rollback(std::string_view pool) { return base_->rollback(pool); }
  // On the data plane's first loop; blocks the caller for up to 5 s.
  Result<std::string> explain(Gateway::ExplainRequest request) const;
  telemetry::MetricRegistry& metrics() { return base_->metrics; }

 private:
  ServeRuntime() = default;

  Status make_pools(const ServeOptions& options);
  Status make_gateway();
  Result<std::vector<assembly::PoolSpec>> pool_specs(const ServeOptions& options,
                                                     const config::Manifests& manifests) const;
  std::optional<size_t> default_pool() const;
  std::shared_ptr<const UpstreamSettings> upstream_of(const assembly::PoolRuntime& pool) const;
  std::vector<config::ListenerSettings> manifest_listeners() const;
  uint16_t gateway_port_for(uint16_t own) const;
  Status listen_all();
  void reload_listeners(const std::vector<config::ListenerSettings>& wanted, assembly::Reload& reload);

  ServeOptions options_;
  std::unique_ptr<assembly::Foundation> base_;
  std::unique_ptr<Gateway> gateway_;
  struct Listening {
    config::ListenerSettings settings;  // with the files that are in force
    std::shared_ptr<io::TlsServerContext> tls;
  };
  std::vector<Listening> listeners_;
  std::atomic<bool> listening_{false};
  std::atomic<bool> draining_{false};
};

}  // namespace penstock::gateway
