#include "director/tracing.h"
#include "gateway/exchange.h"

#include "base/strings.h"
#include "director/fields.h"
#include "director/stored_response.h"
#include "director/tracing.h"
#include "gateway/identity.h"
#include "gateway/own_paths.h"
#include "protocol/errors.h"

namespace penstock::gateway {

using io::Task;

namespace {

bool is_websocket(const io::HeaderFields& fields) {
  const auto upgrade = fields.find("upgrade");
  return upgrade && io::list_has_token(*upgrade, "websocket");
}

}  // namespace

Exchange::Target Exchange::refuse(ErrorCode code, std::string message, std::string_view reason) {
  failure_ = Error{code, std::move(message)};
  refusal_ = reason;
  return Target::kRefused;
}

bool Exchange::admit() {
  const io::RequestHead& head = http_.request();
  if (core_.options.trust_request_id)
    request_id_ = director::usable_request_id(head.fields.get("x-request-id"));
  if (request_id_.empty()) {
    director::make_request_id(part_.random, state_.made_id);
    request_id_ = {state_.made_id.data(), state_.made_id.size()};
  }
  director::begin_trace(core_.options.tracer, state_.request, head.fields);

  const int64_t active = core_.active_requests.load(std::memory_order_relaxed);
  const int64_t here = listener_.streams.load(std::memory_order_relaxed);
  if (active > core_.options.streams || here > listener_.config.settings.limits.streams) {
    refuse(ErrorCode::kServiceUnavailable,
           "the gateway serves as many requests as its limit allows (streams)", "limit_streams");
    return false;
  }

  keys_ = listener_.api_keys.version() == 0 ? nullptr : listener_.api_keys.get();
  if (keys_ != nullptr) {
    Result<std::string_view> caller = identify(*keys_, head.fields);
    if (!caller.ok()) {
      failure_ = std::move(caller).error();
      refusal_ = "unauthorized";
      return false;
    }
    identity_ = *caller;
  }
  if (is_websocket(head.fields) || head.method == "CONNECT") {
    refuse(ErrorCode::kNotImplemented, "this gateway does not pass WebSocket upgrades and CONNECT",
           "not_supported");
    return false;
  }
  routes_ = part_.routes.current();
  if (routes_ == nullptr) {
    refuse(ErrorCode::kServiceUnavailable, "the gateway has no routes yet", "no_routes");
    return false;
  }
  return true;
}

bool Exchange::routed_by_model() const {
  const io::RequestHead& head = http_.request();
  return routes_->needs_model(listener_.route_port, head.authority) &&
         !lists_models(head.method, head.path) && http_.content_length() != uint64_t{0} &&
         core_.parsers->claims(head.path);
}

bool Exchange::read_model() {
  const std::string_view path = http_.request().path;
  convert_fields();
  const protocol::RequestParser& parser = *core_.parsers->find(path);
  auto parsed = parser.parse(path, state_.decision_fields, body_, state_.request.arena);
  if (!parsed.ok()) {
    failure_ = protocol::unreadable_body(std::move(parsed).error(), state_.decision_fields);
    refusal_ = "bad_request";
    return false;
  }
  parsed_ = *parsed;
  parsed_.model = state_.request.arena.copy(parsed_.model);  // outlives the body, for the access log
  parsed_by_ = parser.type();
  api_ = parsed_.api;
  return true;
}

Exchange::Target Exchange::find_target() {
  const io::RequestHead& head = http_.request();
  RouteQuery query;
  query.port = listener_.route_port;
  query.host = head.authority;
  query.method = head.method;
  query.path = head.path;
  query.query = head.query;
  query.headers = head.fields.all();
  query.model = parsed_.model;
  rule_ = routes_->match(query);
  if (rule_ == nullptr) {
    if (lists_models(head.method, head.path) && routes_->needs_model(query.port, query.host)) {
      all_pools_ = true;
      return Target::kModels;
    }
    if (routes_->needs_model(query.port, query.host) && pool_with_response()) return Target::kPool;
    return refuse(ErrorCode::kNotFound, no_route_text(query), "no_route");
  }
  const RouteBackend* backend = rule_->choose(part_.random);
  if (backend == nullptr) {
    return refuse(ErrorCode::kInternal, "route " + rule_->route_name + " has no backend", "invalid_backend");
  }
  backend_ = backend->index;
  if (backend->kind == RouteBackend::Kind::kInvalid) {
    return refuse(ErrorCode::kInternal,
                  "route " + rule_->route_name + " names a backend that is not known: " + backend->name,
                  "invalid_backend");
  }
  if (backend->kind == RouteBackend::Kind::kService) return Target::kService;
  if (lists_models(head.method, head.path)) return Target::kModels;
  if (loads_adapters(head.path)) {
    return refuse(ErrorCode::kNotImplemented, std::string(kLoadsAdapters), "not_supported");
  }
  const std::string_view type = head.fields.get("content-type");
  if (type.size() >= 10 && ascii_iequals(type.substr(0, 10), "multipart/")) {
    return refuse(ErrorCode::kNotImplemented, "this gateway does not route multipart bodies yet",
                  "not_supported");
  }
  return Target::kPool;
}

// A request for a stored response names no model that a route could match: the pool is the one that holds it.
bool Exchange::pool_with_response() {
  const io::RequestHead& head = http_.request();
  const std::string_view id = director::stored_response_id(head.method, head.path);
  if (id.empty()) return false;
  for (size_t i = 0; i < core_.pools.size(); ++i) {
    if (!core_.pools[i]->config.pool->responses.has(id)) continue;
    backend_ = i;
    return true;
  }
  return false;
}

void Exchange::convert_fields() {
  const io::HeaderFields& fields = http_.request().fields;
  if (!state_.decision_fields.empty()) return;
  for (const io::HeaderField& field : fields) state_.decision_fields.push_back({field.name, field.value});
}

Task<bool> Exchange::read_body() {
  if (body_read_) co_return true;
  const auto limit = static_cast<size_t>(listener_.config.settings.limits.body_bytes);
  const std::optional<uint64_t> declared = http_.content_length();
  if (declared && *declared == 0) {
    static constexpr std::array<char, protocol::kBodyPadding> kNothing{};
    body_ = {kNothing.data(), 0};
    body_read_ = true;
    co_return true;
  }
  if (declared && *declared > limit) {
    failure_ = Error{ErrorCode::kPayloadTooLarge, "the request body has " + std::to_string(*declared) +
                                                      " bytes, the limit is " + std::to_string(limit) +
                                                      " (limits.bodyBytes)"};
    co_await fail("limit_body");
    co_return false;
  }
  Result<std::span<char>> read = co_await http_.read_all_within(limit, intake_);
  if (!read.ok() && read.error().code == ErrorCode::kResourceExhausted) {
    failure_ = Error{ErrorCode::kServiceUnavailable,
                     "the gateway holds as many bytes of request bodies as its limit allows (" +
                         std::to_string(core_.bodies.limit()) + ", bufferedBytes)"};
    co_await fail("limit_buffered");
    co_return false;
  }
  if (!read.ok()) {
    failure_ = std::move(read).error();
    co_await fail_waiting("request_body");
    co_return false;
  }
  body_ = {read->data(), read->size()};
  body_read_ = true;
  co_return true;
}

void Exchange::begin_decision(PoolPart& pool) {
  convert_fields();
  upstream_ = pool.upstream.current();
  pool_ = pool.shared.config.pool;
  state_.observer.start(*pool_, state_.request, core_.access_log, part_.loop.index());
}

director::RequestInput Exchange::decision_input() const {
  const io::RequestHead& head = http_.request();
  director::RequestInput input;
  input.request_id = request_id_;
  input.method = head.method;
  input.path = head.path;
  input.headers = state_.decision_fields;
  input.body = body_;
  input.identity = identity_;
  input.trust_fairness_header = listener_.config.settings.trust_fairness_header;
  input.received_at = arrived_at_;
  if (!parsed_by_.empty()) {
    input.parsed = &parsed_;
    input.parsed_by = parsed_by_;
  }
  return input;
}

bool Exchange::decide(PoolPart& pool) {
  Status decided = pool.director.decide(state_.request, decision_input());
  api_ = state_.request.inference.api;
  if (decided.ok()) return true;
  failure_ = std::move(decided).error();
  refusal_ = "rejected";
  return false;
}

}  // namespace penstock::gateway
