#include "extproc/epp_runtime.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "assembly/http2_metrics.h"
#include "assembly/pool_pages.h"
#include "assembly/tracing_setup.h"
#include "base/strings.h"
#include "io/run_on.h"
#include "telemetry/log.h"

namespace penstock::extproc {

namespace {

// For the spans of the last requests, when the process ends.
constexpr Duration kTraceFlush = std::chrono::seconds(3);

io::HttpServerOptions server_options(const EppOptions& options) {
  io::HttpServerOptions server;
  server.max_connections = static_cast<uint32_t>(options.limits.connections);
  // A stream lives as long as the answer it watches, and data planes keep their connections.
  server.max_body_bytes = UINT64_MAX;
  server.body_timeout = Duration::zero();
  server.idle_timeout = std::chrono::hours(24);
  const int64_t streams = options.limits.streams_per_connection_given ? options.limits.streams_per_connection
                                                                      : options.limits.streams;
  server.http2.max_concurrent_streams = static_cast<uint32_t>(streams);
  // Nothing is written before the decision, and Envoy resets the stream of every client that leaves until
  // then: all of them may do so at once, and it is no fault of the connection they share.
  server.http2.reset_burst = std::max(server.http2.reset_burst, server.http2.max_concurrent_streams);
  server.http2.resets_per_second = server.http2.reset_burst;
  // A decided stream waits for its answer without a deadline: a data plane that is gone without a word is
  // found by its silence.
  server.http2.ping_interval = options.ping_interval;
  server.http2.ping_timeout = options.ping_timeout;
  return server;
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

Result<assembly::PoolSpec> EppRuntime::pool_spec(const EppOptions& options,
                                                 const config::Manifests& manifests) {
  assembly::PoolSpec spec{options.pool, {}, {}};
  for (const config::InferencePool& pool : manifests.pools) {
    if (pool.meta.name != options.pool.name || pool.meta.ns != options.pool.ns) continue;
    spec.selector = pool.selector;
    spec.target_ports = pool.target_ports;
  }
  return spec;
}

Status EppRuntime::load_manifests(const std::string& path, config::Manifests& out) const {
  if (path.empty()) return {};
  auto loaded = config::load_manifests(path);
  if (!loaded.ok()) return std::move(loaded).error();
  out = std::move(*loaded);
  for (const std::string& warning : out.warnings) telemetry::log_warn(warning);
  return {};
}

// The reference's defaults: its service name, and the console where nothing names an exporter.
Status EppRuntime::start_tracing(const EppOptions& options) {
  if (!options.tracing) return {};
  telemetry::TracingOptions defaults;
  defaults.exporter = telemetry::TracingOptions::Exporter::kConsole;
  defaults.service_name = "llm-d-epp";
  auto tracer = assembly::start_tracing(options.telemetry.tracing, std::move(defaults), clock_, metrics_);
  if (!tracer.ok()) return std::move(tracer).error();
  tracer_ = *std::move(tracer);
  return {};
}

Result<std::unique_ptr<EppRuntime>> EppRuntime::create(EppOptions options) {
  std::unique_ptr<EppRuntime> runtime(new EppRuntime());
  if (Status status = runtime->load_manifests(options.manifests, runtime->manifests_); !status.ok()) {
    return status.error();
  }
  runtime->loops_ = std::make_unique<io::LoopGroup>(static_cast<size_t>(options.loops));
  runtime->slots_ = std::make_unique<discovery::SlotAllocator>();
  runtime->signals_ = std::make_unique<signals::SignalTable>();
  runtime->pool_metrics_ =
      std::make_unique<signals::PoolMetrics>(runtime->metrics_, *runtime->signals_, runtime->clock_);
  runtime->request_metrics_ = std::make_unique<director::RequestMetrics>(runtime->metrics_);
  if (options.telemetry.access_log) {
    runtime->access_log_ =
        std::make_unique<director::AccessLog>(director::AccessLog::Options{.loops = runtime->loops_->size()});
  }
  const assembly::SharedKnowledge shared{
      *runtime->loops_,   runtime->metrics_,       runtime->clock_,           *runtime->slots_,
      *runtime->signals_, *runtime->pool_metrics_, *runtime->request_metrics_};
  auto spec = pool_spec(options, runtime->manifests_);
  if (!spec.ok()) return std::move(spec).error();
  auto pool = assembly::PoolRuntime::create(shared, std::move(*spec), options.telemetry.decisions);
  if (!pool.ok()) return std::move(pool).error();
  const config::DiscoverySettings& discovery = options.pool.discovery;
  if ((*pool)->policy()->discovery == nullptr && !discovery.given()) {
    return invalid_config(
        "the picker has no way to find its endpoints: name dataLayer.discovery in the configuration, "
        "pools[].discovery in --settings, or use --endpoints-file or --model-server (this build has no "
        "Kubernetes client, so --pool-name and "
        "--endpoint-selector find none)");
  }
  (*pool)->set_rules(assembly::pool_rules(runtime->manifests_, (*pool)->pool().ns, (*pool)->pool().name));
  runtime->pools_.push_back(std::move(*pool));
  warn_of_unseen_answers(options, *runtime->pool().policy());

  DoorPool door_pool;
  door_pool.pool = &runtime->pool().pool();
  door_pool.members = &runtime->pool().members();
  door_pool.signals = runtime->signals_.get();
  door_pool.freshness_budget = runtime->pool().freshness_budget();
  if (Status status = runtime->start_tracing(options); !status.ok()) return status.error();
  options.door.tracer = runtime->tracer_.get();
  runtime->door_ = std::make_unique<Door>(*runtime->loops_, runtime->metrics_, runtime->clock_,
                                          runtime->access_log_.get(), options.door, door_pool);
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
  loops_->start();
  if (Status status = pool().start(); !status.ok()) {
    return status.error().wrap("pool " + options_.pool.ns + "/" + options_.pool.name);
  }
  if (Status status = listen(); !status.ok()) return status;
  http2_collector_ = metrics_.add_collector([this](telemetry::Writer& out) {
    std::vector<assembly::ListenerStats> listeners{{"ext-proc", server_->stats()}};
    if (health_server_) listeners.push_back({"health", health_server_->stats()});
    assembly::collect_http2(listeners, out);
  });
  if (!options_.cert_folder.empty()) certificate_stamp_ = certificate_stamp();
  listening_ = true;
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
  server_ = std::make_unique<io::HttpServer>(*loops_, server_options(options_), router_);
  if (Status status = open(server_, options_.grpc_address, tls_, "ext-proc", bound_grpc_); !status.ok()) {
    return status;
  }
  if (options_.health_address.empty()) return {};
  health_server_ = std::make_unique<io::HttpServer>(loops_->at(0), server_options(options_), health_router_);
  return open(health_server_, options_.health_address, nullptr, "health", bound_health_);
}

void EppRuntime::update_health() {
  HealthInputs inputs;
  inputs.pool_known = listening_;
  inputs.plugins_ready = listening_;
  inputs.draining = draining_;
  health_.set(inputs);
}

Status EppRuntime::reload(EppOptions options) {
  Status first;
  const auto note = [&first](Status status, std::string_view what) {
    if (status.ok()) return true;
    telemetry::log_error("reload failed, the former state stays",
                         {{"what", what}, {"error", status.error().message}});
    if (first.ok()) first = status.error().wrap(what);
    return false;
  };
  config::Manifests manifests;
  if (note(load_manifests(options.manifests, manifests), "manifests")) {
    auto spec = pool_spec(options, manifests);
    if (note(spec.ok() ? Status() : Status(spec.error()), "pool")) {
      if (note(pool().reload(std::move(*spec)), "configuration"))
        warn_of_unseen_answers(options_, *pool().policy());
      manifests_ = std::move(manifests);
      pool().set_rules(assembly::pool_rules(manifests_, pool().pool().ns, pool().pool().name));
    }
  }
  note(pool().refresh_discovery(), "endpoints");
  if (tls_) note(tls_->reload(), "certificate");
  telemetry::log_info("reloaded", {{"complete", first.ok()}});
  return first;
}

void EppRuntime::begin_drain() {
  draining_ = true;
  update_health();
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
  if (!loops_) return;
  close_door();
  if (server_) {
    door_->begin_stop();
    server_->stop(Duration::zero());
  }
  if (health_server_) health_server_->stop(Duration::zero());
  for (const auto& pool : pools_) pool->stop();
  loops_->stop();
  if (http2_collector_ != 0) metrics_.remove_collector(std::exchange(http2_collector_, 0));
  server_.reset();
  health_server_.reset();
  door_.reset();
  pools_.clear();
  access_log_.reset();
  if (tracer_) tracer_->shutdown(kTraceFlush);
  loops_.reset();
}

bool EppRuntime::ready() const {
  return listening_ && !draining_ && pool().ready();
}

std::string EppRuntime::readiness_json() const {
  return fmt::format("{{\"ready\":{},\"listening\":{},\"draining\":{},\"pools\":[{}]}}\n", ready(),
                     listening_.load(), draining_.load(), assembly::readiness_list_json(pools_));
}

std::string EppRuntime::decisions_json(size_t limit) const {
  return assembly::decisions_json(pools_, limit);
}

std::optional<std::string> EppRuntime::decision_json(std::string_view request_id) const {
  return assembly::decision_json(pools_, request_id);
}

std::string EppRuntime::plugin_states_json() const {
  return assembly::picker_plugin_states_json(*pools_.front());
}

std::string EppRuntime::configuration_text() const {
  return assembly::configuration_text(pools_);
}

Result<std::string> EppRuntime::explain(Door::ExplainRequest request) const {
  return io::run_on(loops_->at(0),
                    [door = door_.get(), request = std::move(request)] { return door->explain(request); });
}

}  // namespace penstock::extproc
