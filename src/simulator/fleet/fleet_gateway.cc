#include "simulator/fleet/fleet_gateway.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <optional>

#include "signals/plugins.h"
#include "signals/scraper.h"

namespace penstock::simulator {

namespace {

constexpr std::string_view kPath = "/v1/completions";
constexpr std::string_view kModel = "sim-model";
constexpr std::string_view kSessionHeader = "x-session-id";
constexpr std::string_view kSessionTokenHeader = "x-session-token";
constexpr uint16_t kFirstPort = 10000;
constexpr int64_t kDecisionsKept = 16;

// The body is not written out: what a parser finds in it is handed over as a front door does that has parsed
// it for its routes.
constexpr std::array<char, 2 + protocol::kBodyPadding> kBody = {'{', '}'};

constexpr std::string_view kTokenEvent =
    "data: {\"choices\":[{\"index\":0,\"text\":\" token\",\"finish_reason\":null}]}\n\n";

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
      pool_("fleet", "default", request_metrics_, director::DecisionLog::Options{1, kDecisionsKept}) {}

FleetGateway::~FleetGateway() = default;

Result<std::unique_ptr<FleetGateway>> FleetGateway::create(const FleetPolicy& policy, const Options& options,
                                                           const Clock& clock) {
  std::unique_ptr<FleetGateway> gateway(new FleetGateway(options, clock));
  gateway->join_engines();
  if (Status status = gateway->load(policy); !status.ok()) return status.error().wrap(policy.source);
  return gateway;
}

void FleetGateway::join_engines() {
  std::vector<discovery::DiscoveredEndpoint> found;
  for (uint32_t i = 0; i < options_.engines; ++i) {
    discovery::DiscoveredEndpoint endpoint;
    endpoint.name = fmt::format("engine-{:04}", i);  // snapshots are ordered by name
    endpoint.address = "127.0.0.1";
    endpoint.port = static_cast<uint16_t>(kFirstPort + i);
    endpoint.engine = "vllm";
    found.push_back(std::move(endpoint));
  }
  members_.apply("fleet", std::move(found));
  endpoints_ = members_.snapshot()->endpoints;
  assert(endpoints_.size() == options_.engines);
  engine_of_slot_.resize(kMaxEndpoints);
  for (uint32_t i = 0; i < options_.engines; ++i) {
    const EndpointSlot slot = endpoints_[i]->slot;
    engine_of_slot_[slot] = i;
    tickets_.push_back(signals_.attach(slot, clock_.now()));
  }
}

Status FleetGateway::load(const FleetPolicy& policy) {
  assembly::AssemblyOptions options{.tables = assembly::builtin_tables(),
                                    .metrics = metrics_,
                                    .clock = clock_,
                                    .allow_experimental = true,
                                    .scrape_interval = options_.scrape_interval,
                                    .staleness = options_.staleness,
                                    .warm = &warm_};
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
  pool_.rules.publish(std::make_shared<const director::PoolRules>());
  pool_.policy.publish(std::move(loaded));
  director_ = std::make_unique<director::Director>(
      pool_, std::make_unique<director::TablePictures>(members_, signals_, options_.staleness), clock_,
      director::Director::Options{0, options_.seed});
  return {};
}

void FleetGateway::scraped(uint32_t engine, const EngineStats& stats) {
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

Result<FleetGateway::Choice> FleetGateway::decide(const Prompt& prompt) {
  const Handle handle = take();
  Exchange& exchange = *exchanges_[handle];
  exchange.request.reset();
  exchange.observer.start(pool_, exchange.request, nullptr, 0);

  std::array<HeaderField, 3> fields;
  size_t count = 0;
  fields[count++] = {"content-type", "application/json"};
  if (!prompt.session.empty()) fields[count++] = {kSessionHeader, prompt.session};
  if (!prompt.session_token.empty()) fields[count++] = {kSessionTokenHeader, prompt.session_token};
  const TokenizedPrompt tokenized{prompt.tokens, {}};
  protocol::ParsedBody parsed;
  parsed.api = ApiKind::kCompletions;
  parsed.model = kModel;
  parsed.streaming = true;
  parsed.prompts = std::span(&tokenized, 1);

  director::RequestInput input;
  input.request_id = prompt.request_id;
  input.method = "POST";
  input.path = kPath;
  input.headers = std::span(fields).first(count);
  input.body = {kBody.data(), 2};
  input.received_at = clock_.now();
  if (!parsed_by_.empty()) {
    input.parsed = &parsed;
    input.parsed_by = parsed_by_;
  }
  std::array<director::SubsetEntry, 1> only;
  if (prompt.only >= 0) {
    only[0] = {endpoints_[static_cast<size_t>(prompt.only)]->address,
               endpoints_[static_cast<size_t>(prompt.only)]->port};
    input.subset = only;
  }
  Status decided = director_->decide(exchange.request, input);
  if (!decided.ok()) {
    const Error error = decided.error();
    director::Observer::End end;
    end.reason = "rejected";
    end.error = &error;
    exchange.observer.end(end, clock_.now());
    exchange.request.settle(spare_);
    spare_.reset();
    idle_.push_back(handle);
    return error;
  }
  Choice choice;
  choice.handle = handle;
  choice.engine = engine_of_slot_[exchange.request.endpoint->slot];
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
