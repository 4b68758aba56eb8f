#include "gateway/proxy.h"

#include <algorithm>

#include "base/strings.h"
#include "director/fields.h"
#include "director/passive_health.h"
#include "gateway/framing.h"
#include "gateway/identity.h"
#include "protocol/errors.h"
#include "telemetry/log.h"

namespace penstock::gateway {

namespace {

using io::BodyPiece;
using io::HttpExchange;
using io::Task;

constexpr size_t kMaxExcluded = 8;

// What a body holds while it is read, against the gateway's budget.
class BodyIntake final : public io::BodyBudget {
 public:
  explicit BodyIntake(director::BodyBudget& budget) : share_(budget) {}
  bool hold(uint64_t bytes) override { return share_.resize(static_cast<int64_t>(bytes)); }

 private:
  director::BodyShare share_;
};

bool is_websocket(const io::HeaderFields& fields) {
  const auto upgrade = fields.find("upgrade");
  return upgrade && io::list_has_token(*upgrade, "websocket");
}

bool loads_adapters(std::string_view path) {
  return path.ends_with("/load_lora_adapter") || path.ends_with("/unload_lora_adapter") ||
         path == "/adapters" || path.starts_with("/adapters/");
}

bool lists_models(const io::RequestHead& head) {
  return (head.method == "GET" || head.method == "HEAD") &&
         (head.path == "/v1/models" || head.path.starts_with("/v1/models/"));
}

class Exchange {
 public:
  Exchange(Core& core, LoopPart& part, ListenerState& listener, HttpExchange& http, ExchangeState& state)
      : core_(core), part_(part), listener_(listener), http_(http), state_(state) {
    now_ = core.clock.now();
    arrived_at_ = now_;
    state_.decision_fields.clear();
    state_.total_expired = false;
  }
  // A handler that is torn down while it waits still gives back what it counted.
  ~Exchange() { end(0, "aborted", nullptr); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  Task<void> run();

 private:
  // Where a request ends: what the accounts say.
  void end(int status, std::string_view reason, const Error* error);
  // Answers with `failure_` in the client's shape, or breaks a response off that has begun. The error is a
  // member, and set in a statement of its own, because GCC 12 destroys aggregate temporaries of an
  // expression that waits twice.
  Task<void> fail(std::string_view reason);
  // The same after a wait that failed: the client may be gone or the time may be up.
  Task<void> fail_waiting(std::string_view reason);
  Task<void> respond_json(int status, std::string_view body);

  // Logic is in plain functions, waiting in few coroutines: a request that waits for its engine keeps the
  // frames it is nested in, and with many in flight those are what misses the cache. The plain ones set
  // `failure_` and `refusal_` when the request ends here.
  bool admit();
  bool routed_by_model() const;
  bool read_model();
  enum class Target : uint8_t { kRefused, kPool, kService, kModels };
  Target find_target();
  bool decide(PoolPart& pool);
  Target refuse(ErrorCode code, std::string message, std::string_view reason);

  Task<void> serve_pool_models();
  Task<void> serve_service(ServiceState& service);

  // One attempt at an endpoint: sets `call_`, and `answer_` or `failure_`.
  Task<void> attempt(PoolPart& pool, const Endpoint& endpoint);
  enum class Next : uint8_t { kAnswer, kAgain, kFail };
  Next after_attempt(PoolPart& pool, const Endpoint& endpoint);
  bool choose_another(PoolPart& pool, std::string_view reason);
  Task<void> stream_back(PoolPart& pool);
  Task<void> stream_service();
  // Reads the body into memory within the limits; false: the exchange is over.
  Task<bool> read_body();

  // `otherwise` holds where the rule sets no timeout; zero: none.
  void start_deadline(Duration otherwise);
  static void total_expired(void* self);
  void convert_fields();
  std::string_view endpoint_header() const {
    return core_.options.tell_endpoint ? state_.request.record.winner_host_port : std::string_view();
  }
  bool client_gone() const { return http_.cancel_token().cancelled(); }
  // Why an exchange ended whose token fired or whose client takes nothing any more.
  std::string_view gone_reason() const {
    return core_.stopping.load(std::memory_order_relaxed) ? "shutdown" : "client_disconnect";
  }

  Core& core_;
  LoopPart& part_;
  ListenerState& listener_;
  HttpExchange& http_;
  ExchangeState& state_;
  BodyIntake intake_{core_.bodies};
  TimePoint now_;
  TimePoint arrived_at_;
  std::string_view request_id_;
  std::string_view identity_;
  std::shared_ptr<const config::ApiKeys> keys_;
  std::shared_ptr<const RouteTable> routes_;  // keeps `rule_`
  const RouteRule* rule_ = nullptr;
  size_t backend_ = 0;      // index of the pool or service
  bool all_pools_ = false;  // models of every pool are asked for
  std::shared_ptr<const UpstreamSettings> upstream_;
  director::Pool* pool_ = nullptr;  // set: the observer was started and ends the accounts
  protocol::PaddedBody body_;
  bool body_read_ = false;
  protocol::ParsedBody parsed_;  // set with `parsed_by_`, the parser's type
  std::string_view parsed_by_;
  ApiKind api_ = ApiKind::kNone;
  Error failure_;
  std::string_view refusal_;  // a literal: why the request ends, for the accounts
  io::HttpCall call_;
  const io::ResponseHead* answer_ = nullptr;
  bool sent_ = false;  // the request may have reached the engine
  uint32_t attempts_ = 0;
  uint64_t own_bytes_ = 0;  // of a body that no observer counts: the gateway's own or a service's
  std::array<EndpointSlot, kMaxExcluded> excluded_{};
  size_t excluded_count_ = 0;
  bool ended_ = false;
};

Task<void> Exchange::run() {
  if (!admit()) {
    co_await fail(refusal_);
    co_return;
  }
  if (routed_by_model()) {
    if (!co_await read_body()) co_return;
    if (!read_model()) {
      co_await fail(refusal_);
      co_return;
    }
  }
  switch (find_target()) {
    case Target::kRefused:
      co_await fail(refusal_);
      co_return;
    case Target::kModels:
      co_await serve_pool_models();
      co_return;
    case Target::kService:
      co_await serve_service(*core_.services[backend_]);
      co_return;
    case Target::kPool:
      break;
  }
  PoolPart& pool = *part_.pools[backend_];
  if (!co_await read_body()) co_return;
  if (!decide(pool)) {
    co_await fail(refusal_);
    co_return;
  }
  start_deadline(upstream_->deadlines.total);
  Next next = Next::kAgain;
  while (next == Next::kAgain) {
    const std::shared_ptr<const Endpoint> endpoint = state_.request.endpoint;
    co_await attempt(pool, *endpoint);
    next = after_attempt(pool, *endpoint);
  }
  if (next == Next::kFail) {
    co_await fail_waiting(refusal_);
  } else {
    co_await stream_back(pool);
  }
  state_.total_timer.disarm();
}

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
  return routes_->needs_model(listener_.route_port, head.authority) && !lists_models(head) &&
         http_.content_length() != uint64_t{0} && core_.parsers->claims(head.path);
}

bool Exchange::read_model() {
  const std::string_view path = http_.request().path;
  convert_fields();
  const protocol::RequestParser& parser = *core_.parsers->find(path);
  auto parsed = parser.parse(path, state_.decision_fields, body_, state_.request.arena);
  if (!parsed.ok()) {
    failure_ = std::move(parsed).error();
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
    if (lists_models(head) && routes_->needs_model(query.port, query.host)) {
      all_pools_ = true;
      return Target::kModels;
    }
    if (!query.model.empty()) {
      return refuse(ErrorCode::kNotFound,
                    "no route matches the request: the model `" + std::string(query.model) +
                        "` does not exist behind " + std::string(head.path),
                    "no_route");
    }
    return refuse(ErrorCode::kNotFound,
                  "no route matches " + std::string(head.method) + " " + std::string(head.path), "no_route");
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
  if (lists_models(head)) return Target::kModels;
  if (loads_adapters(head.path)) {
    return refuse(ErrorCode::kNotImplemented,
                  "adapters are loaded and unloaded per replica; ask the engines directly", "not_supported");
  }
  const std::string_view type = head.fields.get("content-type");
  if (type.size() >= 10 && ascii_iequals(type.substr(0, 10), "multipart/")) {
    return refuse(ErrorCode::kNotImplemented, "this gateway does not route multipart bodies yet",
                  "not_supported");
  }
  return Target::kPool;
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

bool Exchange::decide(PoolPart& pool) {
  const io::RequestHead& head = http_.request();
  convert_fields();
  upstream_ = pool.upstream.current();
  pool_ = pool.shared.config.pool;
  state_.observer.start(*pool_, state_.request, core_.access_log, part_.loop.index());
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
  Status decided = pool.director.decide(state_.request, input);
  api_ = state_.request.inference.api;
  if (decided.ok()) return true;
  failure_ = std::move(decided).error();
  refusal_ = "rejected";
  return false;
}

void Exchange::start_deadline(Duration otherwise) {
  Duration total = rule_->request_timeout.value_or(otherwise);
  const Duration backend = rule_->backend_timeout.value_or(Duration::zero());
  if (backend > Duration::zero() && (total == Duration::zero() || backend < total)) total = backend;
  state_.total_expired = false;
  state_.cancel.reset();
  state_.cancel.follow(http_.cancel_token());
  if (total > Duration::zero()) state_.total_timer.arm_coarse(total, &Exchange::total_expired, &state_);
}

void Exchange::total_expired(void* context) {
  auto* state = static_cast<ExchangeState*>(context);
  state->total_expired = true;
  state->cancel.cancel();
}

Task<void> Exchange::attempt(PoolPart& pool, const Endpoint& endpoint) {
  ++attempts_;
  const UpstreamSettings& settings = *upstream_;
  const io::RequestHead& head = http_.request();
  const director::Request& request = state_.request;
  RequestRules rules;
  rules.drop_credentials = keys_ != nullptr || !settings.forward_client_authorization;
  rules.authorization = settings.authorization;
  rules.drop_accept_encoding = request.restore_model;
  rules.request_id = request_id_;
  state_.peer_ip = part_.peer_ip(http_.connection());
  rules.peer_ip = state_.peer_ip;
  rules.scheme = http_.connection().tls ? "https" : "http";
  rules.host = endpoint.host_port;
  state_.fields.clear();
  request_fields(head, rules, state_.scratch, state_.fields);
  apply_edits(request.request_edits, state_.fields);
  state_.pieces.clear();
  uint64_t length = body_.size;
  if (!request.rewritten.pieces.empty()) {
    length = request.rewritten.size;
    for (const std::string_view piece : request.rewritten.pieces) {
      if (!piece.empty()) state_.pieces.push_back(piece);
    }
  } else if (length != 0) {
    state_.pieces.push_back(body_.view());
  }

  io::HttpRequest message;
  message.method = head.method;
  message.target = head.target;
  message.fields = state_.fields;
  const bool bodyless = length == 0 && (head.method == "GET" || head.method == "HEAD");
  message.framing = bodyless ? io::BodyFraming::none() : io::BodyFraming::of_length(length);
  message.body = state_.pieces;
  io::HttpCallOptions options;
  options.connect_timeout = settings.deadlines.connect;
  options.first_byte_timeout = settings.deadlines.first_byte;
  options.idle_timeout = settings.deadlines.idle;
  options.token = state_.cancel.token();

  for (;;) {
    answer_ = nullptr;
    sent_ = false;
    Result<io::HttpCall> started =
        co_await pool.client.start(pool.destination(endpoint, upstream_), message, options);
    if (!started.ok()) {
      failure_ = std::move(started).error();
      co_return;
    }
    call_ = *std::move(started);
    sent_ = true;
    Result<const io::ResponseHead*> answer = co_await call_.response();
    if (answer.ok()) {
      answer_ = *answer;
      co_return;
    }
    failure_ = std::move(answer).error();
    if (!call_.failed_stale() || options.fresh_connection) co_return;
    // The engine closed the idle connection as the request came: once more, on a fresh one.
    options.fresh_connection = true;
    call_.close();
    pool_->metrics.retries.with({pool_->name, "stale_connection"}).add();
  }
}

bool Exchange::choose_another(PoolPart& pool, std::string_view reason) {
  if (attempts_ >= upstream_->attempts || excluded_count_ == kMaxExcluded) return false;
  if (client_gone() || state_.total_expired) return false;
  excluded_[excluded_count_++] = state_.request.endpoint->slot;
  const std::string_view winner = state_.request.record.winner;
  const std::string_view address = state_.request.record.winner_host_port;
  if (!pool.director.decide_again(state_.request, std::span(excluded_).first(excluded_count_)).ok()) {
    // What the client gets is still the failed endpoint's answer.
    state_.request.record.winner = winner;
    state_.request.record.winner_host_port = address;
    return false;
  }
  pool_->metrics.retries.with({pool_->name, reason}).add();
  return true;
}

Exchange::Next Exchange::after_attempt(PoolPart& pool, const Endpoint& endpoint) {
  if (answer_ == nullptr) {
    const bool cancelled = client_gone() || state_.total_expired;
    if (!cancelled && director::note_failure(endpoint, core_.clock.now(), sent_ ? 2 : 0)) {
      pool.shared.ejections->add();
    }
    call_.close();
    // Only what certainly never reached an engine may go to another one.
    if (!sent_ && !cancelled && choose_another(pool, "connect")) return Next::kAgain;
    refusal_ = !sent_                                        ? "connect"
               : failure_.code == ErrorCode::kGatewayTimeout ? "first_byte_timeout"
                                                             : "engine_error";
    return Next::kFail;
  }
  if (answer_->status == 503) {
    if (director::note_failure(endpoint, core_.clock.now(), 2)) pool.shared.ejections->add();
    if (choose_another(pool, "status_503")) {
      call_.close();
      return Next::kAgain;
    }
  } else if (answer_->status < 500) {
    director::note_success(endpoint);
  }
  return Next::kAnswer;
}

Task<void> Exchange::stream_back(PoolPart& pool) {
  director::Observer& observer = state_.observer;
  const io::ResponseHead& head = *answer_;
  observer.head(head.status, head.fields.get("content-type"), head.fields.get("content-encoding"),
                core_.clock.now(), {});
  const bool changed = observer.rewrites();
  const int status = head.status;
  state_.fields.clear();
  response_fields(head, {request_id_, endpoint_header(), changed}, state_.fields);
  std::vector<HeaderEdits::Edit> edits;
  observer.append_header_edits(edits);
  apply_edits(edits, state_.fields);
  state_.hold.reset();
  Duration reading{0};
  Status wrote;
  // A stream's head must not wait for its first event, which may be a prefill away. Any other answer's goes
  // with its first bytes: an engine that dies before them is a 502, not a broken 200.
  const bool head_first = observer.is_event_stream();
  for (;;) {
    Result<BodyPiece> piece = BodyPiece{};
    if (!head_first || http_.head_written()) {
      piece = co_await call_.read();
      now_ = core_.clock.now();
    }
    if (piece.ok() && !http_.head_written()) {
      wrote =
          http_.write_head(status, state_.fields,
                           response_framing(http_.request().method, status, call_.content_length(), changed));
      if (!wrote.ok()) {
        failure_ = std::move(wrote).error();
        co_await fail("engine_error");
        co_return;
      }
      if (head_first) {
        wrote = co_await http_.flush();
        if (!wrote.ok()) break;
        continue;
      }
    }
    if (!piece.ok() && !http_.head_written()) {
      failure_ = std::move(piece).error();
      const bool cancelled = client_gone() || state_.total_expired;
      if (!cancelled && director::note_failure(*state_.request.endpoint, now_, 2)) {
        pool.shared.ejections->add();
      }
      call_.close();
      co_await fail_waiting(failure_.code == ErrorCode::kGatewayTimeout ? "idle_timeout" : "engine_died");
      co_return;
    }
    if (!piece.ok()) {
      call_.close();
      if (client_gone()) {
        end(status, gone_reason(), nullptr);
        co_return;
      }
      Error error = std::move(piece).error();
      if (state_.total_expired) {
        error = Error{ErrorCode::kGatewayTimeout, "the answer did not end before its deadline"};
      }
      std::string_view reason = "engine_died";
      if (state_.total_expired) {
        reason = "deadline";
      } else if (error.code == ErrorCode::kGatewayTimeout) {
        reason = "idle_timeout";
      }
      if (observer.takes_events()) {
        // What the reader and the hold still have is the beginning of a line that will not end.
        state_.pieces.clear();
        observer.body_end(state_.pieces);
        state_.pieces.clear();
        const std::string event = protocol::error_event(error, api_, http_.request().path, request_id_);
        const std::string_view before = state_.hold.before_error();
        if (!before.empty()) state_.pieces.push_back(before);
        state_.pieces.push_back(event);
        own_bytes_ = before.size() + event.size();
        (void)co_await http_.finish(state_.pieces);
      } else {
        http_.abort();
      }
      end(status, reason, &error);
      co_return;
    }
    state_.pieces.clear();
    observer.piece(piece->data, now_, state_.pieces);
    if (!observer.is_event_stream()) reading += core_.clock.now() - now_;
    if (piece->last) {
      observer.body_end(state_.pieces);
      state_.hold.end(state_.pieces);
      wrote = co_await http_.finish(state_.pieces, call_.trailers().all());
      if (!wrote.ok()) break;
      call_.close();
      if (!observer.is_event_stream()) pool_->metrics.response_seconds.observe(to_seconds(reading));
      end(status, "ok", nullptr);
      co_return;
    }
    if (observer.takes_events()) state_.hold.pass(state_.pieces);
    if (state_.pieces.empty()) continue;
    wrote = co_await http_.write(state_.pieces);
    if (!wrote.ok()) break;
  }
  // The client takes nothing any more.
  call_.close();
  http_.abort();
  end(status, gone_reason(), nullptr);
}

Task<void> Exchange::serve_service(ServiceState& service) {
  const io::RequestHead& head = http_.request();
  if (service.config.targets.empty()) {
    failure_ = Error{ErrorCode::kServiceUnavailable, "service " + service.config.name + " has no targets"};
    co_await fail("no_endpoints");
    co_return;
  }
  const io::HttpDestination& target =
      service.config
          .targets[service.next.fetch_add(1, std::memory_order_relaxed) % service.config.targets.size()];
  start_deadline(Duration::zero());
  const std::string host = io::join_host_port(target.host, target.port);
  RequestRules rules;
  rules.to_engine = false;
  rules.drop_credentials = keys_ != nullptr;
  rules.request_id = request_id_;
  state_.peer_ip = part_.peer_ip(http_.connection());
  rules.peer_ip = state_.peer_ip;
  rules.scheme = http_.connection().tls ? "https" : "http";
  rules.host = host;
  state_.fields.clear();
  request_fields(head, rules, state_.scratch, state_.fields);

  io::HttpRequest message;
  message.method = head.method;
  message.target = head.target;
  message.fields = state_.fields;
  const std::optional<uint64_t> length = http_.content_length();
  const bool streams = !body_read_ && length != uint64_t{0};
  std::array<std::string_view, 1> whole{body_.view()};
  if (body_read_) {
    message.framing = io::BodyFraming::of_length(body_.size);
    if (body_.size != 0) message.body = whole;
  } else if (streams) {
    message.framing = length ? io::BodyFraming::of_length(*length) : io::BodyFraming::chunked();
    message.complete = false;
  } else if (head.method != "GET" && head.method != "HEAD") {
    message.framing = io::BodyFraming::of_length(0);
  }
  io::HttpCallOptions options;
  options.token = state_.cancel.token();
  ++attempts_;
  Result<io::HttpCall> started = co_await part_.service_client.start(target, message, options);
  if (!started.ok()) {
    failure_ = std::move(started).error();
    co_await fail_waiting("connect");
    co_return;
  }
  call_ = *std::move(started);
  bool sending = streams;
  while (sending) {
    Result<BodyPiece> piece = co_await http_.read();
    if (!piece.ok()) {
      failure_ = std::move(piece).error();
      co_await fail_waiting("request_body");
      co_return;
    }
    const std::array<std::string_view, 1> data{piece->data};
    const std::span<const std::string_view> pieces(data.data(), piece->data.empty() ? 0 : 1);
    Result<io::HttpCall::Sent> sent = io::HttpCall::Sent::kAll;
    if (piece->last) {
      sent = co_await call_.finish(pieces);
    } else {
      sent = co_await call_.write(pieces);
    }
    if (!sent.ok()) break;  // the answer may have been sent all the same
    sending = !piece->last && *sent != io::HttpCall::Sent::kAnswered;
  }
  Result<const io::ResponseHead*> answer = co_await call_.response();
  if (!answer.ok()) {
    failure_ = std::move(answer).error();
    co_await fail_waiting("service_error");
    co_return;
  }
  answer_ = *answer;
  co_await stream_service();
  state_.total_timer.disarm();
}

Task<void> Exchange::stream_service() {
  const io::ResponseHead& head = *answer_;
  const int status = head.status;
  state_.fields.clear();
  response_fields(head, {request_id_, {}, false}, state_.fields);
  Status wrote = http_.write_head(
      status, state_.fields, response_framing(http_.request().method, status, call_.content_length(), false));
  if (!wrote.ok()) {
    failure_ = std::move(wrote).error();
    co_await fail("service_error");
    co_return;
  }
  for (;;) {
    Result<BodyPiece> piece = co_await call_.read();
    if (!piece.ok()) {
      http_.abort();
      const Error error = std::move(piece).error();
      end(status, client_gone() ? gone_reason() : "service_error", client_gone() ? nullptr : &error);
      co_return;
    }
    const std::array<std::string_view, 1> data{piece->data};
    const std::span<const std::string_view> pieces(data.data(), piece->data.empty() ? 0 : 1);
    own_bytes_ += piece->data.size();
    if (piece->last) {
      wrote = co_await http_.finish(pieces, call_.trailers().all());
      call_.close();
      end(status, wrote.ok() ? "ok" : gone_reason(), nullptr);
      co_return;
    }
    wrote = co_await http_.write(pieces);
    if (!wrote.ok()) {
      http_.abort();
      end(status, gone_reason(), nullptr);
      co_return;
    }
  }
}

Task<void> Exchange::serve_pool_models() {
  ModelList merged;
  std::optional<Error> failure;
  bool any = false;
  for (size_t i = 0; i < part_.pools.size(); ++i) {
    if (!all_pools_ && i != backend_) continue;
    PoolPart& pool = *part_.pools[i];
    const director::Picture& picture = pool.director.picture();
    const std::shared_ptr<const UpstreamSettings> upstream = pool.upstream.current();
    std::vector<ModelsCache::Source> sources;
    for (const auto& endpoint : picture.pool->endpoints) {
      sources.push_back({pool.destination(*endpoint, upstream), upstream->authorization});
    }
    auto list = co_await pool.models.get(std::move(sources), picture.pool->epoch, core_.clock.now());
    if (list.ok()) {
      merged.merge(**list);
      any = true;
    } else {
      failure = std::move(list).error();
    }
  }
  if (!any) {
    failure_ =
        failure ? *std::move(failure) : Error{ErrorCode::kServiceUnavailable, "the gateway has no pools"};
    co_await fail_waiting("models");
    co_return;
  }
  constexpr std::string_view kList = "/v1/models";
  const std::string_view path = http_.request().path;
  if (path.size() > kList.size() + 1) {
    const std::string_view id = path.substr(kList.size() + 1);
    const std::string* entry = merged.find(id);
    if (entry == nullptr) {
      failure_ = Error{ErrorCode::kNotFound, "The model `" + std::string(id) + "` does not exist."};
      co_await fail("no_model");
      co_return;
    }
    co_await respond_json(200, *entry);
  } else {
    const std::string list = merged.to_json();
    co_await respond_json(200, list);
  }
}

Task<void> Exchange::respond_json(int status, std::string_view body) {
  const std::array<io::HeaderField, 1> fields{{{"x-request-id", request_id_}}};
  own_bytes_ = http_.request().method == "HEAD" ? 0 : body.size();
  const Status wrote = co_await http_.respond(status, "application/json", body, fields);
  end(status, wrote.ok() ? "ok" : gone_reason(), nullptr);
}

Task<void> Exchange::fail_waiting(std::string_view reason) {
  Error& error = failure_;
  if (state_.total_expired && !http_.head_written()) {
    failure_ = Error{ErrorCode::kGatewayTimeout, "the request did not end before its deadline"};
    co_await fail("deadline");
    co_return;
  }
  if (client_gone() || error.code == ErrorCode::kClientClosed) {
    end(499, gone_reason(), nullptr);
    http_.abort();
    co_return;
  }
  // Nobody but us could have cancelled: the listener is being stopped.
  if (error.code == ErrorCode::kCancelled) {
    error = Error{ErrorCode::kServiceUnavailable, "the gateway is shutting down", "rejected-shutting-down"};
  } else if (error.code == ErrorCode::kIo) {
    error.code = ErrorCode::kBadGateway;
  } else if (error.code == ErrorCode::kResourceExhausted) {
    error.code = ErrorCode::kServiceUnavailable;
  }
  co_await fail(reason);
}

Task<void> Exchange::fail(std::string_view reason) {
  const Error& error = failure_;
  if (http_.head_written()) {
    http_.abort();
    end(0, reason, &error);
    co_return;
  }
  const std::string_view path = http_.request().path;
  const int status = protocol::error_status(error.code).http_status;
  const std::string body = protocol::error_body(error, api_, path, request_id_);
  std::array<io::HeaderField, 3> fields;
  size_t count = 0;
  fields[count++] = {"x-request-id", request_id_};
  if (!error.dropped_reason.empty()) {
    fields[count++] = {"x-llm-d-request-dropped-reason", error.dropped_reason};
  }
  if (error.code == ErrorCode::kUnauthorized) fields[count++] = {"www-authenticate", "Bearer"};
  own_bytes_ = http_.request().method == "HEAD" ? 0 : body.size();
  (void)co_await http_.respond(status, "application/json", body, std::span(fields).first(count));
  end(status, reason, &error);
}

void Exchange::end(int status, std::string_view reason, const Error* error) {
  if (ended_) return;
  ended_ = true;
  now_ = core_.clock.now();
  const auto shown = static_cast<size_t>(status / 100);
  listener_.responses[shown < listener_.responses.size() ? shown : 0]->add();
  if (reason == "client_disconnect") core_.client_disconnects->add();
  const bool logs = core_.access_log != nullptr;
  if (pool_ != nullptr) {
    director::Observer::End how;
    how.status = status;
    how.reason = reason;
    how.error = error;
    how.attempts = attempts_;
    how.own_bytes = own_bytes_;
    if (logs) how.wall = core_.clock.wall_now();
    state_.observer.end(how, now_);
    return;
  }
  if (!logs) return;
  director::Outcome outcome;
  outcome.status = status;
  outcome.reason = reason;
  outcome.attempts = attempts_;
  outcome.ended_at = now_;
  director::AccessLog::Line line;
  line.request_id = request_id_;
  line.identity = identity_;
  line.method = http_.request().method;
  line.path = http_.request().path;
  line.model = parsed_.model;
  line.bytes_out = own_bytes_;
  line.fallback = fallback_state_name(FallbackState::kNone);
  line.arrived_at = arrived_at_;
  line.outcome = &outcome;
  core_.access_log->append(part_.loop.index(), core_.clock.wall_now(), line);
}

// Counts a request as long as it lives, and lends it the loop's memory.
class Admission {
 public:
  Admission(Core& core, ListenerState& listener, LoopPart& part)
      : core_(core), listener_(listener), part_(part), state_(part.take()) {
    core_.active_requests.fetch_add(1, std::memory_order_relaxed);
    core_.requests.fetch_add(1, std::memory_order_relaxed);
    listener_.streams.fetch_add(1, std::memory_order_relaxed);
  }
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;
  ~Admission() {
    part_.give_back(std::move(state_));
    core_.active_requests.fetch_sub(1, std::memory_order_relaxed);
    listener_.streams.fetch_sub(1, std::memory_order_relaxed);
  }
  ExchangeState& state() { return *state_; }

 private:
  Core& core_;
  ListenerState& listener_;
  LoopPart& part_;
  std::unique_ptr<ExchangeState> state_;
};

}  // namespace

Task<void> Proxy::handle(HttpExchange& http) {
  std::unique_ptr<LoopPart>& part = parts_[http.loop().index()];
  if (part == nullptr) part = std::make_unique<LoopPart>(core_, http.loop());
  Admission admission(core_, *listener_, *part);
  Exchange exchange(core_, *part, *listener_, http, admission.state());
  co_await exchange.run();
}

}  // namespace penstock::gateway
