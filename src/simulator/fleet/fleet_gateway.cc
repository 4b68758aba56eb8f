#include "simulator/fleet/fleet_gateway.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "config/outlier_detection.h"
#include "signals/plugins.h"
#include "signals/scraper.h"

namespace penstock::simulator {

namespace {

constexpr std::string_view kPath = "/v1/completions";
constexpr std::string_view kModel = "sim-model";
constexpr std::string_view kSessionHeader = "x-session-id";
constexpr std::string_view kSessionTokenHeader = "x-session-token";
constexpr std::string_view kAddress = "127.0.0.1";
constexpr uint16_t kFirstPort = 10000;
uint16_t port_of(uint32_t engine) {
  return static_cast<uint16_t>(kFirstPort + engine);
}
constexpr int64_t kDecisionsKept = 16;

// The body is not written out: what a parser finds in it is handed over as a front door does that has parsed
// it for its routes.
constexpr std::array<char, 2 + protocol::kBodyPadding> kBody = {'{', '}'};

constexpr std::string_view kTokenEvent =
    "data: {\"choices\":[{\"index\":0,\"text\":\" token\",\"finish_reason\":null}]}\n\n";

// Of names joined by commas; ascending.
uint16_t hashes_of(std::string_view names, std::array<uint64_t, kMaxAdapters>& out) {
  size_t count = 0;
  while (!names.empty() && count < out.size()) {
    const size_t comma = names.find(',');
    if (const std::string_view name = names.substr(0, comma); !name.empty()) out[count++] = hash_of(name);
    names.remove_prefix(comma == std::string_view::npos ? names.size() : comma + 1);
  }
  std::sort(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count));
  return static_cast<uint16_t>(count);
}

// Parsers that give the token ids of a completion's prompt.
bool reads_token_ids(std::string_view parser_type) {
  return parser_type == "openai-parser" || parser_type == "vllmhttp-parser";
}

}  // namespace

FleetGateway::FleetGateway(const Options& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      request_metrics_(metrics_),
      members_(discovery::PoolOptions{.name = "fleet"}, slots_, clock),
      signals_(Duration::zero()),
      pool_("fleet", "default", request_metrics_, director::DecisionLog::Options{1, kDecisionsKept}),
      members_now_(options.engines, true),
      tickets_(options.engines),
      endpoints_(options.engines) {
  config::OutlierDetectionSettings health;
  health.enabled = true;  // as in `serve`
  pool_.health.configure(health);
}

FleetGateway::~FleetGateway() = default;

Result<std::unique_ptr<FleetGateway>> FleetGateway::create(const FleetPolicy& policy, const Options& options,
                                                           const Clock& clock) {
  std::unique_ptr<FleetGateway> gateway(new FleetGateway(options, clock));
  gateway->tell_members();
  for (uint32_t i = 0; i < options.engines; ++i) gateway->join(i);
  if (Status status = gateway->load(policy); !status.ok()) return status.error().wrap(policy.source);
  return gateway;
}

void FleetGateway::tell_members() {
  std::vector<discovery::DiscoveredEndpoint> found;
  for (uint32_t i = 0; i < options_.engines; ++i) {
    if (!members_now_[i]) continue;
    discovery::DiscoveredEndpoint endpoint;
    endpoint.name = fmt::format("engine-{:04}", i);  // snapshots are ordered by name
    endpoint.address = kAddress;
    endpoint.port = port_of(i);
    endpoint.engine = "vllm";
    found.push_back(std::move(endpoint));
  }
  [[maybe_unused]] const std::vector<std::string> problems = members_.apply("fleet", std::move(found));
  assert(problems.empty());
}

void FleetGateway::join(uint32_t engine) {
  for (const auto& endpoint : members_.snapshot()->endpoints) {
    if (endpoint->port != port_of(engine)) continue;
    endpoints_[engine] = endpoint;
    tickets_[engine] = signals_.attach(endpoint->slot, clock_.now());
  }
  assert(endpoints_[engine] != nullptr);
}

void FleetGateway::set_member(uint32_t engine, bool member) {
  assert(members_now_[engine] != member);
  members_now_[engine] = member;
  tell_members();
  if (member) return join(engine);
  const std::shared_ptr<const Endpoint> former = std::exchange(endpoints_[engine], nullptr);
  signals_.detach(tickets_[engine], clock_.now());
  pool_.health.removed(*former);
  for (const EndpointObserver* observer : policy_->endpoint_observers) observer->endpoint_removed(*former);
}

Status FleetGateway::load(const FleetPolicy& policy) {
  assembly::AssemblyOptions options{.tables = assembly::builtin_tables(),
                                    .metrics = metrics_,
                                    .clock = clock_,
                                    .allow_experimental = true,
                                    .scrape_interval = options_.scrape_interval,
                                    .staleness = options_.staleness,
                                    .warm = &warm_,
                                    .outside = options_.outside};
  Result<assembly::Assembly> assembled = assembly::assemble(policy.config, policy.source, options);
  if (!assembled.ok()) return std::move(assembled).error();
  std::shared_ptr<const director::Policy> loaded = std::move(assembled->policy);
  for (const director::Policy::MetricsSource& source : loaded->sources) {
    scrape_interval_ = options_.scrape_interval;
    const auto* metrics = dynamic_cast<const signals::MetricsDataSource*>(source.source);
    if (metrics == nullptr || metrics->params().interval <= Duration::zero()) continue;
    scrape_interval_ = std::max(metrics->params().interval, signals::kMinScrapeInterval);
    break;
  }
  wants_tokens_ = !loaded->response_hooks.empty();
  if (const protocol::RequestParser* parser = loaded->parsers->find(kPath);
      parser != nullptr && reads_token_ids(parser->type())) {
    parsed_by_ = parser->type();
  }
  director::PoolRules rules;
  for (const FleetClass& one : options_.classes) rules.objective_priorities[one.name] = one.priority;
  pool_.rules.publish(std::make_shared<const director::PoolRules>(std::move(rules)));
  policy_ = loaded;
  pool_.policy.publish(std::move(loaded));
  director_ = std::make_unique<director::Director>(
      pool_, std::make_unique<director::TablePictures>(members_, signals_, options_.staleness), clock_,
      director::Director::Options{0, options_.seed});
  return {};
}

void FleetGateway::scraped(uint32_t engine, const EngineStats& stats) {
  if (endpoints_[engine] == nullptr) return;
  const TimePoint now = clock_.now();
  signals::SignalRow row;
  const auto set = [&](Signal signal, double value) { row.at(signal) = {value, now, SignalState::kFresh}; };
  set(Signal::kWaitingRequests, stats.waiting_capacity + stats.waiting_deferred);
  set(Signal::kRunningRequests, stats.running);
  set(Signal::kKvUsage, stats.kv_usage_ratio);
  set(Signal::kCacheBlockSize, options_.block_size);
  set(Signal::kCacheNumBlocks, options_.num_blocks);
  row.lora.observed_at = now;
  row.lora.state = SignalState::kNameMissing;
  if (!stats.adapters.empty()) {
    row.lora.state = SignalState::kFresh;
    row.lora.max_adapters = static_cast<int32_t>(options_.max_adapters);
    row.lora.running_count = hashes_of(stats.adapters[stats.live_adapters].running, row.lora.running);
    row.lora.waiting_count = hashes_of(stats.adapters[stats.live_adapters].waiting, row.lora.waiting);
  }
  row.shown_round = endpoints_[engine]->live->unseen.begin_round();
  signals_.write(tickets_[engine], row, now);
}

FleetGateway::Handle FleetGateway::take() {
  if (idle_.empty()) {
    exchanges_.push_back(std::make_unique<Exchange>());
    return static_cast<Handle>(exchanges_.size() - 1);
  }
  const Handle handle = idle_.back();
  idle_.pop_back();
  return handle;
}

void FleetGateway::refuse(Handle handle, uint32_t attempts, std::string_view reason, const Error& error) {
  Exchange& exchange = *exchanges_[handle];
  director::Observer::End end;
  end.reason = reason;
  end.error = &error;
  end.attempts = attempts;
  exchange.observer.end(end, clock_.now());
  exchange.request.settle(spare_);
  spare_.reset();
  idle_.push_back(handle);
}

// What a front door makes of a prompt; holds what it is made of.
struct FleetGateway::Input {
  Input(const FleetGateway& gateway, const Prompt& prompt, TimePoint received_at)
      : tokenized{prompt.tokens, {}} {
    size_t count = 0;
    fields[count++] = {"content-type", "application/json"};
    if (!prompt.session.empty()) fields[count++] = {kSessionHeader, prompt.session};
    if (!prompt.session_token.empty()) fields[count++] = {kSessionTokenHeader, prompt.session_token};
    if (prompt.of_class != nullptr) {
      fields[count++] = {"x-llm-d-inference-objective", prompt.of_class->name};
      fields[count++] = {"x-llm-d-inference-fairness-id", prompt.of_class->tenant};
    }
    parsed.api = ApiKind::kCompletions;
    parsed.model = prompt.adapter.empty() ? kModel : prompt.adapter;
    parsed.streaming = true;
    parsed.prompts = std::span(&tokenized, 1);

    request.request_id = prompt.request_id;
    request.method = "POST";
    request.path = kPath;
    request.headers = std::span(fields).first(count);
    request.body = {kBody.data(), 2};
    request.received_at = received_at;
    if (!gateway.parsed_by_.empty()) {
      request.parsed = &parsed;
      request.parsed_by = gateway.parsed_by_;
    }
    if (prompt.only >= 0) {
      only[0] = {kAddress, port_of(static_cast<uint32_t>(prompt.only))};
      request.subset = only;
    }
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  std::array<HeaderField, 5> fields;
  TokenizedPrompt tokenized;
  protocol::ParsedBody parsed;
  std::array<director::SubsetEntry, 1> only;
  director::RequestInput request;
};

FleetGateway::Handle FleetGateway::ask(const Prompt& prompt) {
  const Handle handle = take();
  Exchange& exchange = *exchanges_[handle];
  exchange.request.reset();
  exchange.observer.start(pool_, exchange.request, nullptr, 0);
  exchange.received_at = clock_.now();
  if (!policy_->asking.empty())
    director_->ask(exchange.request, Input(*this, prompt, exchange.received_at).request);
  return handle;
}

bool FleetGateway::is_waiting(Handle handle) const {
  const auto& questions = exchanges_[handle]->request.questions;
  return std::any_of(questions.begin(), questions.end(),
                     [](const AskedQuestion& asked) { return !asked.question->answered(); });
}

Result<FleetGateway::Choice> FleetGateway::decide(Handle handle, const Prompt& prompt,
                                                  const std::function<bool(uint32_t engine)>& reachable) {
  Exchange& exchange = *exchanges_[handle];
  const Input input(*this, prompt, exchange.received_at);
  Status decided = director_->decide(exchange.request, input.request);
  Choice choice;
  choice.handle = handle;
  std::array<EndpointSlot, kAttempts> tried;
  while (decided.ok()) {
    const Endpoint& endpoint = *exchange.request.endpoint;
    choice.engine = static_cast<uint32_t>(endpoint.port - kFirstPort);
    if (reachable(choice.engine)) break;
    exchange.request.health.fail(director::FailureKind::kConnect, clock_.now());
    tried[choice.attempts - 1] = endpoint.slot;
    choice.connected =
        choice.attempts < kAttempts &&
        director_->decide_again(exchange.request, std::span(tried).first(choice.attempts)).ok();
    if (!choice.connected) {
      refuse(handle, choice.attempts, "connect", Error{ErrorCode::kBadGateway, "no connection"});
      return choice;
    }
    ++choice.attempts;
  }
  if (!decided.ok()) {
    refuse(handle, 0, "rejected", decided.error());
    return std::move(decided).error();
  }
  choice.fallback = exchange.request.record.fallback != FallbackState::kNone;
  // The memory of the decision serves the next one.
  exchange.request.settle(spare_);
  spare_.reset();
  return choice;
}

void FleetGateway::piece(Exchange& exchange, std::string_view text) {
  pieces_.clear();
  exchange.observer.piece(text, clock_.now(), pieces_);
}

void FleetGateway::first_token(Handle handle, std::string& session_token) {
  Exchange& exchange = *exchanges_[handle];
  exchange.observer.head(200, "text/event-stream; charset=utf-8", {}, clock_.now(), {});
  std::vector<HeaderEdits::Edit> edits;
  exchange.observer.append_header_edits(edits);
  for (const HeaderEdits::Edit& edit : edits) {
    if (edit.name == kSessionTokenHeader) session_token = edit.value;
  }
  piece(exchange, kTokenEvent);
}

void FleetGateway::token(Handle handle) {
  piece(*exchanges_[handle], kTokenEvent);
}

void FleetGateway::fail(Handle handle) {
  Exchange& exchange = *exchanges_[handle];
  exchange.request.health.fail(director::FailureKind::kReset, clock_.now());
  const Error error{ErrorCode::kBadGateway, "the connection broke"};
  director::Observer::End end;
  end.status = 502;
  end.reason = "engine_error";
  end.error = &error;
  end.attempts = 1;
  end.wall = clock_.wall_now();
  exchange.observer.end(end, clock_.now());
  idle_.push_back(handle);
}

void FleetGateway::finish(Handle handle, uint32_t prompt_tokens, uint32_t output_tokens,
                          uint32_t cached_tokens) {
  Exchange& exchange = *exchanges_[handle];
  text_.clear();
  fmt::format_to(std::back_inserter(text_),
                 "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":{},"
                 "\"completion_tokens\":{},\"prompt_tokens_details\":{{\"cached_tokens\":{}}}}}}}\n\n"
                 "data: [DONE]\n\n",
                 prompt_tokens, prompt_tokens + output_tokens, output_tokens, cached_tokens);
  piece(exchange, text_);
  pieces_.clear();
  exchange.observer.body_end(pieces_);
  director::Observer::End end;
  end.status = 200;
  end.reason = "ok";
  end.attempts = 1;
  end.wall = clock_.wall_now();
  exchange.observer.end(end, clock_.now());
  idle_.push_back(handle);
}

uint32_t FleetGateway::requests_at(uint32_t engine) const {
  return EndpointLive::requests_of(endpoints_[engine]->live->load.load(std::memory_order_relaxed));
}

}  // namespace penstock::simulator
