// The part of EngineServer that answers everything but generation.

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/hash.h"
#include "base/strings.h"
#include "simulator/engine_server.h"
#include "simulator/tokenizer.h"

namespace penstock::simulator {
namespace {

using io::HeaderField;
using io::HttpExchange;
using io::Task;

constexpr std::string_view kJson = "application/json";
constexpr uint32_t kEmbeddingSize = 384;
constexpr size_t kMaxAdapters = 10000;

}  // namespace

Task<void> EngineServer::stored_response(HttpExchange& x) {
  const io::RequestHead& head = x.request();
  std::string_view id = head.path.substr(std::string_view("/v1/responses/").size());
  const size_t slash = id.find('/');
  const std::string_view tail = slash == std::string_view::npos ? std::string_view() : id.substr(slash);
  id = id.substr(0, slash);
  const bool shows = tail.empty() && head.method == "GET";
  if (!shows && !(tail == "/cancel" && head.method == "POST")) {
    const int status = tail.empty() || tail == "/cancel" ? 405 : 404;
    count_http(nullptr, head.method, status);
    co_await send(x, status, kJson,
                  status == 405 ? "{\"detail\":\"Method Not Allowed\"}" : "{\"detail\":\"Not Found\"}");
    co_return;
  }
  const ResponseStore::Stored* stored = responses_.find(id);
  ApiError error{404, "Response with id '" + std::string(id) + "' not found.", "NotFoundError",
                 "response_id"};
  if (stored != nullptr && !shows)
    error = ApiError{400, "Cannot cancel a synchronous response.", "BadRequestError", "response_id"};
  count_http(nullptr, head.method, stored != nullptr && shows ? 200 : error.status);
  if (stored != nullptr && shows) {
    const std::string object = stored->object;
    co_await send(x, 200, kJson, object);
    co_return;
  }
  co_await refuse(x, EngineApi::kResponses, error);
}

std::string EngineServer::models_body() const {
  const int64_t created = unix_now();
  std::string out = "{\"object\":\"list\",\"data\":[";
  uint64_t number = 0;
  const auto card = [&](std::string_view id, std::string_view root, std::string_view parent,
                        uint32_t length) {
    if (out.back() == '}') out += ',';
    out += "{\"id\":";
    append_json_quoted(out, id);
    out +=
        ",\"object\":\"model\",\"created\":" + std::to_string(created) + ",\"owned_by\":\"vllm\",\"root\":";
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
    out += "\",\"object\":\"model_permission\",\"created\":" + std::to_string(created) +
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
  std::string out = "{\"id\":\"embd-" + random_hex(16) +
                    "\",\"object\":\"list\",\"created\":" + std::to_string(unix_now()) + ",\"model\":";
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
  if (adapters_.size() >= kMaxAdapters) return ApiError{400, "too many adapters", "BadRequestError", ""};
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
