#include "assembly/foundation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "assembly/pool_pages.h"
#include "assembly/tracing_setup.h"
#include "base/strings.h"
#include "telemetry/log.h"

namespace penstock::assembly {

namespace {

// For the spans of the last requests, when the process ends.
constexpr Duration kTraceFlush = std::chrono::seconds(3);

// What the process is made of, for dashboards: a gauge that is always 1.
void add_info(telemetry::MetricRegistry& metrics) {
  metrics
      .gauge({.name = "llm_d_epp_info",
              .help = "[ALPHA] General information of the current build.",
              .labels = {"commit", "build_ref"},
              .twins = {{.name = "inference_extension_info", .labels = {{"commit", ""}, {"build_ref", ""}}}}})
      .with({"", PENSTOCK_VERSION})
      .set(1);
}

}  // namespace

Result<config::Manifests> read_manifests(const std::string& path) {
  if (path.empty()) return config::Manifests();
  auto loaded = config::load_manifests(path);
  if (!loaded.ok()) return loaded;
  for (const std::string& warning : loaded->warnings) telemetry::log_warn(warning);
  return loaded;
}

Foundation::Foundation(int64_t loop_count, const config::TelemetrySettings& telemetry)
    : loops(std::make_unique<io::LoopGroup>(static_cast<size_t>(loop_count))),
      outside(std::make_unique<OutsideHttp>(*loops)),
      slots(std::make_unique<discovery::SlotAllocator>()),
      signals(std::make_unique<signals::SignalTable>()),
      pool_metrics(std::make_unique<signals::PoolMetrics>(metrics, *signals, clock)),
      request_metrics(std::make_unique<director::RequestMetrics>(metrics)),
      decisions_(telemetry.decisions) {
  if (telemetry.access_log) {
    access_log = std::make_unique<director::AccessLog>(director::AccessLog::Options{.loops = loops->size()});
  }
  add_info(metrics);
}

Status Foundation::start_tracing(const config::TracingSettings& settings,
                                 telemetry::TracingOptions defaults) {
  auto started = assembly::start_tracing(settings, std::move(defaults), clock, metrics);
  if (!started.ok()) return std::move(started).error();
  tracer = *std::move(started);
  return {};
}

Status Foundation::share_state(const config::SharedStateSettings& settings) {
  if (settings.url.empty()) return {};
  auto address = sharing::parse_store_url(settings.url);
  if (!address.ok()) return std::move(address).error();
  sharing::ReplicasOptions options;
  options.store.address = *std::move(address);
  options.store.user = settings.user;
  options.store.password_file = settings.password_file;
  if (const char* password = std::getenv(config::kSharedStatePassword); password != nullptr)
    options.store.password = password;
  options.store.timeout =
      std::clamp<Duration>(settings.staleness, std::chrono::milliseconds(200), std::chrono::seconds(1));
  options.ca_file = settings.ca_file;
  options.skip_verify = settings.skip_verify;
  options.replica = settings.replica;
  options.staleness = settings.staleness;
  options.interval = settings.interval;
  options.load = settings.load;
  options.prefixes = settings.prefixes;
  options.stream_length = static_cast<size_t>(settings.prefix_batches);
  options.loops = loops->size();
  auto made = sharing::Replicas::create(std::move(options), metrics);
  if (!made.ok()) return std::move(made).error();
  replicas = *std::move(made);
  return {};
}

SharedKnowledge Foundation::shared() {
  return {*loops,        metrics,          clock,         *slots,        *signals,
          *pool_metrics, *request_metrics, outside.get(), replicas.get()};
}

Result<PoolRuntime*> Foundation::add_pool(PoolSpec spec) {
  auto pool = PoolRuntime::create(shared(), std::move(spec), decisions_);
  if (!pool.ok()) return std::move(pool).error();
  set_rules(**pool);
  const std::lock_guard lock(pools_mutex_);
  pools.push_back(std::move(*pool));
  return pools.back().get();
}

Result<std::shared_ptr<PoolRuntime>> Foundation::make_pool_with_metrics(PoolSpec spec, std::string_view label,
                                                                        sharing::Replicas* shared_by) {
  struct Own {
    Own(Foundation& base, std::string_view label, std::string id)
        : registry(base.metrics, std::string(label), std::move(id)),
          pool_metrics(registry, *base.signals, base.clock),
          request_metrics(registry) {}
    telemetry::MetricRegistry registry;
    signals::PoolMetrics pool_metrics;
    director::RequestMetrics request_metrics;
  };
  const auto own = std::make_shared<Own>(*this, label, spec.settings.ns + "/" + spec.settings.name);
  const SharedKnowledge knowledge{
      *loops,        own->registry, clock, *slots, *signals, own->pool_metrics, own->request_metrics,
      outside.get(), shared_by,     own};
  auto created = PoolRuntime::create(knowledge, std::move(spec), decisions_);
  if (!created.ok()) return std::move(created).error();
  return std::shared_ptr<PoolRuntime>(*std::move(created));
}

Result<std::shared_ptr<PoolRuntime>> Foundation::try_pool(PoolSpec spec) {
  return make_pool_with_metrics(std::move(spec), "pool", nullptr);
}

Result<std::shared_ptr<PoolRuntime>> Foundation::add_pool_with_metrics(PoolSpec spec,
                                                                       std::string_view label) {
  if (stopped_) return Error{ErrorCode::kServiceUnavailable, "the process ends"};
  auto made = make_pool_with_metrics(std::move(spec), label, replicas.get());
  if (!made.ok()) return made;
  std::shared_ptr<PoolRuntime> pool = *std::move(made);
  if (Status status = pool->start(); !status.ok()) return status.error();
  const std::lock_guard lock(pools_mutex_);
  pools.push_back(pool);
  std::sort(pools.begin(), pools.end(), [](const auto& a, const auto& b) {
    return std::tie(a->pool().ns, a->pool().name) < std::tie(b->pool().ns, b->pool().name);
  });
  return pool;
}

void Foundation::remove_pool(const std::shared_ptr<PoolRuntime>& pool) {
  {
    const std::lock_guard lock(pools_mutex_);
    std::erase(pools, pool);
  }
  pool->stop();
}

std::vector<std::shared_ptr<PoolRuntime>> Foundation::pools_now() const {
  const std::lock_guard lock(pools_mutex_);
  return pools;
}

void Foundation::set_rules(PoolRuntime& pool) const {
  pool.set_rules(pool_rules(manifests, pool.pool().ns, pool.pool().name));
}

Status Foundation::start_pools() {
  const std::lock_guard lock(changes);
  if (replicas) replicas->start();
  for (const auto& pool : pools) {
    if (Status status = pool->start(); !status.ok()) {
      return status.error().wrap("pool " + pool->pool().ns + "/" + pool->pool().name);
    }
  }
  return {};
}

Result<std::string> Foundation::rollback(std::string_view name) {
  const std::lock_guard lock(changes);
  if (stopped_) return Error{ErrorCode::kServiceUnavailable, "the process ends"};
  PoolRuntime* found = nullptr;
  size_t same_name = 0;  // in several namespaces
  std::string there_are;
  for (const auto& pool : pools) {
    const std::string full = fmt::format("{}/{}", pool->pool().ns, pool->pool().name);
    if (name == full || name == pool->pool().name || (name.empty() && pools.size() == 1)) found = pool.get();
    same_name += name == pool->pool().name ? 1 : 0;
    there_are += (there_are.empty() ? "" : ", ") + full;
  }
  if (found == nullptr || same_name > 1) {
    return Error{ErrorCode::kNotFound,
                 name.empty() || same_name > 1
                     ? fmt::format("which pool? There are {}", there_are)
                     : fmt::format("there is no pool '{}'; there are {}", name, there_are)};
  }
  if (Status status = found->rollback(); !status.ok()) return status.error();
  return fmt::format("{{\"pool\":{},\"policy_epoch\":{}}}\n",
                     json_quote(found->pool().ns + "/" + found->pool().name), found->policy()->epoch);
}

void Foundation::stop_pools() {
  const std::lock_guard lock(changes);
  stopped_ = true;
  if (replicas) replicas->stop();
  for (const auto& pool : pools) pool->stop();
  loops->stop();
}

void Foundation::release() {
  pools.clear();
  replicas.reset();
  access_log.reset();
  if (tracer) tracer->shutdown(kTraceFlush);
  outside.reset();
  loops.reset();
}

std::string Foundation::readiness_json(bool ready, bool listening, bool draining,
                                       std::string_view cluster) const {
  return fmt::format("{{\"ready\":{},\"listening\":{},\"draining\":{},\"pools\":[{}]{}{}}}\n", ready,
                     listening, draining, readiness_list_json(pools_now()),
                     cluster.empty() ? "" : ",\"kubernetes\":", cluster);
}

std::string Foundation::decisions_json(size_t limit) const {
  return assembly::decisions_json(pools_now(), limit);
}

std::optional<std::string> Foundation::decision_json(std::string_view request_id) const {
  return assembly::decision_json(pools_now(), request_id);
}

std::string Foundation::plugin_states_json() const {
  return assembly::plugin_states_json(pools_now());
}

std::string Foundation::endpoints_json() const {
  return assembly::endpoints_json(pools_now(), clock.now());
}

std::string Foundation::configuration_text() const {
  return assembly::configuration_text(pools_now());
}

std::string Foundation::shared_state_json() const {
  return replicas ? replicas->state_json() : "{\"state\":\"off\"}\n";
}

bool Reload::note(Status status, std::string_view what) {
  if (status.ok()) return true;
  telemetry::log_error("reload failed, the former state stays",
                       {{"what", what}, {"error", status.error().message}});
  if (first_.ok()) first_ = status.error().wrap(what);
  return false;
}

void Reload::warn_of_restart(std::string_view what, bool same) {
  if (same) return;
  telemetry::log_warn("a setting has changed that a reload does not take; restart for it", {{"what", what}});
}

Status Reload::end() {
  telemetry::log_info("reloaded", {{"complete", first_.ok()}});
  return first_;
}

}  // namespace penstock::assembly
