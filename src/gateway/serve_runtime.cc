#include "gateway/serve_runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "config/api_keys.h"
#include "io/run_on.h"
#include "telemetry/log.h"

namespace penstock::gateway {

namespace {

std::string full_name(const config::PoolSettings& settings) {
  return settings.ns + "/" + settings.name;
}

Result<std::vector<io::HttpDestination>> service_targets(const config::ServiceSettings& service) {
  std::vector<io::HttpDestination> targets;
  for (const std::string& url : service.urls) {
    auto parsed = io::parse_url(url);
    if (!parsed.ok()) return parsed.error().wrap("service " + service.name);
    io::HttpDestination target{parsed->host, parsed->port, nullptr, {}};
    if (parsed->https) {
      auto tls = io::TlsClientContext::create({});
      if (!tls.ok()) return tls.error().wrap("service " + service.name);
      target.tls = *tls;
    }
    targets.push_back(std::move(target));
  }
  return targets;
}

}  // namespace

Result<std::unique_ptr<ServeRuntime>> ServeRuntime::create(ServeOptions options) {
  std::unique_ptr<ServeRuntime> runtime(new ServeRuntime());
  const config::Settings& settings = options.settings;
  for (const std::string& warning : settings.warnings) telemetry::log_warn(warning);
  auto manifests = assembly::read_manifests(settings.manifests);
  if (!manifests.ok()) return std::move(manifests).error();
  runtime->base_ = std::make_unique<assembly::Foundation>(settings.loops, settings.telemetry);
  runtime->base_->manifests = std::move(*manifests);
  if (Status status = runtime->base_->start_tracing(settings.telemetry.tracing, {}); !status.ok()) {
    return status.error();
  }
  if (Status status = runtime->base_->share_state(settings.shared_state); !status.ok()) {
    return status.error();
  }
  if (Status status = runtime->make_pools(options); !status.ok()) return status.error();
  if (runtime->base_->pools.empty() && runtime->base_->manifests.routes.empty()) {
    telemetry::log_warn("there is no pool and no route: every request is answered 404",
                        {{"manifests", settings.manifests}});
  }
  runtime->options_ = std::move(options);
  if (Status status = runtime->make_gateway(); !status.ok()) return status.error();
  return runtime;
}

ServeRuntime::~ServeRuntime() {
  stop(Duration(0));
}

Result<std::vector<assembly::PoolSpec>> ServeRuntime::pool_specs(const ServeOptions& options,
                                                                 const config::Manifests& manifests) const {
  std::vector<assembly::PoolSpec> specs;
  for (const config::PoolSettings& settings : options.settings.pools) {
    specs.emplace_back().settings = settings;
  }
  for (const config::InferencePool& pool : manifests.pools) {
    auto known = std::find_if(specs.begin(), specs.end(), [&](const assembly::PoolSpec& spec) {
      return spec.settings.name == pool.meta.name && spec.settings.ns == pool.meta.ns;
    });
    if (known == specs.end()) {
      assembly::PoolSpec spec;
      if (options.manifest_pool_defaults) spec.settings = *options.manifest_pool_defaults;
      spec.settings.name = pool.meta.name;
      spec.settings.ns = pool.meta.ns;
      specs.push_back(std::move(spec));
      known = specs.end() - 1;
    }
    known->selector = pool.selector;
    known->target_ports = pool.target_ports;
    known->app_protocol = pool.app_protocol;
    if (pool.app_protocol == config::kH2c) known->settings.engine.http2 = true;
  }
  for (const assembly::PoolSpec& spec : specs) {
    if (!spec.settings.discovery.given() && spec.settings.config_file.empty() &&
        !spec.settings.config_inline) {
      return invalid_config(
          fmt::format("pool {} has no way to find its endpoints: set discovery.static, "
                      "discovery.file or discovery.dns (or --model-server, --endpoints-file)",
                      full_name(spec.settings)));
    }
  }
  return specs;
}

Status ServeRuntime::make_pools(const ServeOptions& options) {
  auto specs = pool_specs(options, base_->manifests);
  if (!specs.ok()) return specs.error();
  for (assembly::PoolSpec& spec : *specs) {
    if (auto pool = base_->add_pool(std::move(spec)); !pool.ok()) return std::move(pool).error();
  }
  return {};
}

std::shared_ptr<const UpstreamSettings> ServeRuntime::upstream_of(const assembly::PoolRuntime& pool) const {
  const config::PoolSettings& settings = pool.settings();
  auto upstream = std::make_shared<UpstreamSettings>();
  upstream->authorization = settings.engine.authorization;
  upstream->forward_client_authorization = settings.engine.forward_client_authorization;
  upstream->http2 = settings.engine.http2;
  upstream->tls = pool.engine_tls();
  upstream->server_name = settings.engine.server_name;
  upstream->deadlines = settings.deadlines;
  upstream->attempts = static_cast<uint32_t>(settings.retries.attempts);
  return upstream;
}

std::optional<size_t> ServeRuntime::default_pool() const {
  const std::string& wanted = options_.settings.default_pool;
  for (size_t i = 0; i < base_->pools.size(); ++i) {
    const config::PoolSettings& settings = base_->pools[i]->settings();
    if (!wanted.empty() && (wanted == settings.name || wanted == full_name(settings))) return i;
  }
  // A single pool serves everything as long as no route says otherwise.
  if (wanted.empty() && base_->pools.size() == 1 && base_->manifests.routes.empty()) return 0;
  return std::nullopt;
}

Status ServeRuntime::make_gateway() {
  const config::Settings& settings = options_.settings;
  std::vector<GatewayPool> pools;
  for (const auto& pool : base_->pools) {
    GatewayPool entry;
    entry.pool = &pool->pool();
    entry.members = &pool->members();
    entry.signals = base_->signals.get();
    entry.freshness_budget = pool->freshness_budget();
    entry.upstream = upstream_of(*pool);
    entry.client.idle_timeout = pool->settings().engine.idle_timeout;
    entry.client.max_idle_per_destination = static_cast<uint32_t>(pool->settings().engine.idle_connections);
    pools.push_back(std::move(entry));
  }
  std::vector<GatewayService> services;
  for (const config::ServiceSettings& service : settings.services) {
    auto targets = service_targets(service);
    if (!targets.ok()) return targets.error();
    services.push_back({service.ns, service.name, std::move(*targets)});
  }
  GatewayOptions gateway;
  gateway.buffered_bytes = settings.buffered_bytes;
  gateway.streams = settings.streams;
  gateway.trust_request_id = settings.telemetry.trust_request_id;
  gateway.tracer = base_->tracer.get();
  gateway_ = std::make_unique<Gateway>(*base_->loops, base_->metrics, base_->clock, base_->access_log.get(),
                                       gateway, std::move(pools), std::move(services));
  const auto wanted = default_pool();
  if (!settings.default_pool.empty() && !wanted) {
    return invalid_config(fmt::format("routing.defaultPool: there is no pool '{}'", settings.default_pool));
  }
  std::vector<std::string> warnings;
  Status status = gateway_->set_routes(base_->manifests, wanted, warnings);
  for (const std::string& warning : warnings) telemetry::log_warn(warning);
  return status;
}

Status ServeRuntime::start() {
  base_->loops->start();
  if (Status status = base_->start_pools(); !status.ok()) return status;
  if (Status status = listen_all(); !status.ok()) return status;
  listening_ = true;
  return {};
}

// Listeners that only the manifests' Gateways name, one a port.
std::vector<config::ListenerSettings> ServeRuntime::manifest_listeners() const {
  std::vector<config::ListenerSettings> out;
  for (const config::Gateway& gateway : base_->manifests.gateways) {
    for (const config::Gateway::Listener& from : gateway.listeners) {
      const std::string address = fmt::format(":{}", from.port);
      if (std::any_of(out.begin(), out.end(), [&](const auto& have) { return have.address == address; }))
        continue;
      config::ListenerSettings listener;
      listener.name = gateway.meta.name + "/" + from.name;
      listener.address = address;
      listener.cert_file = from.cert_file;
      listener.key_file = from.key_file;
      out.push_back(std::move(listener));
    }
  }
  return out;
}

// The Gateway port whose routes a listener of ours serves: its own where a Gateway has it, else the only one.
uint16_t ServeRuntime::gateway_port_for(uint16_t own) const {
  std::vector<uint16_t> ports;
  for (const config::Gateway& gateway : base_->manifests.gateways) {
    for (const config::Gateway::Listener& listener : gateway.listeners) ports.push_back(listener.port);
  }
  if (ports.empty() || std::find(ports.begin(), ports.end(), own) != ports.end()) return 0;
  std::sort(ports.begin(), ports.end());
  if (ports.front() == ports.back()) return ports.front();
  telemetry::log_warn("no Gateway listener has this port, so only routes without a Gateway are served on it",
                      {{"port", own}});
  return 0;
}

Status ServeRuntime::listen_all() {
  if (options_.settings.listeners.empty()) options_.settings.listeners = manifest_listeners();
  if (options_.settings.listeners.empty()) {
    return invalid_config(
        "no listener: use --listen, listeners in the settings, or a Gateway in the manifests");
  }
  for (const config::ListenerSettings& settings : options_.settings.listeners) {
    GatewayListener listener;
    listener.settings = settings;
    auto address = io::SocketAddress::parse(settings.address);
    if (!address.ok()) return address.error().wrap("listener " + settings.name);
    listener.address = *address;
    listener.gateway_port = settings.gateway_port != 0 ? static_cast<uint16_t>(settings.gateway_port)
                                                       : gateway_port_for(address->port());
    if (settings.tls()) {
      io::TlsServerOptions tls;
      tls.certificates.push_back({settings.cert_file, settings.key_file});
      if (!settings.http2) tls.alpn = {"http/1.1"};
      auto context = io::TlsServerContext::create(tls);
      if (!context.ok()) return context.error().wrap("listener " + settings.name);
      listener.tls = *context;
    }
    if (!settings.api_keys_file.empty()) {
      auto keys = config::ApiKeys::load(settings.api_keys_file);
      if (!keys.ok()) return keys.error().wrap("listener " + settings.name);
      listener.api_keys = *keys;
    }
    listeners_.push_back({settings, listener.tls});
    auto bound = gateway_->listen(std::move(listener));
    if (!bound.ok()) return std::move(bound).error();
    telemetry::log_info(
        "listening", {{"listener", settings.name}, {"address", bound->to_string()}, {"tls", settings.tls()}});
  }
  return {};
}

Status ServeRuntime::reload(ServeOptions options) {
  const std::lock_guard lock(base_->changes);
  assembly::Reload reload;
  for (const std::string& warning : options.settings.warnings) telemetry::log_warn(warning);
  auto manifests = assembly::read_manifests(options.settings.manifests);
  if (!reload.note(manifests.ok() ? Status() : Status(manifests.error()), "manifests")) return reload.end();
  auto specs = pool_specs(options, *manifests);
  if (!reload.note(specs.ok() ? Status() : Status(specs.error()), "pools")) return reload.end();
  base_->manifests = std::move(*manifests);
  for (assembly::PoolSpec& spec : *specs) {
    const auto running = std::find_if(base_->pools.begin(), base_->pools.end(), [&](const auto& pool) {
      return pool->settings().name == spec.settings.name && pool->settings().ns == spec.settings.ns;
    });
    const std::string name = full_name(spec.settings);
    if (running == base_->pools.end()) {
      telemetry::log_warn("a pool that was not there at start is not added by a reload; restart for it",
                          {{"pool", name}});
      continue;
    }
    if (reload.note((*running)->reload(std::move(spec)), "pool " + name)) {
      gateway_->set_upstream(static_cast<size_t>(running - base_->pools.begin()), upstream_of(**running));
    }
    base_->set_rules(**running);
    reload.note((*running)->refresh_discovery(), "endpoints of pool " + name);
  }
  options_.settings.default_pool = options.settings.default_pool;
  std::vector<std::string> warnings;
  reload.note(gateway_->set_routes(base_->manifests, default_pool(), warnings), "routes");
  for (const std::string& warning : warnings) telemetry::log_warn(warning);

  std::vector<config::ListenerSettings> listeners = std::move(options.settings.listeners);
  if (listeners.empty()) listeners = manifest_listeners();
  reload_listeners(listeners, reload);
  reload.warn_of_restart("drainTimeout", options.settings.drain_timeout == options_.settings.drain_timeout);
  reload.warn_of_restart("loops", options.settings.loops == options_.settings.loops);
  reload.warn_of_restart("admin", options.settings.admin_address == options_.settings.admin_address);
  reload.warn_of_restart("telemetry", options.settings.telemetry == options_.settings.telemetry);
  reload.warn_of_restart("sharedState", options.settings.shared_state == options_.settings.shared_state);
  reload.warn_of_restart("limits", options.settings.buffered_bytes == options_.settings.buffered_bytes &&
                                       options.settings.streams == options_.settings.streams);
  return reload.end();
}

void ServeRuntime::reload_listeners(const std::vector<config::ListenerSettings>& wanted,
                                    assembly::Reload& reload) {
  for (const config::ListenerSettings& settings : wanted) {
    const auto running = std::find_if(listeners_.begin(), listeners_.end(), [&](const Listening& have) {
      return have.settings.name == settings.name;
    });
    if (running == listeners_.end()) {
      telemetry::log_warn("a listener that was not there at start is not added by a reload; restart for it",
                          {{"listener", settings.name}, {"address", settings.address}});
      continue;
    }
    config::ListenerSettings& former = running->settings;
    if (settings.tls() != former.tls()) {
      reload.note(invalid_config("TLS is not switched on or off by a reload; restart for it"),
                  "listener " + settings.name);
    } else if (running->tls) {
      io::TlsServerOptions tls;
      tls.certificates.push_back({settings.cert_file, settings.key_file});
      if (!former.http2) tls.alpn = {"http/1.1"};
      if (reload.note(running->tls->reload(std::move(tls)), "certificate of listener " + settings.name)) {
        former.cert_file = settings.cert_file;
        former.key_file = settings.key_file;
      }
    }
    if (settings.api_keys_file.empty()) {
      if (!former.api_keys_file.empty()) {
        telemetry::log_warn("the listener asks for no API keys any more", {{"listener", settings.name}});
        gateway_->set_api_keys(settings.name, nullptr);
      }
      former.api_keys_file.clear();
    } else {
      auto keys = config::ApiKeys::load(settings.api_keys_file);
      if (reload.note(keys.ok() ? Status() : Status(keys.error()), "API keys of listener " + settings.name)) {
        gateway_->set_api_keys(settings.name, *keys);
        former.api_keys_file = settings.api_keys_file;
      }
    }
    config::ListenerSettings rest = settings;
    rest.cert_file = former.cert_file;
    rest.key_file = former.key_file;
    rest.api_keys_file = former.api_keys_file;
    reload.warn_of_restart("listener " + settings.name, rest == former);
  }
  for (const Listening& listener : listeners_) {
    const bool kept = std::any_of(wanted.begin(), wanted.end(),
                                  [&](const auto& w) { return w.name == listener.settings.name; });
    if (!kept) {
      telemetry::log_warn("a listener that is configured no more is not closed by a reload; restart for it",
                          {{"listener", listener.settings.name}});
    }
  }
}

void ServeRuntime::begin_drain() {
  draining_ = true;
  gateway_->begin_drain();
}

int64_t ServeRuntime::active_requests() const {
  return gateway_->stats().active_requests;
}

void ServeRuntime::stop(Duration drain) {
  if (!base_ || !base_->loops) return;
  draining_ = true;
  if (gateway_) gateway_->stop(drain);
  base_->stop_pools();
  gateway_.reset();
  base_->release();
}

bool ServeRuntime::ready() const {
  if (!listening_ || draining_) return false;
  return std::all_of(base_->pools.begin(), base_->pools.end(),
                     [](const auto& pool) { return pool->ready(); });
}

std::string ServeRuntime::readiness_json() const {
  return base_->readiness_json(ready(), listening_, draining_);
}

Result<std::string> ServeRuntime::explain(Gateway::ExplainRequest request) const {
  return io::run_on(base_->loops->at(0), [gateway = gateway_.get(), request = std::move(request)] {
    return gateway->explain(request);
  });
}

}  // namespace penstock::gateway
