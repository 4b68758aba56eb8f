#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "config/api_keys.h"
#include "config/manifests.h"
#include "config/settings.h"
#include "director/access_log.h"
#include "director/collected.h"
#include "director/director.h"
#include "discovery/registry.h"
#include "gateway/route_table.h"
#include "io/http_client.h"
#include "io/loop.h"
#include "io/net.h"
#include "io/tls.h"
#include "signals/signal_table.h"
#include "telemetry/metrics.h"

namespace penstock::telemetry {
class Tracer;
}

namespace penstock::gateway {

// How the engines of a pool are reached. Immutable; a reload publishes another.
struct UpstreamSettings {
  std::string authorization;                  // value of the header sent to engines, "" none
  bool forward_client_authorization = false;  // the client's pass on, where the listener has no API keys
  bool http2 = false;
  std::shared_ptr<io::TlsClientContext> tls;  // for https endpoints
  std::string server_name;                    // SNI and name to verify; "" the endpoint's address
  config::DeadlineSettings deadlines;
  uint32_t attempts = 3;  // the first one included
};

// One pool as the gateway serves it. All pointers outlive the Gateway.
struct GatewayPool {
  director::Pool* pool = nullptr;      // policy, rules, decision log
  discovery::Pool* members = nullptr;  // membership
  signals::SignalTable* signals = nullptr;
  Duration freshness_budget = std::chrono::seconds(2);
  std::shared_ptr<const UpstreamSettings> upstream;
  io::HttpClientOptions client;
};

// A plain Service: requests are passed through without being looked at.
struct GatewayService {
  std::string ns = "default";
  std::string name;
  std::vector<io::HttpDestination> targets;  // used in turn
};

struct GatewayListener {
  config::ListenerSettings settings;  // name, timeouts, limits
  io::SocketAddress address;
  std::shared_ptr<io::TlsServerContext> tls;        // null: plain
  std::shared_ptr<const config::ApiKeys> api_keys;  // null: everybody may come
  uint16_t gateway_port = 0;                        // the Gateway listeners' port it stands for; 0: its own
};

struct GatewayOptions {
  int64_t buffered_bytes = int64_t{1} << 30;  // of request bodies in memory at once; beyond: 503
  int64_t streams = 100000;                   // requests being served at once; beyond: 503
  bool trust_request_id = true;               // take the client's x-request-id
  bool tell_endpoint = true;                  // answer with x-penstock-endpoint
  uint64_t seed = 0;                          // of decisions; 0: from the system
  telemetry::Tracer* tracer = nullptr;        // outlives the gateway; nullptr: no traces
};

// What the gateway writes when /metrics is asked for.
using director::CollectedFamily;
std::span<const CollectedFamily> collected_families();

// The data plane of `penstock serve`: listeners, routes, and proxying to pools and services.
//
// Life: make it, set_routes(), listen() for each listener, run the loops; stop() before the loops end;
// destroy it after they have ended and before the LoopGroup is destroyed. set_*() may be called at any
// time from any thread; requests under way keep what they began with.
class Gateway {
 public:
  struct Stats {
    int64_t active_requests = 0;
    int64_t buffered_bytes = 0;
    uint64_t requests = 0;
  };

  // `access_log` may be nullptr. Everything passed by reference outlives the Gateway.
  Gateway(io::LoopGroup& loops, telemetry::MetricRegistry& metrics, const Clock& clock,
          director::AccessLog* access_log, GatewayOptions options, std::vector<GatewayPool> pools,
          std::vector<GatewayService> services);
  ~Gateway();
  Gateway(const Gateway&) = delete;
  Gateway& operator=(const Gateway&) = delete;

  // Compiles and swaps the routes; on failure the old ones stay. `default_pool`: index of the pool that
  // gets what no route matches. Without any HTTPRoute and with a default pool everything goes there.
  Status set_routes(const config::Manifests& manifests, std::optional<size_t> default_pool,
                    std::vector<std::string>& warnings);
  void set_upstream(size_t pool, std::shared_ptr<const UpstreamSettings> upstream);
  // By the listener's name; null switches identity off.
  void set_api_keys(std::string_view listener, std::shared_ptr<const config::ApiKeys> keys);

  // Returns the bound address.
  Result<io::SocketAddress> listen(GatewayListener listener);
  // No new connections; running exchanges end by themselves.
  void begin_drain();
  // Ends the listeners: running exchanges get `drain`, then are cut. From outside the loops.
  void stop(Duration drain);

  // Where a body would go, without sending it: see director::Director::explain(). Call on any of the
  // group's loops. An empty pool name means what the routes choose (kNotFound where they choose none).
  struct ExplainRequest {
    std::string pool;  // "", "<name>" or "<namespace>/<name>"
    std::string method = "POST";
    std::string path;
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers;  // lower-case names
  };
  Result<std::string> explain(const ExplainRequest& request);

  Stats stats() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::gateway
