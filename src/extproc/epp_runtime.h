#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "assembly/foundation.h"
#include "base/clock.h"
#include "base/result.h"
#include "config/manifests.h"
#include "config/settings.h"
#include "discovery/kubernetes_discovery.h"
#include "extproc/door.h"
#include "extproc/fleet.h"
#include "extproc/health.h"
#include "io/http_server.h"
#include "io/loop.h"

namespace penstock::extproc {

// Where a picker finds its pool when nothing else says: in a cluster, by the InferencePool's name, or by a
// label selector and ports without one; or several pools.
struct ClusterOptions {
  std::string kubeconfig;  // "": KUBECONFIG, the pod's service account, ~/.kube/config
  std::string pool_group = "inference.networking.k8s.io";
  std::string selector;  // "" by the pool's name
  std::vector<uint16_t> target_ports;
  bool leader_election = false;  // of several pickers only the leader is ready

  // Every InferencePool of the namespace, or of all, that the selector selects.
  bool many = false;
  std::string pool_selector;  // "" each
  bool all_namespaces = false;
  Duration linger = std::chrono::minutes(5);  // of a pool that was deleted; see FleetOptions
  uint16_t first_pool_port = 0;               // ports that pools may have for themselves
  uint16_t last_pool_port = 0;
};

// What `penstock epp` runs on.
struct EppOptions {
  config::PoolSettings pool;  // of several pools: what they have in common
  ClusterOptions cluster;     // asked when neither pool nor configuration names a discovery
  std::string manifests;      // rewrites, objectives and the InferencePool, from files; "" none
  DoorOptions door;
  int64_t loops = 0;  // 0: one per core
  config::TelemetrySettings telemetry;
  config::SharedStateSettings shared_state;
  bool tracing = true;  // off: whatever settings and environment say
  config::ListenerLimits limits;

  std::string grpc_address = ":9002";
  std::string health_address = ":9003";  // "" none
  bool health_on_grpc = false;           // the static health service beside ext-proc
  size_t max_receive_message_bytes = size_t{65} << 20;
  size_t max_send_message_bytes = 0;  // 0: no limit
  Duration ping_interval =
      std::chrono::seconds(30);                      // silence of a connection until it is asked; zero: never
  Duration ping_timeout = std::chrono::seconds(10);  // and then closed with its streams
  bool secure = true;                                // TLS on the gRPC address
  std::string cert_folder;   // tls.crt and tls.key; "": a self-signed certificate made at start
  bool cert_reload = false;  // when the files change
  bool allow_tls12 = true;
  std::vector<std::string> tls12_ciphers;  // IANA names; empty: the library's
};

// An endpoint picker process without its command line: event loops, one pool or several that come and go
// (Fleet), signals, the gRPC listeners.
//
// Life: create() checks everything that can be checked without the network; start() listens; begin_drain(),
// close_door() and stop() end it. reload() reads every file again. All from one thread, which runs none of
// the loops.
class EppRuntime final : private discovery::PoolListener {
 public:
  static Result<std::unique_ptr<EppRuntime>> create(EppOptions options);
  ~EppRuntime() override;
  EppRuntime(const EppRuntime&) = delete;
  EppRuntime& operator=(const EppRuntime&) = delete;

  Status start();
  // Files again: configuration, manifests, endpoints, certificates. Each part that fails keeps its former
  // state; the first failure is returned, all are logged.
  Status reload(EppOptions options);
  // Health says NOT_SERVING; streams are served on, new ones too: data planes leave by themselves.
  void begin_drain();
  // Requests that are not over; 0: drained.
  int64_t active_requests() const;
  // After begin_drain(): no new connections and streams; those that are open go on.
  void close_door();
  // Cuts what is open; ends the loops.
  void stop();
  // To be called every half a second or so: takes a changed certificate, gives memory back after load.
  void tick();

  // Null where the pool is known without a cluster. As long as the runtime.
  discovery::KubernetesDiscovery* cluster() const { return cluster_.get(); }

  // --- for the admin pages; any thread ---
  bool ready() const;
  std::string readiness_json() const;
  std::string decisions_json(size_t limit) const { return base_->decisions_json(limit); }
  std::optional<std::string> decision_json(std::string_view request_id) const {
    return base_->decision_json(request_id);
  }
  std::string plugin_states_json() const;
  std::string endpoints_json() const { return base_->endpoints_json(); }
  std::string configuration_text() const { return base_->configuration_text(); }
  std::string shared_state_json() const { return base_->shared_state_json(); }
  Result<std::string> rollback(std::string_view pool);
  Result<std::string> explain(Door::ExplainRequest request) const;
  telemetry::MetricRegistry& metrics() { return base_->metrics; }
  // After start(): what was bound.
  std::string grpc_address() const { return bound_grpc_; }
  std::string health_address() const { return bound_health_; }
  Door::Stats stats() const { return door_->stats(); }

 private:
  EppRuntime() = default;
  static assembly::PoolSpec pool_spec(const EppOptions& options, const config::Manifests& manifests);
  Status make_pool(const EppOptions& options);
  Status make_fleet(const EppOptions& options);
  Result<std::unique_ptr<io::HttpServer>> open_pool_port(uint16_t port);
  Status make_cluster(const EppOptions& options);
  void pool_changed(const std::string& id, const config::InferencePool* pool) override;
  void rules_changed(const config::Manifests& rules) override;
  void state_changed() override;
  Status make_door(EppOptions& options);
  Status listen();
  void reload_pool(const EppOptions& options, assembly::Reload& reload);
  void update_health();
  int64_t certificate_stamp() const;
  assembly::PoolRuntime& pool() const { return *base_->pools[0]; }  // REQUIRES: there is one pool

  EppOptions options_;
  std::unique_ptr<assembly::Foundation> base_;
  std::unique_ptr<discovery::PoolSink> cluster_sink_;
  std::unique_ptr<discovery::KubernetesDiscovery> cluster_;  // null: the pool is known by other means
  mutable std::mutex cluster_mutex_;
  std::string cluster_protocol_;  // of the InferencePool, as it was last seen
  std::mutex health_mutex_;       // one update after the other
  std::unique_ptr<Door> door_;
  std::unique_ptr<Fleet> fleet_;  // null: there is one pool
  std::shared_ptr<io::GrpcRouter> router_;
  std::shared_ptr<io::GrpcRouter> health_router_;
  Health health_{Health::Kind::kPicker};
  Health static_health_{Health::Kind::kStatic};
  std::unique_ptr<io::HttpServer> server_;
  std::unique_ptr<io::HttpServer> health_server_;
  uint64_t http2_collector_ = 0;  // 0: not registered
  std::shared_ptr<io::TlsServerContext> tls_;
  int64_t certificate_stamp_ = 0;  // of the files in use
  uint64_t streams_seen_ = 0;      // opened and ended, at the last tick
  int idle_ticks_ = 3;             // without either
  std::string bound_grpc_;
  std::string bound_health_;
  std::atomic<bool> listening_{false};
  std::atomic<bool> draining_{false};
};

}  // namespace penstock::extproc
