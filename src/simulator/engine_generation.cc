// The part of EngineServer that answers generation requests.

#include <algorithm>

#include "base/hash.h"
#include "simulator/engine_server.h"
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

}  // namespace

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
  bool keeps = false;  // the response is to be stored
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
  if (!request.previous_response_id.empty()) {
    const ResponseStore::Stored* before = responses_.find(request.previous_response_id);
    if (before == nullptr)
      return ApiError{404, "Response with id '" + request.previous_response_id + "' not found.",
                      "NotFoundError", "response_id"};
    std::vector<uint32_t>& prompt = request.prompts[0];
    prompt.insert(prompt.begin(), before->tokens.begin(), before->tokens.end());
    g.context.previous_response_id = request.previous_response_id;
  }
  g.keeps = g.context.api == EngineApi::kResponses && request.store && responses_.on();
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
  c.created = unix_now();
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

void EngineServer::keep_response(const Generation& g, std::span<const ChoiceText> texts) {
  if (!g.keeps) return;
  ResponseStore::Stored stored;
  append_response(stored.object, g.context, texts, g.usage);
  stored.tokens.assign(g.context.prompt_tokens.begin(), g.context.prompt_tokens.end());
  stored.tokens.insert(stored.tokens.end(), texts[0].tokens.begin(), texts[0].tokens.end());
  responses_.put(g.context.id, std::move(stored));
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
  keep_response(g, texts);
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
        keep_response(g, std::span(&whole, 1));
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

}  // namespace penstock::simulator
