#include "simulator/engine_server.h"

#include <array>
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
constexpr size_t kMaxSeenConnections = 1 << 16;

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
  s.responses_store = static_cast<size_t>(o.responses_store);
  s.faults = o.fault;
  Faults faults(0);
  for (const std::string& fault : s.faults) {
    if (Status added = faults.add(fault); !added) return std::move(added).error().wrap("--fault");
  }

  Result<EngineModel::Options> model = engine_options(o);
  if (!model.ok()) return std::move(model).error();
  s.model = *model;
  s.model.max_queued_requests = static_cast<uint32_t>(o.max_num_queued_reqs);
  s.model.time_scale = o.time_scale;
  return s;
}

EngineServer::EngineServer(io::Loop& loop, const Settings& settings)
    : loop_(loop),
      settings_(settings),
      model_(settings.model),
      faults_(settings.seed),
      timer_(loop),
      ids_(settings.seed * 2 + 1),
      responses_(settings.responses_store) {
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
  started_at_ = to_seconds(wall_now().time_since_epoch());
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
  if (route == nullptr && head.path.starts_with("/v1/responses/")) {
    co_await stored_response(x);
    co_return;
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

Result<std::optional<Fault>> EngineServer::fault_of(const io::RequestHead& head, const Route& route,
                                                    std::string_view model) {
  const std::string_view own = head.fields.get("x-sim-fault");
  if (own.empty()) {
    const Fault* picked = faults_.pick(route.path, route.kind == RouteKind::kInference, model);
    return picked == nullptr ? std::nullopt : std::optional<Fault>(*picked);
  }
  Faults one(settings_.seed);
  if (Status set = one.set(own); !set) return set.error();
  const Fault* picked = one.pick(route.path, true, model);
  return picked == nullptr ? std::nullopt : std::optional<Fault>(*picked);
}

Task<bool> EngineServer::suffer(HttpExchange& x, const Route& route, const Fault& fault, TimePoint began) {
  if (fault.close_after) x.close_after();
  if (fault.hang || fault.delay_ms > 0) {
    const Duration length = fault.hang ? Duration(std::chrono::hours(24 * 365))
                                       : Duration(std::chrono::milliseconds(fault.delay_ms));
    if (!co_await loop_.sleep(length, x.cancel_token())) {
      aborted_ += route.kind == RouteKind::kInference ? 1 : 0;
      last_abort_after_ms_ = to_millis(now() - began);
      co_return false;
    }
  }
  if (fault.status == 0) co_return true;
  ++refused_;
  std::string type;
  const std::string text = status_body(fault, type);
  const HeaderField retry{"retry-after", fault.retry_after};
  count_http(&route, x.request().method, static_cast<int>(fault.status));
  co_await send(x, static_cast<int>(fault.status), type, text,
                std::span(&retry, fault.retry_after.empty() ? 0 : 1));
  co_return false;
}

std::optional<ApiError> EngineServer::answer_at_once(EngineApi api, EngineRequest& request,
                                                     std::string& text) {
  if (api == EngineApi::kLoadAdapter) return load_adapter(request, text);
  if (api == EngineApi::kUnloadAdapter) return unload_adapter(request, text);
  int adapter = -1;
  std::string_view name;
  if (std::optional<ApiError> error = resolve_model(request, adapter, name)) return error;
  if (api == EngineApi::kEmbeddings) {
    text = embeddings_body(request, name);
    ++answered_;
  } else if (api == EngineApi::kTokenize) {
    text = tokenize_body(request);
  } else if (api == EngineApi::kDetokenize) {
    std::string decoded;
    for (const uint32_t token : request.prompts[0]) detokenize(token, decoded);
    text = "{\"prompt\":" + json_quote(decoded) + "}";
  } else if (api == EngineApi::kCountTokens) {
    const std::string count = std::to_string(request.prompts[0].size());
    text =
        "{\"input_tokens\":" + count + ",\"context_management\":{\"original_input_tokens\":" + count + "}}";
  }
  return std::nullopt;
}

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

  Result<std::optional<Fault>> fault = fault_of(head, route, request.model);
  if (!fault) {
    co_await send(x, 400, "text/plain; charset=utf-8", fault.error().message + "\n");
    co_return;
  }
  if (fault->has_value() && !co_await suffer(x, route, **fault, began)) co_return;
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
    co_await generate(x, route.api, fault->has_value() ? &**fault : nullptr, request);
    if (answered == answered_ && refused == refused_ && x.cancel_token().cancelled())
      last_abort_after_ms_ = to_millis(now() - began);
    count_http(&route, head.method, 200);
    co_return;
  }

  std::string text;
  error = answer_at_once(route.api, request, text);
  count_http(&route, head.method, error ? error->status : 200);
  if (error)
    co_await refuse(x, route.api, *error);
  else
    co_await send(x, 200, kJson, text);
}

}  // namespace penstock::simulator
