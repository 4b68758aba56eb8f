#include "simulator/engine_server.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ctime>

#include "base/hash.h"
#include "base/strings.h"
#include "simulator/tokenizer.h"

namespace penstock::simulator {
namespace {

using io::HeaderField;
using io::HttpExchange;
using io::Task;

constexpr std::string_view kJson = "application/json";
constexpr size_t kMaxWriteBytes = 64 * 1024;  // rendered before a write is awaited
constexpr size_t kMaxSequences = 4096;        // of one request
constexpr uint32_t kStepsAtOnce = 256;        // of one turn of the loop, where steps take no time
constexpr size_t kMaxSeenConnections = 1 << 16;
constexpr uint32_t kEmbeddingSize = 384;

std::string unix_seconds_text(int64_t seconds) {
  return std::to_string(seconds);
}

double unix_seconds(WallTime time) {
  return to_seconds(time.time_since_epoch());
}

}  // namespace

enum class RouteKind : uint8_t {
  kInference,
  kBody,  // other routes with a JSON body
  kModels,
  kHealth,
  kVersion,
  kMetrics,
  kManagement,
  kControl,
};

struct EngineServer::Route {
  std::string_view path;
  RouteKind kind;
  EngineApi api = EngineApi::kChat;
  bool get = false;
  bool post = false;
};

const EngineServer::Route* EngineServer::find_route(std::string_view path) {
  static constexpr std::array<Route, 29> kRoutes = {{
      {"/v1/chat/completions", RouteKind::kInference, EngineApi::kChat, false, true},
      {"/v1/completions", RouteKind::kInference, EngineApi::kCompletions, false, true},
      {"/v1/messages", RouteKind::kInference, EngineApi::kMessages, false, true},
      {"/v1/responses", RouteKind::kInference, EngineApi::kResponses, false, true},
      {"/inference/v1/generate", RouteKind::kInference, EngineApi::kGenerate, false, true},
      {"/v1/embeddings", RouteKind::kInference, EngineApi::kEmbeddings, false, true},
      {"/v1/messages/count_tokens", RouteKind::kBody, EngineApi::kCountTokens, false, true},
      {"/tokenize", RouteKind::kBody, EngineApi::kTokenize, false, true},
      {"/detokenize", RouteKind::kBody, EngineApi::kDetokenize, false, true},
      {"/v1/load_lora_adapter", RouteKind::kBody, EngineApi::kLoadAdapter, false, true},
      {"/v1/unload_lora_adapter", RouteKind::kBody, EngineApi::kUnloadAdapter, false, true},
      {"/v1/models", RouteKind::kModels, EngineApi::kChat, true, false},
      {"/health", RouteKind::kHealth, EngineApi::kChat, true, false},
      {"/ping", RouteKind::kHealth, EngineApi::kChat, true, true},
      {"/version", RouteKind::kVersion, EngineApi::kChat, true, false},
      {"/metrics", RouteKind::kMetrics, EngineApi::kChat, true, false},
      {"/metrics/", RouteKind::kMetrics, EngineApi::kChat, true, false},
      {"/prometheus/metrics", RouteKind::kMetrics, EngineApi::kChat, true, false},
      {"/load", RouteKind::kManagement, EngineApi::kChat, true, false},
      {"/pause", RouteKind::kManagement, EngineApi::kChat, false, true},
      {"/resume", RouteKind::kManagement, EngineApi::kChat, false, true},
      {"/is_paused", RouteKind::kManagement, EngineApi::kChat, true, false},
      {"/sleep", RouteKind::kManagement, EngineApi::kChat, false, true},
      {"/wake_up", RouteKind::kManagement, EngineApi::kChat, false, true},
      {"/is_sleeping", RouteKind::kManagement, EngineApi::kChat, true, false},
      {"/reset_prefix_cache", RouteKind::kManagement, EngineApi::kChat, false, true},
      {"/sim/state", RouteKind::kControl, EngineApi::kChat, true, false},
      {"/sim/faults", RouteKind::kControl, EngineApi::kChat, true, true},
      {"/sim/requests", RouteKind::kControl, EngineApi::kChat, true, false},
  }};
  for (const Route& route : kRoutes) {
    if (route.path == path) return &route;
  }
  return nullptr;
}

// One request's answer in the making. Lives in generate()'s frame.
struct EngineServer::Generation {
  explicit Generation(EngineServer& s) : server(s), wait(s.loop_) {}
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;
  ~Generation() {
    bool aborted = false;
    for (Choice& choice : choices) {
      if (choice.sequence == nullptr) continue;
      server.model_.abort(choice.sequence, server.now());
      aborted = true;
    }
    if (aborted) server.pump();
  }

  bool complete() const { return live == 0; }

  EngineServer& server;
  io::Wait wait;
  ResponseContext context;
  Usage usage;
  std::vector<Choice> choices;
  size_t live = 0;  // choices whose last token has not arrived
  bool wake_for_each = false;
  std::vector<TokenEvent> arrived;  // not yet looked at
  uint32_t stream_interval = 1;
  std::string_view echo;
};

class EngineServer::TokensAwaiter {
 public:
  TokensAwaiter(Generation& g, io::CancelToken token) : g_(g), token_(std::move(token)) {}
  bool ready() const { return g_.complete() || (g_.wake_for_each && !g_.arrived.empty()); }
  bool await_ready() const { return ready() || token_.cancelled(); }
  void await_suspend(std::coroutine_handle<> handle) {
    g_.wait.rearm();
    g_.wait.start(handle, Duration::zero(), token_);
  }
  // False when the client is gone.
  bool await_resume() const { return !token_.cancelled(); }

 private:
  Generation& g_;
  io::CancelToken token_;
};

// Sends a body that a fault damages: counts bytes and events, stalls, cuts.
class EngineServer::BodyWriter {
 public:
  BodyWriter(EngineServer& server, HttpExchange& x, const Fault& fault)
      : server_(server), x_(x), fault_(fault) {}

  // Stream events; false when the exchange is over (cut or client gone).
  Task<bool> events(std::string_view rendered) {
    while (!rendered.empty()) {
      const size_t end = std::min(rendered.find("\n\n"), rendered.size() - 2) + 2;
      const std::string_view event = rendered.substr(0, end);
      rendered.remove_prefix(end);
      if (events_ == fault_.truncate_after_events) {
        (void)co_await x_.finish();
        co_return false;
      }
      if (events_ == fault_.stall_after_events && !stalled_) {
        stalled_ = true;
        if (!co_await pause(fault_.stall_ms)) co_return false;
      }
      if (events_ == fault_.stream_error_after_events) {
        co_await bytes(
            "data: {\"error\":{\"message\":\"Internal server error\",\"type\":\"InternalServerError\","
            "\"param\":null,\"code\":500}}\n\ndata: [DONE]\n\n");
        (void)co_await x_.finish();
        co_return false;
      }
      const std::string damaged = damage_events(fault_.sse, event);
      if (fault_.sse == "one_byte") {
        for (const char& c : event) {
          if (!co_await bytes(std::string_view(&c, 1))) co_return false;
        }
      } else if (!co_await bytes(damaged)) {
        co_return false;
      }
      ++events_;
    }
    co_return true;
  }

  Task<bool> bytes(std::string_view piece) {
    if (fault_.reset_after_bytes >= 0) {
      const uint64_t left = static_cast<uint64_t>(fault_.reset_after_bytes) - sent_;
      if (piece.size() >= left) {
        if (left > 0) (void)co_await x_.write(piece.substr(0, left));
        (void)co_await x_.flush();
        x_.abort();
        co_return false;
      }
    }
    sent_ += piece.size();
    co_return (co_await x_.write(piece)).ok();
  }

  // False when the client left. Negative: for ever.
  Task<bool> pause(int64_t ms) {
    (void)co_await x_.flush();
    const Duration length =
        ms < 0 ? Duration(std::chrono::hours(24 * 365)) : Duration(std::chrono::milliseconds(ms));
    co_return co_await server_.loop_.sleep(length, x_.cancel_token());
  }

 private:
  EngineServer& server_;
  HttpExchange& x_;
  const Fault& fault_;
  int64_t events_ = 0;
  uint64_t sent_ = 0;
  bool stalled_ = false;
};

Result<EngineServer::Settings> EngineServer::settings_of(const SimEngineOptions& o) {
  Settings s;
  s.models = o.model.empty() ? std::vector<std::string>{"sim-model"} : o.model;
  for (const std::string& adapter : o.adapter) {
    const size_t equals = adapter.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == adapter.size())
      return invalid_config("--adapter: \"" + adapter + "\" is not name=path");
    s.adapters.emplace_back(adapter.substr(0, equals), adapter.substr(equals + 1));
  }
  if (!s.adapters.empty() && o.max_loras == 0)
    return invalid_config("--adapter: needs --max-loras of at least 1");
  Result<MetricsDialect> dialect = parse_dialect(o.dialect);
  if (!dialect) return std::move(dialect).error().wrap("--dialect");
  s.dialect = *dialect;
  s.version = o.version;
  s.api_key = o.api_key;
  s.seed = o.seed;
  s.output_tokens = static_cast<uint32_t>(o.output_tokens);
  s.prompt_tokens_details = o.enable_prompt_tokens_details;
  s.request_id_headers = o.enable_request_id_headers;
  s.force_usage = o.enable_force_include_usage;
  s.max_body_bytes = static_cast<size_t>(o.max_body_bytes);
  s.record_requests = static_cast<size_t>(o.record_requests);
  s.faults = o.fault;
  Faults faults(0);
  for (const std::string& fault : s.faults) {
    if (Status added = faults.add(fault); !added) return std::move(added).error().wrap("--fault");
  }

  EngineModel::Options& m = s.model;
  m.block_size = static_cast<uint32_t>(o.block_size);
  m.num_blocks = static_cast<uint32_t>(o.num_blocks);
  m.max_sequences = static_cast<uint32_t>(o.max_num_seqs);
  m.max_batched_tokens = static_cast<uint32_t>(o.max_num_batched_tokens);
  m.max_model_len = static_cast<uint32_t>(o.max_model_len);
  m.max_adapters = static_cast<uint32_t>(o.max_loras);
  m.max_host_adapters = static_cast<uint32_t>(o.max_cpu_loras);
  m.adapter_load = o.lora_load_time;
  m.adapter_cold_load = o.lora_cold_load_time;
  m.max_queued_requests = static_cast<uint32_t>(o.max_num_queued_reqs);
  m.prefix_caching = !o.no_prefix_caching;
  m.time_scale = o.time_scale;
  m.step_time = StepTime(o.decode_ms, o.prefill_tokens_per_second);
  if (!o.profile.empty()) {
    Result<StepTime> profile = StepTime::profile(o.profile);
    if (!profile) return std::move(profile).error().wrap("--profile");
    m.step_time = *profile;
  }
  return s;
}

EngineServer::EngineServer(io::Loop& loop, const Settings& settings)
    : loop_(loop),
      settings_(settings),
      model_(settings.model),
      faults_(settings.seed),
      timer_(loop),
      ids_(settings.seed * 2 + 1) {
  for (const auto& [name, path] : settings_.adapters)
    adapters_.push_back({name, path, model_.add_adapter(name), true});
  for (const std::string& fault : settings_.faults) (void)faults_.add(fault);
  if (!settings_.faults.empty()) {
    faults_text_ = "[";
    for (const std::string& fault : settings_.faults)
      faults_text_ += (faults_text_.size() > 1 ? "," : "") + fault;
    faults_text_ += "]";
  }
  if (const Fault* slow = faults_.engine_wide([](const Fault& f) { return f.slow_factor != 1.0; }))
    model_.set_slow_factor(slow->slow_factor);
  started_at_ = unix_seconds(wall_now());
  char hash[17];
  std::snprintf(hash, sizeof hash, "%08x",
                static_cast<unsigned>(hash_of(settings_.models.front() + settings_.version)));
  fingerprint_ = "vllm-" + settings_.version + "-" + hash;
}

WallTime EngineServer::wall_now() {
  return std::chrono::time_point_cast<Duration>(std::chrono::system_clock::now());
}

std::string EngineServer::random_hex(size_t digits) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out(digits, '0');
  uint64_t bits = 0;
  for (size_t i = 0; i < digits; ++i) {
    if (i % 16 == 0) bits = ids_.next_u64();
    out[i] = kDigits[bits & 15U];
    bits >>= 4U;
  }
  return out;
}

std::string_view EngineServer::date() {
  const std::time_t second = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  if (second != date_second_) {
    date_second_ = second;
    std::tm utc{};
    gmtime_r(&second, &utc);
    char text[64];
    date_.assign(text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc));
  }
  return date_;
}

// --- the model's clock ---

void EngineServer::timer_fired(void* self) {
  static_cast<EngineServer*>(self)->pump();
}

void EngineServer::pump() {
  if (pumping_) return;
  pumping_ = true;
  events_.clear();
  model_.advance(now(), wall_now(), events_, kStepsAtOnce);
  for (const TokenEvent& event : events_) {
    auto& choice = *reinterpret_cast<Choice*>(event.tag);
    Generation& g = *choice.generation;
    g.arrived.push_back(event);
    if (event.finish != FinishReason::kNone) {
      choice.sequence = nullptr;
      --g.live;
    }
    if (g.complete() || g.wake_for_each) g.wait.complete_later(io::Wait::Outcome::kReady);
  }
  pumping_ = false;
  if (const std::optional<TimePoint> next = model_.next_event()) {
    const Duration after = *next - now();
    timer_.arm(after > Duration::zero() ? after : Duration(1), &EngineServer::timer_fired, this);
  } else {
    timer_.disarm();
  }
}

// --- responses ---

void EngineServer::common_fields(HttpExchange& x, HeaderList& fields, std::string_view content_type,
                                 bool vary) {
  fields.push_back({"date", date()});
  fields.push_back({"server", "uvicorn"});
  if (!content_type.empty()) fields.push_back({"content-type", content_type});
  if (vary) fields.push_back({"vary", "Origin"});
  if (settings_.request_id_headers) {
    const std::optional<std::string_view> id = x.request().fields.find("x-request-id");
    fields.push_back({"x-request-id", id.value_or(std::string_view{})});
  }
}

Task<void> EngineServer::send(HttpExchange& x, int status, std::string_view content_type,
                              std::string_view body, std::span<const HeaderField> more, bool vary) {
  HeaderList fields;
  common_fields(x, fields, content_type, vary);
  std::string id;
  if (settings_.request_id_headers && fields.back().value.empty()) {
    id = random_hex(32);
    fields.back().value = id;
  }
  fields.insert(fields.end(), more.begin(), more.end());
  if (!x.write_head(status, fields, io::BodyFraming::of_length(body.size())).ok()) co_return;
  (void)co_await x.finish(std::span<const std::string_view>(&body, 1));
}

Task<void> EngineServer::refuse(HttpExchange& x, EngineApi api, const ApiError& error) {
  ++refused_;
  std::string body;
  append_error(body, api, error);
  co_await send(x, error.status, kJson, body);
}

void EngineServer::count_http(const Route* route, std::string_view method, int status) {
  if (route != nullptr && (route->kind == RouteKind::kHealth || route->kind == RouteKind::kMetrics ||
                           route->kind == RouteKind::kVersion || route->kind == RouteKind::kControl))
    return;
  std::string labels =
      "method=\"" + std::string(method) + "\",status=\"" + static_cast<char>('0' + status / 100) + "xx\"";
  ++http_requests_[{std::string(route == nullptr ? "none" : route->path), std::move(labels)}];
}

// --- one exchange ---

Task<void> EngineServer::handle(HttpExchange& x) {
  const io::RequestHead& head = x.request();
  const Route* route = find_route(head.path);
  if (const Fault* slow = faults_.engine_wide([](const Fault& f) { return f.accept_delay_ms > 0; })) {
    if (seen_connections_.size() > kMaxSeenConnections) seen_connections_.clear();
    const int64_t ms = slow->accept_delay_ms;
    if (seen_connections_.insert(x.connection().id).second &&
        !co_await loop_.sleep(std::chrono::milliseconds(ms), x.cancel_token()))
      co_return;
  }
  if (!settings_.api_key.empty() && (head.path == "/v1" || head.path.starts_with("/v1/"))) {
    const std::string_view sent = head.fields.get("authorization");
    if (!sent.starts_with("Bearer ") || sent.substr(7) != settings_.api_key) {
      co_await send(x, 401, kJson, "{\"error\":\"Unauthorized\"}", {}, false);
      co_return;
    }
  }
  if (route == nullptr) {
    count_http(nullptr, head.method, 404);
    co_await send(x, 404, kJson, "{\"detail\":\"Not Found\"}");
    co_return;
  }
  const bool allowed = (head.method == "GET" && route->get) || (head.method == "POST" && route->post) ||
                       (head.method == "DELETE" && route->path == "/sim/faults");
  if (!allowed) {
    count_http(route, head.method, 405);
    const HeaderField allow{"allow", route->get ? "GET" : "POST"};
    co_await send(x, 405, kJson, "{\"detail\":\"Method Not Allowed\"}", std::span(&allow, 1));
    co_return;
  }
  co_await serve(x, *route);
}

Task<void> EngineServer::serve(HttpExchange& x, const Route& route) {
  switch (route.kind) {
    case RouteKind::kInference:
    case RouteKind::kBody:
      co_await answer_body(x, route);
      break;
    case RouteKind::kModels:
      count_http(&route, "GET", 200);
      co_await send(x, 200, kJson, models_body());
      break;
    case RouteKind::kHealth:
      co_await health(x);
      break;
    case RouteKind::kVersion:
      co_await send(x, 200, kJson, "{\"version\":" + json_quote(settings_.version) + "}");
      break;
    case RouteKind::kMetrics:
      co_await metrics(x, route.path);
      break;
    case RouteKind::kManagement:
      co_await management(x);
      break;
    case RouteKind::kControl:
      co_await control(x);
      break;
  }
}

namespace {

bool is_json(std::string_view content_type) {
  return ascii_iequals(trim(content_type.substr(0, content_type.find(';'))), "application/json");
}

// Counts a request for as long as it is here, and how it ended.
struct InFlight {
  explicit InFlight(uint64_t& n) : number(n) { ++number; }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;
  ~InFlight() { --number; }
  uint64_t& number;
};

// Borrows a request's buffers for one exchange.
struct Borrowed {
  Borrowed(std::vector<std::unique_ptr<EngineRequest>>& p) : pool(p) {
    if (pool.empty()) {
      request = std::make_unique<EngineRequest>();
    } else {
      request = std::move(pool.back());
      pool.pop_back();
    }
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed() {
    if (pool.size() < 256) pool.push_back(std::move(request));
  }
  std::vector<std::unique_ptr<EngineRequest>>& pool;
  std::unique_ptr<EngineRequest> request;
};

}  // namespace

Task<void> EngineServer::answer_body(HttpExchange& x, const Route& route) {
  const bool inference = route.kind == RouteKind::kInference;
  const TimePoint began = now();
  std::optional<InFlight> in_flight;
  if (inference) {
    ++requests_;
    in_flight.emplace(in_flight_);
  }
  const io::RequestHead& head = x.request();
  Result<std::span<char>> body = co_await x.read_all(settings_.max_body_bytes);
  if (!body) {
    if (x.cancel_token().cancelled()) {
      aborted_ += inference ? 1 : 0;
      co_return;
    }
    ApiError error;
    error.status = body.error().code == ErrorCode::kPayloadTooLarge ? 413 : 400;
    error.message = body.error().message;
    co_await refuse(x, route.api, error);
    co_return;
  }
  if (settings_.record_requests > 0) record(x, {body->data(), body->size()});

  Borrowed borrowed(idle_requests_);
  EngineRequest& request = *borrowed.request;
  std::optional<ApiError> error;
  if (!is_json(head.fields.get("content-type"))) {
    request.clear();
    error = ApiError{400, "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
                     "Bad Request", ""};
  } else {
    error = reader_.read(route.api, {body->data(), body->size()}, request);
  }

  std::optional<Fault> fault;
  if (const std::string_view own = head.fields.get("x-sim-fault"); !own.empty()) {
    Faults one(settings_.seed);
    if (Status set = one.set(own); !set) {
      co_await send(x, 400, "text/plain; charset=utf-8", set.error().message + "\n");
      co_return;
    }
    if (const Fault* picked = one.pick(route.path, true, request.model)) fault = *picked;
  } else if (!faults_.empty()) {
    if (const Fault* picked = faults_.pick(route.path, inference, request.model)) fault = *picked;
  }
  if (fault) {
    if (fault->close_after) x.close_after();
    const int64_t wait_ms = fault->hang ? -1 : fault->delay_ms;
    if (wait_ms != 0) {
      const Duration length =
          wait_ms < 0 ? Duration(std::chrono::hours(24 * 365)) : Duration(std::chrono::milliseconds(wait_ms));
      if (!co_await loop_.sleep(length, x.cancel_token())) {
        aborted_ += inference ? 1 : 0;
        last_abort_after_ms_ = to_millis(now() - began);
        co_return;
      }
    }
    if (fault->status != 0) {
      ++refused_;
      std::string type;
      const std::string text = status_body(*fault, type);
      const HeaderField retry{"retry-after", fault->retry_after};
      count_http(&route, head.method, static_cast<int>(fault->status));
      co_await send(x, static_cast<int>(fault->status), type, text,
                    std::span(&retry, fault->retry_after.empty() ? 0 : 1));
      co_return;
    }
  }
  if (!error) {
    if (const std::string_view rank = head.fields.get("x-data-parallel-rank"); !rank.empty() && rank != "0")
      error = ApiError{400, "data_parallel_rank " + std::string(rank) + " is out of range [0, 1).",
                       "BadRequestError", ""};
  }
  if (error) {
    count_http(&route, head.method, error->status);
    co_await refuse(x, route.api, *error);
    co_return;
  }

  if (inference && route.api != EngineApi::kEmbeddings) {
    const uint64_t answered = answered_;
    const uint64_t refused = refused_;
    co_await generate(x, route.api, fault ? &*fault : nullptr, request);
    if (answered == answered_ && refused == refused_ && x.cancel_token().cancelled())
      last_abort_after_ms_ = to_millis(now() - began);
    count_http(&route, head.method, 200);
    co_return;
  }

  std::string text;
  std::string_view type = kJson;
  int adapter = -1;
  std::string_view name;
  switch (route.api) {
    case EngineApi::kLoadAdapter:
      error = load_adapter(request, text);
      break;
    case EngineApi::kUnloadAdapter:
      error = unload_adapter(request, text);
      break;
    default:
      error = resolve_model(request, adapter, name);
      break;
  }
  if (!error) {
    if (route.api == EngineApi::kEmbeddings) {
      text = embeddings_body(request, name);
      ++answered_;
    } else if (route.api == EngineApi::kTokenize) {
      text = tokenize_body(request);
    } else if (route.api == EngineApi::kDetokenize) {
      std::string decoded;
      for (const uint32_t token : request.prompts[0]) detokenize(token, decoded);
      text = "{\"prompt\":" + json_quote(decoded) + "}";
    } else if (route.api == EngineApi::kCountTokens) {
      const std::string count = std::to_string(request.prompts[0].size());
      text =
          "{\"input_tokens\":" + count + ",\"context_management\":{\"original_input_tokens\":" + count + "}}";
    }
  }
  count_http(&route, head.method, error ? error->status : 200);
  if (error)
    co_await refuse(x, route.api, *error);
  else
    co_await send(x, 200, type, text);
}

// --- generation ---

std::optional<ApiError> EngineServer::resolve_model(EngineRequest& request, int& adapter,
                                                    std::string_view& name) const {
  adapter = -1;
  name = settings_.models.front();
  if (request.model.empty()) return std::nullopt;
  for (const std::string& served : settings_.models) {
    if (served == request.model) {
      name = served;
      return std::nullopt;
    }
  }
  for (size_t i = 0; i < adapters_.size(); ++i) {
    if (adapters_[i].listed && adapters_[i].name == request.model) {
      adapter = static_cast<int>(i);
      name = adapters_[i].name;
      return std::nullopt;
    }
  }
  std::string aliases;
  for (const std::string& served : settings_.models) aliases += (aliases.empty() ? "" : ", ") + served;
  return ApiError{404, "The model `" + request.model + "` does not exist. Valid aliases: " + aliases + ".",
                  "NotFoundError", "model"};
}

std::optional<ApiError> EngineServer::check_lengths(const EngineRequest& request) const {
  const uint64_t limit = model_.options().max_model_len;
  if (request.max_tokens && static_cast<uint64_t>(*request.max_tokens) > limit) {
    const std::string wanted = std::to_string(*request.max_tokens);
    return ApiError{400,
                    "max_tokens=" + wanted +
                        " cannot be greater than max_model_len=" + std::to_string(limit) +
                        ". Please request fewer output tokens. (parameter=max_tokens, value=" + wanted + ")",
                    "BadRequestError", "max_tokens"};
  }
  for (size_t i = 0; i < request.prompt_count; ++i) {
    const uint64_t prompt = request.prompts[i].size();
    if (prompt == 0) return ApiError{400, "The decoder prompt cannot be empty", "BadRequestError", "prompt"};
    if (prompt >= limit) {
      const std::string at_least = std::to_string(limit + 1);
      return ApiError{
          400,
          "This model's maximum context length is " + std::to_string(limit) +
              " tokens. However, your prompt contains at least " + at_least +
              " input tokens, which exceeds this limit even without any output tokens. Please reduce "
              "the length of the input prompt. (parameter=input_tokens, value=" +
              at_least + ")",
          "BadRequestError", "input_tokens"};
    }
    if (request.max_tokens && prompt + static_cast<uint64_t>(*request.max_tokens) > limit) {
      const uint64_t wanted = static_cast<uint64_t>(*request.max_tokens);
      return ApiError{
          400,
          "This model's maximum context length is " + std::to_string(limit) +
              " tokens. However, you requested " + std::to_string(wanted) +
              " output tokens and your prompt contains at least " + std::to_string(prompt) +
              " input tokens, for a total of at least " + std::to_string(prompt + wanted) +
              " tokens. Please reduce the length of the input prompt or the number of requested output "
              "tokens. (parameter=input_tokens, value=" +
              std::to_string(prompt) + ")",
          "BadRequestError", "input_tokens"};
    }
  }
  return std::nullopt;
}

// How long the answer gets and why it ends there. Stop strings are found now: the words that will come are
// known from the content seed.
void EngineServer::plan_output(const EngineRequest& request, SequenceSpec& spec, Choice& choice) const {
  const auto room = static_cast<uint32_t>(model_.options().max_model_len - spec.prompt.size());
  uint32_t limit = room;
  if (request.max_tokens) limit = std::min(limit, static_cast<uint32_t>(*request.max_tokens));
  spec.output_tokens = limit;
  spec.finish_reason = FinishReason::kLength;
  if (!request.ignore_eos && (settings_.output_tokens > 0 || !request.max_tokens)) {
    const uint32_t mean = settings_.output_tokens > 0 ? settings_.output_tokens : 64;
    Random random(spec.content_seed);
    const uint32_t natural = std::max(1U, mean / 2 + random.below(mean + 1));
    if (natural < limit) {
      spec.output_tokens = natural;
      spec.finish_reason = FinishReason::kStop;
    }
  }
  if (request.stop.empty()) return;
  std::string text;
  size_t longest = 0;
  for (const std::string& stop : request.stop) longest = std::max(longest, stop.size());
  for (uint32_t n = 0; n < spec.output_tokens; ++n) {
    const size_t from = text.size() > longest ? text.size() - longest : 0;
    detokenize(answer_token(spec.content_seed, n), text);
    for (const std::string& stop : request.stop) {
      const size_t at = text.find(stop, from);
      if (at == std::string::npos || at >= choice.text_limit) continue;
      choice.text_limit = at;
      choice.stop = stop;
    }
    if (choice.text_limit == SIZE_MAX) continue;
    spec.output_tokens = n + 1;
    spec.finish_reason = FinishReason::kStop;
    return;
  }
}

// Puts the request's sequences into the model.
std::optional<ApiError> EngineServer::admit(Generation& g, EngineRequest& request) {
  int adapter = -1;
  std::string_view name;
  if (auto error = resolve_model(request, adapter, name)) return error;
  if (!request.previous_response_id.empty())
    return ApiError{404, "Response with id '" + request.previous_response_id + "' not found.",
                    "NotFoundError", "response_id"};
  if (request.prompt_is_media)
    return ApiError{400, settings_.models.front() + " is not a multimodal model", "BadRequestError", ""};
  if (auto error = check_lengths(request)) return error;
  const size_t count = request.prompt_count * request.n;
  if (count > kMaxSequences) return ApiError{400, "too many choices in one request", "BadRequestError", "n"};
  pump();  // no step of the past stays open
  if (!model_.has_room(static_cast<uint32_t>(count))) {
    model_.count_rejection(1);
    return ApiError{
        503,
        "The engine is currently busy and cannot accept new requests. Please try again later or on a "
        "different instance.",
        "Service Unavailable", ""};
  }

  ResponseContext& c = g.context;
  c.created = static_cast<int64_t>(unix_seconds(wall_now()));
  c.model = name;
  c.fingerprint = fingerprint_;
  c.prompt_tokens_details = settings_.prompt_tokens_details;
  c.include_usage = request.include_usage || (settings_.force_usage && request.stream);
  c.continuous_usage =
      (request.include_usage && request.continuous_usage) || (settings_.force_usage && request.stream);
  c.return_token_ids = request.return_token_ids;
  c.prompt_tokens = request.prompts[0];
  c.temperature = request.temperature;
  c.top_p = request.top_p;
  c.max_tokens = request.max_tokens.value_or(
      static_cast<int64_t>(model_.options().max_model_len - request.prompts[0].size()));
  g.wake_for_each = request.stream;
  g.stream_interval = request.stream_interval;
  g.echo = request.echo_text;
  g.choices.resize(count);
  g.live = count;

  const std::string_view adapter_name =
      adapter < 0 ? std::string_view{} : adapters_[static_cast<size_t>(adapter)].name;
  const std::string_view path =
      adapter < 0 ? std::string_view{} : adapters_[static_cast<size_t>(adapter)].path;
  const uint64_t root = EngineModel::hash_root(adapter_name, path, request.cache_salt);
  for (size_t i = 0; i < count; ++i) {
    Choice& choice = g.choices[i];
    const size_t prompt = i / request.n;
    choice.generation = &g;
    choice.index = static_cast<uint32_t>(i);
    choice.prompt = static_cast<uint32_t>(prompt);
    SequenceSpec spec;
    spec.tag = reinterpret_cast<uint64_t>(&choice);
    spec.prompt = request.prompts[prompt];
    spec.adapter = adapter < 0 ? -1 : adapters_[static_cast<size_t>(adapter)].index;
    spec.root = root;
    spec.n = request.n;
    if (request.max_tokens) spec.max_tokens = static_cast<uint32_t>(*request.max_tokens);
    spec.content_seed = XXH3_64bits_withSeed(spec.prompt.data(), spec.prompt.size_bytes(), root) ^
                        (settings_.seed * 0x9E3779B97F4A7C15ULL) ^ (request.seed << 20U) ^ (i % request.n);
    plan_output(request, spec, choice);
    choice.sequence = model_.add(spec, now());
    if (i % request.n == 0) {
      g.usage.prompt_tokens += static_cast<uint32_t>(spec.prompt.size());
      const uint32_t block = model_.options().block_size;
      g.usage.created_cache_tokens += static_cast<uint32_t>(spec.prompt.size()) / block * block;
    }
  }
  pump();
  return std::nullopt;
}

void EngineServer::load_report(HttpExchange& x, std::string& out) const {
  const std::string_view format = x.request().fields.get("endpoint-load-metrics-format");
  if (format.empty()) return;
  std::string waiting;
  std::string usage;
  append_sample_value(waiting, model_.stats().waiting_capacity + model_.stats().waiting_deferred);
  append_sample_value(usage, model_.stats().kv_usage_ratio);
  if (format == "JSON")
    out = "JSON {\"named_metrics\": {\"num_requests_waiting\": " + waiting +
          ", \"kv_cache_usage_perc\": " + usage + "}}";
  else if (format == "TEXT")
    out =
        "TEXT named_metrics.num_requests_waiting=" + waiting + ", named_metrics.kv_cache_usage_perc=" + usage;
}

Task<void> EngineServer::generate(HttpExchange& x, EngineApi api, const Fault* fault,
                                  EngineRequest& request) {
  if (api == EngineApi::kCompletions && !request.max_tokens) request.max_tokens = 16;
  Generation g(*this);
  ResponseContext& c = g.context;
  c.api = api;
  std::string_view base = x.request().fields.get("x-request-id");
  if (base.empty()) base = request.request_id;
  const char* prefix = api == EngineApi::kCompletions ? "cmpl-"
                       : api == EngineApi::kResponses ? "resp_"
                       : api == EngineApi::kGenerate  ? "generate-tokens-"
                                                      : "chatcmpl-";
  c.id = prefix + (base.empty() ? random_hex(16) : std::string(base));
  if (api == EngineApi::kResponses) c.item_id = "msg_" + random_hex(16);

  if (const std::optional<ApiError> error = admit(g, request)) {
    co_await refuse(x, api, *error);
    co_return;
  }
  if (request.stream) {
    co_await stream(x, g, fault);
    co_return;
  }

  if (!co_await TokensAwaiter(g, x.cancel_token())) {
    ++aborted_;
    co_return;
  }
  for (const TokenEvent& event : g.arrived) {
    auto& choice = *reinterpret_cast<Choice*>(event.tag);
    choice.tokens.push_back(event.token);
    detokenize(event.token, choice.text);
    choice.finish = event.finish;
    if (event.index == 0 && choice.index % request.n == 0) g.usage.cached_tokens += event.cached_tokens;
    ++g.usage.completion_tokens;
  }
  g.usage.created_cache_tokens -= std::min(g.usage.created_cache_tokens, g.usage.cached_tokens);
  std::vector<ChoiceText> texts;
  for (Choice& choice : g.choices) {
    if (choice.text.size() > choice.text_limit) choice.text.resize(choice.text_limit);
    if (!g.echo.empty()) choice.text.insert(0, g.echo);
    texts.push_back({choice.index, choice.text, choice.finish, choice.stop, choice.tokens});
  }
  std::string body;
  body.reserve(1024);
  append_response(body, c, texts, g.usage);
  std::string report;
  load_report(x, report);
  const HeaderField orca{"endpoint-load-metrics", report};
  const std::span<const HeaderField> more(&orca, report.empty() ? 0 : 1);
  if (fault == nullptr || !fault->touches_body()) {
    co_await send(x, 200, kJson, body, more);
    ++(x.finished() ? answered_ : aborted_);
    co_return;
  }

  HeaderList fields;
  common_fields(x, fields, kJson, true);
  if (settings_.request_id_headers && fields.back().value.empty()) fields.pop_back();
  const uint64_t promised = body.size() + (fault->lying_content_length ? 64 : 0);
  if (!x.write_head(200, fields, io::BodyFraming::of_length(promised)).ok()) co_return;
  BodyWriter writer(*this, x, *fault);
  if (fault->first_byte_delay_ms > 0 && !co_await writer.pause(fault->first_byte_delay_ms)) {
    ++aborted_;
    co_return;
  }
  if (!co_await writer.bytes(body)) co_return;
  if (fault->lying_content_length) {
    (void)co_await x.flush();
    x.abort();
    co_return;
  }
  (void)co_await x.finish();
  ++answered_;
}

Task<void> EngineServer::stream(HttpExchange& x, Generation& g, const Fault* fault) {
  HeaderList fields;
  common_fields(x, fields, "text/event-stream; charset=utf-8", true);
  std::string id;
  if (settings_.request_id_headers && fields.back().value.empty()) {
    id = random_hex(32);
    fields.back().value = id;
  }
  if (!x.write_head(200, fields, io::BodyFraming::chunked()).ok()) co_return;
  std::optional<BodyWriter> writer;
  if (fault != nullptr && fault->touches_body()) writer.emplace(*this, x, *fault);

  const bool cut_off_text = g.context.api != EngineApi::kGenerate;
  const auto per_prompt =
      std::max<size_t>(g.choices.size() / std::max<size_t>(1, g.choices.back().prompt + 1), 1);
  std::string out;
  uint32_t sequence = 4;  // Responses events before the first delta
  size_t ended = 0;
  bool begun = false;
  std::vector<TokenEvent> events;
  while (ended < g.choices.size()) {
    if (g.arrived.empty()) {
      if (!begun && !(co_await x.flush()).ok()) break;
      if (!co_await TokensAwaiter(g, x.cancel_token())) break;
    }
    events.clear();
    std::swap(events, g.arrived);
    for (size_t i = 0; i < events.size(); ++i) {
      const TokenEvent& event = events[i];
      auto& choice = *reinterpret_cast<Choice*>(event.tag);
      if (!begun) {
        begun = true;
        if (fault != nullptr && fault->first_byte_delay_ms > 0 &&
            !co_await writer->pause(fault->first_byte_delay_ms)) {
          ++aborted_;
          co_return;
        }
        append_stream_start(out, g.context, static_cast<uint32_t>(g.choices.size()), g.usage);
      }
      if (event.index == 0) {
        if (choice.index % per_prompt == 0) g.usage.cached_tokens += event.cached_tokens;
        if (!g.echo.empty()) choice.text = g.echo;
        if (!g.echo.empty() && choice.text_limit != SIZE_MAX) choice.text_limit += g.echo.size();
      }
      ++g.usage.completion_tokens;
      detokenize(event.token, choice.text);
      choice.tokens.push_back(event.token);
      choice.finish = event.finish;
      const bool last = event.finish != FinishReason::kNone;
      if (last || event.index == 0 || choice.tokens.size() - choice.tokens_sent >= g.stream_interval) {
        const size_t end = std::min(choice.text.size(), choice.text_limit);
        ChoiceText text{choice.index,
                        {},
                        event.finish,
                        choice.stop,
                        std::span<const uint32_t>(choice.tokens).subspan(choice.tokens_sent)};
        if (cut_off_text && end > choice.sent)
          text.text = std::string_view(choice.text).substr(choice.sent, end - choice.sent);
        append_stream_delta(out, g.context, text, g.usage, sequence);
        choice.sent = std::max(choice.sent, end);
        choice.tokens_sent = choice.tokens.size();
      }
      if (last && ++ended == g.choices.size()) {
        g.usage.created_cache_tokens -= std::min(g.usage.created_cache_tokens, g.usage.cached_tokens);
        const Choice& first = g.choices.front();
        const ChoiceText whole{0, std::string_view(first.text).substr(0, first.text_limit), first.finish,
                               first.stop, first.tokens};
        append_stream_end(out, g.context, whole, g.usage, sequence);
      }
      const bool flush_now = out.size() >= kMaxWriteBytes || i + 1 == events.size();
      if (!flush_now || out.empty()) continue;
      if (writer) {
        if (!co_await writer->events(out)) {
          aborted_ += x.cancel_token().cancelled() ? 1 : 0;
          co_return;
        }
      } else if (ended == g.choices.size()) {
        const std::string_view piece = out;
        if (!(co_await x.finish(std::span(&piece, 1))).ok()) {
          ++aborted_;
          co_return;
        }
      } else if (!(co_await x.write(out)).ok()) {
        ++aborted_;
        co_return;
      }
      out.clear();
    }
  }
  if (ended < g.choices.size()) {
    ++aborted_;
    co_return;
  }
  if (!x.finished()) (void)co_await x.finish();
  ++answered_;
}

// --- other routes ---

std::string EngineServer::models_body() const {
  const int64_t created = static_cast<int64_t>(unix_seconds(wall_now()));
  std::string out = "{\"object\":\"list\",\"data\":[";
  uint64_t number = 0;
  const auto card = [&](std::string_view id, std::string_view root, std::string_view parent,
                        uint32_t length) {
    if (out.back() == '}') out += ',';
    out += "{\"id\":";
    append_json_quoted(out, id);
    out += ",\"object\":\"model\",\"created\":" + unix_seconds_text(created) +
           ",\"owned_by\":\"vllm\",\"root\":";
    append_json_quoted(out, root);
    out += ",\"parent\":";
    if (parent.empty())
      out += "null";
    else
      append_json_quoted(out, parent);
    out += ",\"max_model_len\":" + (length == 0 ? std::string("null") : std::to_string(length));
    char permission[40];
    std::snprintf(permission, sizeof permission, "modelperm-%016llx",
                  static_cast<unsigned long long>(hash_of(id) + ++number));
    out += ",\"permission\":[{\"id\":\"";
    out += permission;
    out += "\",\"object\":\"model_permission\",\"created\":" + unix_seconds_text(created) +
           ",\"allow_create_engine\":false,\"allow_sampling\":true,\"allow_logprobs\":true,"
           "\"allow_search_indices\":false,\"allow_view\":true,\"allow_fine_tuning\":false,\"organization\":"
           "\"*\","
           "\"group\":null,\"is_blocking\":false}]}";
  };
  for (const std::string& model : settings_.models)
    card(model, settings_.models.front(), {}, model_.options().max_model_len);
  for (const Adapter& adapter : adapters_) {
    if (adapter.listed) card(adapter.name, adapter.path, settings_.models.front(), 0);
  }
  return out + "]}";
}

std::string EngineServer::tokenize_body(const EngineRequest& request) const {
  const std::vector<uint32_t>& tokens = request.prompts[0];
  std::string out = "{\"count\":" + std::to_string(tokens.size()) +
                    ",\"max_model_len\":" + std::to_string(model_.options().max_model_len) + ",\"tokens\":[";
  for (size_t i = 0; i < tokens.size(); ++i) out += (i > 0 ? "," : "") + std::to_string(tokens[i]);
  out += "],\"token_strs\":";
  if (!request.return_token_texts) return out + "null}";
  out += '[';
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::string text;
    detokenize(tokens[i], text);
    if (i > 0) out += ',';
    append_json_quoted(out, text);
  }
  return out + "]}";
}

std::string EngineServer::embeddings_body(const EngineRequest& request, std::string_view model) {
  static constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const uint32_t size = request.dimensions > 0 ? std::min(request.dimensions, 8192U) : kEmbeddingSize;
  std::string out = "{\"id\":\"embd-" + random_hex(16) + "\",\"object\":\"list\",\"created\":" +
                    unix_seconds_text(static_cast<int64_t>(unix_seconds(wall_now()))) + ",\"model\":";
  append_json_quoted(out, model);
  out += ",\"data\":[";
  size_t prompt_tokens = 0;
  std::vector<float> values(size);
  for (size_t p = 0; p < request.prompt_count; ++p) {
    const std::vector<uint32_t>& prompt = request.prompts[p];
    prompt_tokens += prompt.size();
    Random random(XXH3_64bits(prompt.data(), prompt.size() * sizeof(uint32_t)) ^ settings_.seed);
    double norm = 0;
    for (float& value : values) {
      value = static_cast<float>(random.uniform() * 2 - 1);
      norm += static_cast<double>(value) * value;
    }
    for (float& value : values) value = static_cast<float>(value / std::sqrt(norm));
    if (p > 0) out += ',';
    out += "{\"index\":" + std::to_string(p) + ",\"object\":\"embedding\",\"embedding\":";
    if (request.base64) {
      out += '"';
      const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
      const size_t total = values.size() * sizeof(float);
      for (size_t i = 0; i < total; i += 3) {
        const size_t left = std::min<size_t>(3, total - i);
        const uint32_t group =
            (bytes[i] << 16U) | (left > 1 ? bytes[i + 1] << 8U : 0) | (left > 2 ? bytes[i + 2] : 0);
        out += kAlphabet[group >> 18U];
        out += kAlphabet[(group >> 12U) & 63U];
        out += left > 1 ? kAlphabet[(group >> 6U) & 63U] : '=';
        out += left > 2 ? kAlphabet[group & 63U] : '=';
      }
      out += '"';
    } else {
      out += '[';
      char text[32];
      for (size_t i = 0; i < values.size(); ++i) {
        if (i > 0) out += ',';
        out.append(text, std::to_chars(text, text + sizeof text, static_cast<double>(values[i])).ptr);
      }
      out += ']';
    }
    out += '}';
  }
  const std::string count = std::to_string(prompt_tokens);
  return out + "],\"usage\":{\"prompt_tokens\":" + count + ",\"total_tokens\":" + count +
         ",\"completion_tokens\":0,\"prompt_tokens_details\":null,\"completion_tokens_details\":null}}";
}

std::optional<ApiError> EngineServer::load_adapter(const EngineRequest& request, std::string& text) {
  if (request.adapter_name.empty() || request.adapter_path.empty())
    return ApiError{400, "Both 'lora_name' and 'lora_path' must be provided.", "InvalidUserInput", ""};
  const auto known = std::find_if(adapters_.begin(), adapters_.end(),
                                  [&](const Adapter& a) { return a.name == request.adapter_name; });
  if (known != adapters_.end() && known->listed && !request.load_inplace)
    return ApiError{
        400,
        "The lora adapter '" + request.adapter_name +
            "' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to "
            "True.",
        "InvalidUserInput", ""};
  if (model_.options().max_adapters == 0 || request.adapter_path.find("nonexistent") != std::string::npos)
    return ApiError{
        404, "Loading lora " + request.adapter_name + " failed: No adapter found for " + request.adapter_path,
        "NotFoundError", ""};
  if (adapters_.size() >= 10000) return ApiError{400, "too many adapters", "BadRequestError", ""};
  if (known == adapters_.end()) {
    adapters_.push_back(
        {request.adapter_name, request.adapter_path, model_.add_adapter(request.adapter_name), true});
  } else {
    known->path = request.adapter_path;
    known->listed = true;
  }
  text = "Success: LoRA adapter '" + request.adapter_name + "' added successfully.";
  return std::nullopt;
}

std::optional<ApiError> EngineServer::unload_adapter(const EngineRequest& request, std::string& text) {
  const auto known = std::find_if(adapters_.begin(), adapters_.end(), [&](const Adapter& a) {
    return a.listed && a.name == request.adapter_name;
  });
  if (request.adapter_name.empty())
    return ApiError{400, "'lora_name' needs to be provided to unload a LoRA adapter.", "InvalidUserInput",
                    ""};
  if (known == adapters_.end())
    return ApiError{404, "The lora adapter '" + request.adapter_name + "' cannot be found.", "NotFoundError",
                    ""};
  known->listed = false;
  text = "Success: LoRA adapter '" + request.adapter_name + "' removed successfully.";
  return std::nullopt;
}

Task<void> EngineServer::health(HttpExchange& x) {
  if (faults_.engine_wide([](const Fault& f) { return f.health_hang; }) != nullptr) {
    (void)co_await loop_.sleep(std::chrono::hours(24 * 365), x.cancel_token());
    co_return;
  }
  const Fault* sick = faults_.engine_wide([](const Fault& f) { return f.health_status != 0; });
  co_await send(x, sick == nullptr ? 200 : static_cast<int>(sick->health_status), {}, {});
}

Task<void> EngineServer::metrics(HttpExchange& x, std::string_view path) {
  const bool iteration_stats =
      settings_.dialect == MetricsDialect::kTrtllmServe && path != "/prometheus/metrics";
  if (settings_.dialect != MetricsDialect::kTrtllmServe && path == "/prometheus/metrics") {
    co_await send(x, 404, kJson, "{\"detail\":\"Not Found\"}");
    co_return;
  }
  if (faults_.engine_wide([](const Fault& f) { return f.metrics_hang; }) != nullptr) {
    (void)co_await loop_.sleep(std::chrono::hours(24 * 365), x.cancel_token());
    co_return;
  }
  if (const Fault* broken = faults_.engine_wide([](const Fault& f) { return f.metrics_status != 0; })) {
    co_await send(x, static_cast<int>(broken->metrics_status), "text/plain; charset=utf-8",
                  "metrics are broken\n");
    co_return;
  }
  std::string page;
  if (iteration_stats) {
    append_iteration_stats(page, model_);
    co_await send(x, 200, kJson, page);
    co_return;
  }
  MetricsContext context;
  context.model_name = settings_.models.front();
  context.adapters_enabled = settings_.model.max_adapters > 0 && !adapters_.empty();
  context.sleep_level = sleep_level_;
  context.started_at = started_at_;
  context.http_requests = &http_requests_;
  page.reserve(40000);
  append_metrics(page, settings_.dialect, model_, context);
  if (faults_.engine_wide([](const Fault& f) { return f.metrics_freeze; }) != nullptr) {
    if (frozen_metrics_.empty()) frozen_metrics_ = page;
    page = frozen_metrics_;
  }
  if (const Fault* damage = faults_.engine_wide([](const Fault& f) {
        return !f.metrics_drop.empty() || !f.metrics_rename.empty() || !f.metrics_text.empty();
      }))
    page = damage_metrics(*damage, page);
  const bool vllm = settings_.dialect == MetricsDialect::kVllm;
  co_await send(
      x, 200, vllm ? "text/plain; version=1.0.0; charset=utf-8" : "text/plain; version=0.0.4; charset=utf-8",
      page);
}

namespace {

std::string_view query_value(std::string_view query, std::string_view name) {
  for (const std::string_view pair : split(query, '&')) {
    const size_t equals = pair.find('=');
    if (equals != std::string_view::npos && pair.substr(0, equals) == name) return pair.substr(equals + 1);
  }
  return {};
}

}  // namespace

Task<void> EngineServer::management(HttpExchange& x) {
  const io::RequestHead& head = x.request();
  std::string body;
  if (head.path == "/load") {
    body = "{\"server_load\":" + std::to_string(in_flight_) + "}";
  } else if (head.path == "/is_paused") {
    body = model_.paused() && sleep_level_ == 0 ? "{\"is_paused\":true}" : "{\"is_paused\":false}";
  } else if (head.path == "/is_sleeping") {
    body = sleep_level_ > 0 ? "{\"is_sleeping\":true}" : "{\"is_sleeping\":false}";
  } else if (head.path == "/pause") {
    model_.set_paused(true);
    body = "{\"status\":\"paused\"}";
  } else if (head.path == "/resume") {
    model_.set_paused(sleep_level_ > 0);
    body = "{\"status\":\"resumed\"}";
  } else if (head.path == "/sleep") {
    sleep_level_ = query_value(head.query, "level") == "2" ? 2 : 1;
    model_.set_paused(true);
    (void)model_.reset_prefix_cache();
    body = "{\"status\":\"sleeping\",\"level\":" + std::to_string(sleep_level_) + "}";
  } else if (head.path == "/wake_up") {
    sleep_level_ = 0;
    model_.set_paused(false);
    body = "{\"status\":\"awake\",\"tags\":null}";
  } else {
    body = model_.reset_prefix_cache() ? "{\"success\":true}" : "{\"success\":false}";
  }
  pump();
  co_await send(x, 200, kJson, body);
}

std::string EngineServer::state_body() const {
  const EngineStats& s = model_.stats();
  std::string out = "{";
  const auto field = [&](std::string_view name, std::string_view value) {
    if (out.size() > 1) out += ',';
    out += '"';
    out.append(name).append("\":").append(value);
  };
  const auto number = [&](std::string_view name, uint64_t value) { field(name, std::to_string(value)); };
  number("port", port_);
  field("model", json_quote(settings_.models.front()));
  number("requests", requests_);
  number("answered", answered_);
  number("refused", refused_);
  number("aborted", aborted_);
  number("in_flight", in_flight_);
  number("running", model_.running());
  number("waiting", model_.waiting());
  std::string value;
  append_sample_value(value, last_abort_after_ms_);
  field("last_abort_after_ms", value);
  number("blocks", model_.cache().usable());
  number("blocks_free", model_.cache().free());
  number("blocks_cached", model_.cache().cached());
  number("evictions", model_.cache().evictions());
  number("preemptions", s.preemptions);
  number("prompt_tokens", s.prompt_tokens);
  number("prompt_tokens_cached", s.prompt_tokens_cached);
  number("generation_tokens", s.generation_tokens);
  number("steps", s.steps);
  number("faults_injected", faults_.injected());
  field("paused", model_.paused() ? "true" : "false");
  number("sleep_level", static_cast<uint64_t>(sleep_level_));
  std::string adapters = "[";
  for (const Adapter& adapter : adapters_) {
    if (!adapter.listed) continue;
    if (adapters.size() > 1) adapters += ',';
    adapters += "{\"name\":" + json_quote(adapter.name) + ",\"path\":" + json_quote(adapter.path) +
                ",\"resident\":" + (model_.adapter_resident(adapter.index) ? "true" : "false") + "}";
  }
  field("adapters", adapters + "]");
  return out + "}";
}

Task<void> EngineServer::control(HttpExchange& x) {
  const io::RequestHead& head = x.request();
  if (head.path == "/sim/state") {
    co_await send(x, 200, kJson, state_body());
    co_return;
  }
  if (head.path == "/sim/requests") {
    std::string out = "[";
    for (const std::string& one : recorded_) out += (out.size() > 1 ? "," : "") + one;
    co_await send(x, 200, kJson, out + "]");
    co_return;
  }
  if (head.method == "POST" || head.method == "DELETE") {
    std::string text = "{}";
    if (head.method == "POST") {
      Result<std::span<char>> body = co_await x.read_all(256 * 1024);
      if (!body) co_return;
      text.assign(body->data(), body->size());
    }
    if (Status set = faults_.set(text); !set) {
      co_await send(x, 400, kJson, "{\"error\":" + json_quote(set.error().message) + "}");
      co_return;
    }
    faults_text_ = faults_.empty() ? "[]" : text;
    frozen_metrics_.clear();
    const Fault* slow = faults_.engine_wide([](const Fault& f) { return f.slow_factor != 1.0; });
    model_.set_slow_factor(slow == nullptr ? 1.0 : slow->slow_factor);
  }
  co_await send(x, 200, kJson, faults_text_);
}

void EngineServer::record(HttpExchange& x, std::string_view body) {
  const io::RequestHead& head = x.request();
  std::string entry =
      "{\"method\":" + json_quote(head.method) + ",\"target\":" + json_quote(head.target) + ",\"headers\":[";
  for (const HeaderField& field : head.fields) {
    if (entry.back() != '[') entry += ',';
    entry += "[" + json_quote(field.name) + "," + json_quote(field.value) + "]";
  }
  entry += "],\"body\":" + json_quote(body) + "}";
  recorded_.push_back(std::move(entry));
  if (recorded_.size() > settings_.record_requests) recorded_.pop_front();
}

}  // namespace penstock::simulator
