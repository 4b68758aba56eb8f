#include "gateway/gateway.h"

#include <fmt/format.h>

#include <array>
#include <mutex>
#include <optional>
#include <random>

#include "assembly/bad_starts.h"
#include "assembly/http2_metrics.h"
#include "director/fields.h"
#include "gateway/core.h"
#include "gateway/own_paths.h"
#include "gateway/proxy.h"
#include "io/http_server.h"
#include "protocol/errors.h"
#include "telemetry/log.h"

namespace penstock::gateway {

namespace {

// The parsers a listener reads model names with, before a pool and its policy are known.
constexpr std::array<std::string_view, 3> kRoutingParsers{"openai-parser", "anthropic-parser",
                                                          "vllmhttp-parser"};

io::HttpServerOptions server_options(const config::ListenerSettings& settings) {
  io::HttpServerOptions options;
  options.max_header_bytes = static_cast<size_t>(settings.limits.header_bytes);
  options.max_connections = static_cast<uint32_t>(settings.limits.connections);
  options.max_body_bytes = static_cast<uint64_t>(settings.limits.body_bytes);
  options.header_timeout = settings.header_timeout;
  options.body_timeout = settings.body_timeout;
  options.body_total_timeout = settings.body_total_timeout;
  options.idle_timeout = settings.keep_alive;
  options.write_timeout = settings.write_timeout;
  options.http2.enabled = settings.http2;
  options.http2.max_concurrent_streams = static_cast<uint32_t>(settings.limits.streams_per_connection);
  options.http2.total_queue_bytes = static_cast<uint64_t>(settings.limits.queued_bytes);
  options.http2.max_connection_age = settings.connection_age;
  return options;
}

uint64_t seed_from_system() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32U) | device();
}

constexpr CollectedFamily kActive{"penstock_requests_active", telemetry::MetricType::kGauge, "",
                                  "Requests being served right now."};

void collect(const Core& core, std::span<const assembly::ListenerStats> listeners, telemetry::Writer& out) {
  out.header(kActive.name, kActive.help, kActive.type);
  out.sample(kActive.name, {}, static_cast<double>(core.active_requests.load(std::memory_order_relaxed)));
  std::vector<director::ServedPool> pools;
  for (const auto& pool : core.pools) pools.push_back({pool->config.pool, pool->config.members});
  director::collect_door(core.bodies, core.access_log, pools, core.clock.now(), out);
  assembly::collect_http2(listeners, out);
}

bool names_pool(const director::Pool& pool, std::string_view name) {
  return name == pool.name || name == pool.ns + "/" + pool.name;
}

}  // namespace

struct Gateway::Impl {
  struct Served {
    std::shared_ptr<ListenerState> state;
    std::unique_ptr<io::HttpServer> server;
  };

  Impl(io::LoopGroup& loops, telemetry::MetricRegistry& registry, const Clock& clock,
       director::AccessLog* log, GatewayOptions options)
      : core(loops, clock, log, options), metrics(registry), parts(loops.size()) {}

  Core core;
  telemetry::MetricRegistry& metrics;
  uint64_t collector = 0;
  std::vector<std::unique_ptr<LoopPart>> parts;
  std::mutex listeners_mutex;  // who renders metrics looks at them, too
  std::vector<Served> listeners;

  // What this loop's thread has of the gateway; nullptr outside its loops.
  LoopPart* part_here() {
    io::Loop* loop = io::Loop::current();
    if (loop == nullptr || loop->index() >= parts.size() || &core.loops.at(loop->index()) != loop)
      return nullptr;
    std::unique_ptr<LoopPart>& part = parts[loop->index()];
    if (part == nullptr) part = std::make_unique<LoopPart>(core, *loop);
    return part.get();
  }

  // What the codec refuses it has not read: neither the client's API nor an id of its own is known. Such a
  // head gets an id here and a line of the access log, as no exchange does it. (With 500 one did: its handler
  // ended without an answer.)
  io::HttpServerOptions::ErrorBody refusal(const io::HttpServerOptions& options, int status,
                                           std::string_view reason) {
    Error error{protocol::error_code_of(status), std::string(reason)};
    std::array<char, 36> id{};
    std::string_view request_id;
    LoopPart* part = status == 500 ? nullptr : part_here();
    if (part != nullptr) {
      if (status == 400) error.message = "the request can't be read as HTTP";
      if (status == 431) {
        error.message =
            fmt::format("the request head has more than {} bytes (limits.headerBytes) or {} fields",
                        options.max_header_bytes, options.max_headers);
      }
      director::make_request_id(part->random, id);
      request_id = {id.data(), id.size()};
      if (core.access_log != nullptr) {
        director::Outcome outcome;
        outcome.status = status;
        outcome.reason = status == 431 ? "limit_headers" : "bad_request";
        outcome.ended_at = core.clock.now();
        director::AccessLog::Line line;
        line.request_id = request_id;
        line.fallback = fallback_state_name(FallbackState::kNone);
        line.arrived_at = outcome.ended_at;
        line.outcome = &outcome;
        core.access_log->append(io::Loop::current()->index(), core.clock.wall_now(), line);
      }
    }
    return {"application/json", protocol::error_body(error, ApiKind::kNone, {}, request_id)};
  }

  std::vector<assembly::ListenerStats> listener_stats() {
    const std::lock_guard<std::mutex> lock(listeners_mutex);
    std::vector<assembly::ListenerStats> out;
    for (const Served& served : listeners)
      out.push_back({served.state->config.settings.name, served.server->stats()});
    return out;
  }
};

Gateway::Gateway(io::LoopGroup& loops, telemetry::MetricRegistry& metrics, const Clock& clock,
                 director::AccessLog* access_log, GatewayOptions options, std::vector<GatewayPool> pools,
                 std::vector<GatewayService> services) {
  if (options.seed == 0) options.seed = seed_from_system();
  impl_ = std::make_unique<Impl>(loops, metrics, clock, access_log, options);
  Core& core = impl_->core;
  for (GatewayPool& pool : pools) {
    core.pools.push_back(std::make_unique<PoolState>(std::move(pool)));
  }
  for (GatewayService& service : services) {
    core.services.push_back(std::make_unique<ServiceState>(std::move(service)));
  }
  core.client_disconnects = &metrics
                                 .counter({"penstock_client_disconnects_total",
                                           "Requests whose client left before the answer ended.",
                                           {}})
                                 .with({});

  std::vector<const protocol::RequestParser*> parsers;
  for (const PluginDescriptor& descriptor : protocol::parser_plugins()) {
    for (const std::string_view type : kRoutingParsers) {
      if (descriptor.type != type) continue;
      auto made = descriptor.create(PluginFactoryContext{type, nullptr, "", metrics, clock, loops.size()});
      if (!made.ok()) continue;
      (*made)->set_identity(std::string(type), std::string(type));
      if (const auto* parser = dynamic_cast<const protocol::RequestParser*>(made->get())) {
        parsers.push_back(parser);
        core.parser_plugins.push_back(*std::move(made));
      }
    }
  }
  core.parsers = std::make_unique<protocol::ParserTable>(parsers);

  impl_->collector = metrics.add_collector(
      [impl = impl_.get()](telemetry::Writer& out) { collect(impl->core, impl->listener_stats(), out); });
}

std::span<const CollectedFamily> collected_families() {
  static const std::vector<CollectedFamily> families = [] {
    std::vector<CollectedFamily> all{kActive};
    all.insert(all.end(), director::door_families().begin(), director::door_families().end());
    all.insert(all.end(), assembly::http2_families().begin(), assembly::http2_families().end());
    return all;
  }();
  return families;
}

Gateway::~Gateway() {
  if (impl_->collector != 0) impl_->metrics.remove_collector(impl_->collector);
}

Status Gateway::set_routes(const config::Manifests& manifests, std::optional<size_t> default_pool,
                           std::vector<std::string>& warnings) {
  std::vector<RouteTable::Target> pools;
  for (const auto& pool : impl_->core.pools)
    pools.push_back({pool->config.pool->ns, pool->config.pool->name});
  std::vector<RouteTable::Target> services;
  for (const auto& service : impl_->core.services) {
    services.push_back({service->config.ns, service->config.name});
  }
  auto table = RouteTable::compile(manifests, pools, services, default_pool, warnings);
  if (!table.ok()) return std::move(table).error();
  impl_->core.routes.publish(*std::move(table));
  return {};
}

void Gateway::set_upstream(size_t pool, std::shared_ptr<const UpstreamSettings> upstream) {
  impl_->core.pools[pool]->upstream.publish(std::move(upstream));
}

void Gateway::set_api_keys(std::string_view listener, std::shared_ptr<const config::ApiKeys> keys) {
  for (Impl::Served& served : impl_->listeners) {
    if (served.state->config.settings.name == listener) served.state->api_keys.publish(keys);
  }
}

Result<io::SocketAddress> Gateway::listen(GatewayListener listener) {
  auto state = std::make_shared<ListenerState>(std::move(listener));
  const config::ListenerSettings& settings = state->config.settings;
  auto& responses = impl_->metrics.counter({"penstock_http_responses_total",
                                            "Answers by listener and class of status; none: no answer.",
                                            {"listener", "class"}});
  constexpr std::array<std::string_view, 6> kClasses{"none", "1xx", "2xx", "3xx", "4xx", "5xx"};
  for (size_t i = 0; i < kClasses.size(); ++i) {
    state->responses[i] = &responses.with({settings.name, kClasses[i]});
  }
  io::HttpServerOptions options = server_options(settings);
  options.error_body = [impl = impl_.get(), limits = options](int status, std::string_view reason) {
    return impl->refusal(limits, status, reason);
  };
  options.on_bad_start = assembly::log_bad_starts();
  auto server = std::make_unique<io::HttpServer>(impl_->core.loops, std::move(options),
                                                 std::make_shared<Proxy>(state, impl_->core, impl_->parts));
  state->route_port =
      state->config.gateway_port != 0 ? state->config.gateway_port : state->config.address.port();
  auto bound = server->listen(state->config.address, state->config.tls, settings.name);
  if (!bound.ok()) {
    return Error{ErrorCode::kInvalidConfig, "listener " + settings.name + ": " + bound.error().message};
  }
  const std::lock_guard<std::mutex> lock(impl_->listeners_mutex);
  impl_->listeners.push_back({std::move(state), std::move(server)});
  return bound;
}

void Gateway::begin_drain() {
  for (Impl::Served& served : impl_->listeners) served.server->begin_drain();
}

void Gateway::stop(Duration drain) {
  begin_drain();
  impl_->core.stopping.store(true, std::memory_order_relaxed);
  const TimePoint until = impl_->core.clock.now() + drain;
  for (Impl::Served& served : impl_->listeners)
    served.server->stop(std::max<Duration>(Duration::zero(), until - impl_->core.clock.now()));
  const std::lock_guard<std::mutex> lock(impl_->listeners_mutex);
  impl_->listeners.clear();
}

Result<std::string> Gateway::explain(const ExplainRequest& request) {
  LoopPart* part = impl_->part_here();
  if (part == nullptr) return Error{ErrorCode::kInternal, "explain() was called outside the gateway's loops"};

  std::vector<HeaderField> fields;
  std::vector<io::HeaderField> route_fields;
  std::string_view authority;
  for (const auto& [name, value] : request.headers) {
    fields.push_back({name, value});
    route_fields.push_back({name, value});
    if (name == "host") authority = value;
  }
  // The body with the readable bytes a parser needs after it.
  std::string padded = request.body;
  padded.append(protocol::kBodyPadding, '\0');
  const protocol::PaddedBody body{padded.data(), request.body.size()};
  const std::string_view target = request.path;
  const size_t question = target.find('?');

  std::unique_ptr<ExchangeState> state = part->take();
  Result<std::string> result = Error{ErrorCode::kNotFound, "there are no routes yet"};
  size_t chosen = part->pools.size();
  if (!request.pool.empty()) {
    for (size_t i = 0; i < part->pools.size(); ++i) {
      if (names_pool(*impl_->core.pools[i]->config.pool, request.pool)) chosen = i;
    }
    if (chosen == part->pools.size()) {
      result = Error{ErrorCode::kNotFound, "there is no pool named " + request.pool};
    }
  } else if (const auto routes = part->routes.current(); routes != nullptr) {
    RouteQuery query;
    std::optional<Error> unreadable;
    query.port = impl_->listeners.empty() ? uint16_t{0} : impl_->listeners[0].state->route_port;
    query.host = authority;
    query.method = request.method;
    query.path = target.substr(0, question);
    query.query = question == std::string_view::npos ? std::string_view() : target.substr(question + 1);
    query.headers = route_fields;
    if (impl_->core.parsers->claims(query.path)) {
      auto parsed =
          impl_->core.parsers->find(query.path)->parse(query.path, fields, body, state->request.arena);
      if (parsed.ok()) {
        query.model = parsed->model;
      } else if (routes->needs_model(query.port, query.host)) {
        unreadable = protocol::unreadable_body(std::move(parsed).error(), fields);
      }
    }
    const RouteRule* rule = unreadable ? nullptr : routes->match(query);
    const bool models = lists_models("GET", query.path);
    const bool all_pools = models && rule == nullptr && routes->needs_model(query.port, query.host);
    const RouteBackend* backend = rule == nullptr ? nullptr : rule->choose(part->random);
    const bool to_pool = backend != nullptr && backend->kind == RouteBackend::Kind::kPool;
    if (unreadable) {
      result = *std::move(unreadable);
    } else if (all_pools || (to_pool && models)) {
      result = Error{ErrorCode::kNotFound, "no endpoint is picked for " + std::string(query.path) +
                                               ": a GET of it is answered with the models of " +
                                               (all_pools ? "all pools" : "the pool's endpoints")};
    } else if (to_pool && loads_adapters(query.path)) {
      result = Error{ErrorCode::kNotImplemented, std::string(kLoadsAdapters)};
    } else if (rule == nullptr) {
      result = Error{ErrorCode::kNotFound, no_route_text(query)};
    } else if (to_pool) {
      chosen = backend->index;
    } else if (backend != nullptr) {
      result = Error{ErrorCode::kNotFound, "the route leads to " + backend->name + ", which is no pool"};
    }
  }
  if (chosen < part->pools.size()) {
    director::RequestInput input;
    input.request_id = "explain";
    input.method = request.method;
    input.path = target.substr(0, question);
    input.headers = fields;
    input.body = body;
    input.received_at = impl_->core.clock.now();
    result = part->pools[chosen]->director.explain(state->request, input);
  }
  part->give_back(std::move(state));
  return result;
}

Gateway::Stats Gateway::stats() const {
  return {impl_->core.active_requests.load(), impl_->core.bodies.held(), impl_->core.requests.load()};
}

}  // namespace penstock::gateway
