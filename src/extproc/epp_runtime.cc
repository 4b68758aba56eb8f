#include "extproc/epp_runtime.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "assembly/bad_starts.h"
#include "assembly/http2_metrics.h"
#include "assembly/pool_pages.h"
#include "base/strings.h"
#include "io/run_on.h"
#include "telemetry/log.h"

namespace penstock::extproc {

namespace {

io::HttpServerOptions server_options(const EppOptions& options) {
  io::HttpServerOptions server;
  server.max_connections = static_cast<uint32_t>(options.limits.connections);
  // A stream lives as long as the answer it watches, and data planes keep their connections.
  server.max_body_bytes = UINT64_MAX;
  server.body_timeout = Duration::zero();
  server.idle_timeout = std::chrono::hours(24);
  const int64_t streams = options.limits.streams_per_connection_given ? options.limits.streams_per_connection
                                                                      : options.limits.streams;
  // Envoy's are its clusters' names unless they are set; pools are chosen by those that name a Service.
  server.http2.any_authority = true;
  server.http2.max_concurrent_streams = static_cast<uint32_t>(streams);
  server.http2.total_queue_bytes = static_cast<uint64_t>(options.limits.queued_bytes);
  // Nothing is written before the decision, and Envoy resets the stream of every client that leaves until
  // then: all of them may do so at once, and it is no fault of the connection they share.
  server.http2.reset_burst = std::max(server.http2.reset_burst, server.http2.max_concurrent_streams);
  server.http2.resets_per_second = server.http2.reset_burst;
  // A decided stream waits for its answer without a deadline: a data plane that is gone without a word is
  // found by its silence.
  server.http2.ping_interval = options.ping_interval;
  server.http2.ping_timeout = options.ping_timeout;
  server.on_bad_start = assembly::log_bad_starts();
  return server;
}

// Unique among pickers: the pod's (or host's) name, and a number by lot.
std::string own_identity() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const auto pod = kubernetes::process_environment("POD_NAME");
  std::random_device random;
  return fmt::format("{}_{:08x}{:08x}", pod && !pod->empty() ? *pod : std::string(host.data()), random(),
                     random());
}

void warn_of_unseen_answers(const EppOptions& options, const director::Policy& policy) {
  if (options.door.response_phase != ResponsePhase::kNever) return;
  for (const auto& plugin : policy.plugins) {
    if (!plugin->works_on_answers()) continue;
    telemetry::log_warn("--response-phase never: this plugin works on answers and sees none",
                        {{"plugin", plugin->typed_name()}});
  }
}

}  // namespace

assembly::PoolSpec EppRuntime::pool_spec(const EppOptions& options, const config::Manifests& manifests) {
  assembly::PoolSpec spec;
  spec.settings = options.pool;
  spec.api_server = !options.pool.discovery.given();
  for (const config::InferencePool& pool : manifests.pools) {
    if (pool.meta.name != options.pool.name || pool.meta.ns != options.pool.ns) continue;
    spec.selector = pool.selector;
    spec.target_ports = pool.target_ports;
    spec.app_protocol = pool.app_protocol;
  }
  return spec;
}

Status EppRuntime::make_pool(const EppOptions& options) {
  auto manifests = assembly::read_manifests(options.manifests);
  if (!manifests.ok()) return std::move(manifests).error();
  base_->manifests = std::move(*manifests);
  auto pool = base_->add_pool(pool_spec(options, base_->manifests));
  if (!pool.ok()) return std::move(pool).error();
  const director::Policy& policy = *(*pool)->policy();
  if (policy.discovery == nullptr && !options.pool.discovery.given()) {
    if (Status status = make_cluster(options); !status.ok()) return status;
  }
  warn_of_unseen_answers(options, policy);
  return {};
}

Status EppRuntime::make_fleet(const EppOptions& options) {
  FleetOptions fleet;
  fleet.pool = options.pool;
  fleet.linger = options.cluster.linger;
  fleet.first_port = options.cluster.first_pool_port;
  fleet.last_port = options.cluster.last_pool_port;
  fleet_ = std::make_unique<Fleet>(
      *base_, *door_, std::move(fleet), [this](uint16_t port) { return open_pool_port(port); },
      [this] { update_health(); });
  health_.expect_pools();
  return make_cluster(options);
}

Result<std::unique_ptr<io::HttpServer>> EppRuntime::open_pool_port(uint16_t port) {
  const std::string host = options_.grpc_address.substr(0, options_.grpc_address.rfind(':'));
  const std::string text = host + ":" + std::to_string(port);
  auto address = io::SocketAddress::parse(text);
  if (!address.ok()) return std::move(address).error();
  auto server = std::make_unique<io::HttpServer>(*base_->loops, server_options(options_), router_);
  auto bound = server->listen(*address, tls_, std::string(Door::kPoolListener) + "-" + std::to_string(port));
  if (!bound.ok()) return bound.error().wrap(text);
  telemetry::log_info("gRPC server listening",
                      {{"name", "ext-proc of a pool"}, {"address", bound->to_string()}});
  return server;
}

Status EppRuntime::make_cluster(const EppOptions& options) {
  auto cluster = kubernetes::find_cluster(options.cluster.kubeconfig, kubernetes::process_environment);
  if (!cluster.ok()) {
    return cluster.error().wrap(
        "the picker has no way to find its endpoints: name dataLayer.discovery in the configuration, "
        "pools[].discovery in --settings, or use --endpoints-file or --model-server");
  }
  discovery::KubernetesDiscoveryOptions kube;
  kube.cluster = *std::move(cluster);
  kube.ns = options.pool.ns;
  if (options.cluster.many) {
    kube.many = true;
    kube.pool_selector = options.cluster.pool_selector;
    kube.all_namespaces = options.cluster.all_namespaces;
    kube.pool_group = options.cluster.pool_group;
  } else if (options.cluster.selector.empty()) {
    kube.pool_name = options.pool.name;
    kube.pool_group = options.cluster.pool_group;
  } else {
    kube.selector = options.cluster.selector;
    kube.target_ports = options.cluster.target_ports;
  }
  if (options.cluster.leader_election) {
    kubernetes::LeaderElectionOptions election;
    election.ns = options.pool.ns;
    election.lease = "epp-" + options.pool.ns + "-" + options.pool.name + ".llm-d.ai";
    election.identity = own_identity();
    election.seed = std::random_device()();
    kube.election = std::move(election);
    health_.expect_leader();
  }
  kube.tls_name = options.pool.engine.server_name;
  kube.client.user_agent = std::string("penstock/") + PENSTOCK_VERSION;
  if (!fleet_) {
    cluster_sink_ = std::make_unique<discovery::PoolSink>(std::vector<discovery::Pool*>{&pool().members()});
  }
  discovery::PoolListener& listener = fleet_ ? static_cast<discovery::PoolListener&>(*fleet_) : *this;
  auto made =
      discovery::KubernetesDiscovery::create(std::move(kube), cluster_sink_.get(), listener, base_->metrics);
  if (!made.ok()) return std::move(made).error();
  cluster_ = *std::move(made);
  if (!fleet_) pool().follow_objects(cluster_->objects());
  if (!options.manifests.empty()) {
    telemetry::log_warn("rewrites and objectives come from the cluster, --manifests has no effect",
                        {{"manifests", options.manifests}});
  }
  return {};
}

void EppRuntime::pool_changed(const std::string& /*id*/, const config::InferencePool* changed) {
  if (changed != nullptr) {
    {
      const std::lock_guard lock(cluster_mutex_);
      cluster_protocol_ = changed->app_protocol;
    }
    pool().set_app_protocol(changed->app_protocol);
  }
  update_health();
}

void EppRuntime::rules_changed(const config::Manifests& rules) {
  pool().set_rules(assembly::pool_rules(rules, options_.pool.ns, options_.pool.name));
}

void EppRuntime::state_changed() {
  update_health();
}

Status EppRuntime::make_door(EppOptions& options) {
  if (options.tracing) {
    // The reference's defaults: its service name, and the console where nothing names an exporter.
    telemetry::TracingOptions defaults;
    defaults.exporter = telemetry::TracingOptions::Exporter::kConsole;
    defaults.service_name = "llm-d-epp";
    Status started = base_->start_tracing(options.telemetry.tracing, std::move(defaults));
    if (!started.ok()) return started;
  }
  options.door.tracer = base_->tracer.get();
  if (options.cluster.many) {
    door_ = std::make_unique<Door>(*base_->loops, base_->metrics, base_->clock, base_->access_log.get(),
                                   options.door);
    return {};
  }
  DoorPool door_pool;
  door_pool.pool = &pool().pool();
  door_pool.members = &pool().members();
  door_pool.signals = base_->signals.get();
  door_pool.freshness_budget = pool().freshness_budget();
  door_ = std::make_unique<Door>(*base_->loops, base_->metrics, base_->clock, base_->access_log.get(),
                                 options.door, door_pool);
  return {};
}

Result<std::unique_ptr<EppRuntime>> EppRuntime::create(EppOptions options) {
  std::unique_ptr<EppRuntime> runtime(new EppRuntime());
  runtime->base_ = std::make_unique<assembly::Foundation>(options.loops, options.telemetry);
  if (Status status = runtime->base_->share_state(options.shared_state); !status.ok()) return status.error();
  if (options.cluster.many) {
    assembly::PoolSpec common = pool_spec(options, {});
    common.told_endpoints = true;
    auto tried = runtime->base_->try_pool(std::move(common));
    if (!tried.ok()) return std::move(tried).error();
    warn_of_unseen_answers(options, *(*tried)->policy());
  } else {
    if (Status status = runtime->make_pool(options); !status.ok()) return status.error();
  }
  if (Status status = runtime->make_door(options); !status.ok()) return status.error();
  if (options.cluster.many) {
    if (Status status = runtime->make_fleet(options); !status.ok()) return status.error();
  }
  io::GrpcOptions grpc;
  grpc.max_receive_message_bytes = options.max_receive_message_bytes;
  if (options.max_send_message_bytes != 0) grpc.max_send_message_bytes = options.max_send_message_bytes;
  runtime->router_ = std::make_shared<io::GrpcRouter>(grpc);
  runtime->door_->serve(*runtime->router_);
  if (options.health_on_grpc) runtime->static_health_.serve_on(*runtime->router_);
  runtime->health_router_ = std::make_shared<io::GrpcRouter>();
  runtime->health_.serve_on(*runtime->health_router_);

  if (options.secure) {
    io::TlsServerOptions tls;
    tls.alpn = {"h2"};
    tls.allow_tls12 = options.allow_tls12;
    tls.tls12_ciphers = options.tls12_ciphers;
    if (options.cert_folder.empty()) {
      tls.self_signed_organisation = "Penstock";
    } else {
      tls.certificates.push_back({options.cert_folder + "/tls.crt", options.cert_folder + "/tls.key"});
    }
    auto context = io::TlsServerContext::create(tls);
    if (!context.ok()) return context.error().wrap("TLS of the gRPC port");
    runtime->tls_ = *context;
  }
  runtime->options_ = std::move(options);
  return runtime;
}

EppRuntime::~EppRuntime() {
  stop();
}

Status EppRuntime::start() {
  base_->loops->start();
  if (Status status = base_->start_pools(); !status.ok()) return status;
  if (Status status = listen(); !status.ok()) return status;
  http2_collector_ = base_->metrics.add_collector([this](telemetry::Writer& out) {
    std::vector<assembly::ListenerStats> listeners{{"ext-proc", server_->stats()}};
    if (health_server_) listeners.push_back({"health", health_server_->stats()});
    assembly::collect_http2(listeners, out);
  });
  if (!options_.cert_folder.empty()) certificate_stamp_ = certificate_stamp();
  listening_ = true;
  if (cluster_) cluster_->start();
  if (fleet_) fleet_->start(*cluster_);
  update_health();
  return {};
}

Status EppRuntime::listen() {
  const auto open = [&](std::unique_ptr<io::HttpServer>& server, const std::string& text,
                        std::shared_ptr<io::TlsServerContext> tls, const char* name,
                        std::string& bound) -> Status {
    auto address = io::SocketAddress::parse(text);
    if (!address.ok()) return address.error().wrap(name);
    auto listening = server->listen(*address, std::move(tls), name);
    if (!listening.ok()) return listening.error().wrap(name);
    bound = listening->to_string();
    telemetry::log_info("gRPC server listening", {{"name", name}, {"address", bound}});
    return {};
  };
  server_ = std::make_unique<io::HttpServer>(*base_->loops, server_options(options_), router_);
  if (Status status = open(server_, options_.grpc_address, tls_, "ext-proc", bound_grpc_); !status.ok()) {
    return status;
  }
  if (options_.health_address.empty()) return {};
  health_server_ =
      std::make_unique<io::HttpServer>(base_->loops->at(0), server_options(options_), health_router_);
  return open(health_server_, options_.health_address, nullptr, "health", bound_health_);
}

void EppRuntime::update_health() {
  const std::lock_guard lock(health_mutex_);
  HealthInputs inputs;
  inputs.pool_known = listening_ && (fleet_ ? fleet_->settled() : !cluster_ || cluster_->pool_known());
  inputs.protocol_ok = fleet_ || pool().protocol_ok();
  inputs.plugins_ready = listening_;
  inputs.draining = draining_;
  inputs.leader = cluster_ && cluster_->leader();
  std::map<std::string, HealthInputs> pools;
  if (fleet_ && listening_) pools = fleet_->health();
  for (auto& [name, pool] : pools) {
    pool.draining = inputs.draining;
    pool.leader = inputs.leader;
  }
  health_.set(inputs, std::move(pools));
}

Result<std::string> EppRuntime::rollback(std::string_view pool_name) {
  auto result = base_->rollback(pool_name);
  const std::lock_guard lock(base_->changes);
  update_health();
  return result;
}

void EppRuntime::reload_pool(const EppOptions& options, assembly::Reload& reload) {
  auto manifests = assembly::read_manifests(options.manifests);
  if (reload.note(manifests.ok() ? Status() : Status(manifests.error()), "manifests")) {
    assembly::PoolSpec spec = pool_spec(options, *manifests);
    if (cluster_) {
      const std::lock_guard lock(cluster_mutex_);
      spec.app_protocol = cluster_protocol_;
    }
    if (reload.note(pool().reload(std::move(spec)), "configuration")) {
      warn_of_unseen_answers(options_, *pool().policy());
    }
    if (!cluster_) {
      base_->manifests = std::move(*manifests);
      base_->set_rules(pool());
    }
    update_health();
  }
  reload.note(pool().refresh_discovery(), "endpoints");
}

Status EppRuntime::reload(EppOptions options) {
  const std::lock_guard lock(base_->changes);
  assembly::Reload reload;
  if (fleet_) {
    reload.note(fleet_->reload(options.pool), "configuration");
  } else {
    reload_pool(options, reload);
  }
  if (tls_) reload.note(tls_->reload(), "certificate");
  const DoorOptions& door = options.door;
  reload.warn_of_restart("loops", options.loops == options_.loops);
  reload.warn_of_restart("telemetry", options.telemetry == options_.telemetry &&
                                          door.trust_request_id == options_.door.trust_request_id);
  reload.warn_of_restart("sharedState", options.shared_state == options_.shared_state);
  reload.warn_of_restart("limits",
                         options.limits == options_.limits &&
                             options.max_receive_message_bytes == options_.max_receive_message_bytes &&
                             door.buffered_bytes == options_.door.buffered_bytes &&
                             door.streams == options_.door.streams);
  reload.warn_of_restart("timeouts", door.body_timeout == options_.door.body_timeout &&
                                         door.body_total_timeout == options_.door.body_total_timeout);
  return reload.end();
}

void EppRuntime::begin_drain() {
  draining_ = true;
  const std::lock_guard lock(base_->changes);
  update_health();
  if (cluster_) cluster_->release_leadership();
}

int64_t EppRuntime::active_requests() const {
  return door_->stats().active;
}

// Changes when one of the files is written or another one takes its place.
int64_t EppRuntime::certificate_stamp() const {
  int64_t stamp = 0;
  for (const char* name : {"/tls.crt", "/tls.key"}) {
    struct stat info{};
    if (stat((options_.cert_folder + name).c_str(), &info) != 0) continue;
    stamp = stamp * 31 + info.st_mtim.tv_sec * 1'000'000'007 + info.st_mtim.tv_nsec +
            static_cast<int64_t>(info.st_ino);
  }
  return stamp;
}

void EppRuntime::tick() {
  if (options_.cert_reload && tls_ && !options_.cert_folder.empty()) {
    const int64_t stamp = certificate_stamp();
    if (stamp != certificate_stamp_) {
      certificate_stamp_ = stamp;
      const Status status = tls_->reload();
      if (status.ok()) {
        telemetry::log_info("TLS certificate reloaded");
      } else {
        telemetry::log_error("Failed to reload TLS certificate", {{"error", status.error().message}});
      }
    }
  }
  // What large bodies left behind goes back once nothing has come for a while: first to the heap, then from
  // it.
  const Door::Stats stats = door_->stats();
  const uint64_t seen = stats.streams * 2 - static_cast<uint64_t>(stats.open_streams);
  if (seen != streams_seen_) {
    streams_seen_ = seen;
    idle_ticks_ = 0;
    return;
  }
  ++idle_ticks_;
  if (idle_ticks_ == 1) door_->release_idle_memory();
  if (idle_ticks_ == 2) malloc_trim(0);
}

void EppRuntime::close_door() {
  begin_drain();
  health_.end_watches();
  static_health_.end_watches();
  if (server_) server_->begin_drain();
}

void EppRuntime::stop() {
  if (!base_ || !base_->loops) return;
  if (!door_) return base_->release();
  close_door();
  if (server_) {
    door_->begin_stop();
    server_->stop(Duration::zero());
  }
  if (health_server_) health_server_->stop(Duration::zero());
  if (fleet_) fleet_->stop();
  if (cluster_) cluster_->stop();
  base_->stop_pools();
  if (http2_collector_ != 0) base_->metrics.remove_collector(std::exchange(http2_collector_, 0));
  server_.reset();
  health_server_.reset();
  door_.reset();
  fleet_.reset();
  base_->release();
}

bool EppRuntime::ready() const {
  if (!listening_ || draining_ || !(fleet_ ? fleet_->settled() : pool().ready())) return false;
  // What the first pools' plugins want to be told of is known once they are.
  return !cluster_ || cluster_->complete();
}

std::string EppRuntime::readiness_json() const {
  std::string cluster = cluster_ ? cluster_->state_json() : "";
  if (fleet_) cluster += ",\"configurations\":" + fleet_->configurations_json();
  return base_->readiness_json(ready(), listening_, draining_, cluster);
}

std::string EppRuntime::plugin_states_json() const {
  return fleet_ ? base_->plugin_states_json() : assembly::picker_plugin_states_json(pool());
}

Result<std::string> EppRuntime::explain(Door::ExplainRequest request) const {
  return io::run_on(base_->loops->at(0),
                    [door = door_.get(), request = std::move(request)] { return door->explain(request); });
}

}  // namespace penstock::extproc
