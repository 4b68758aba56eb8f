#include "scheduling/producers/predicted_latency_producer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <map>

#include "base/strings.h"
#include "scheduling/admitters/latency_slo_admitter.h"
#include "scheduling/number_text.h"
#include "scheduling/signal_column.h"

namespace penstock::scheduling {

namespace {

constexpr size_t kMaxEndpointsDumped = 100;
constexpr Duration kLongestDeadline = std::chrono::seconds(30);
constexpr int kServed = 200;  // the status of answers to learn from

bool is_exported(const SchedulingContext& ctx, Signal signal, Candidate candidate) {
  return ctx.signals.at(signal, candidate).state != SignalState::kNameMissing;
}

// One endpoint's value to learn from; nothing where it is unknown. What an engine does not export is 0 to its
// class, always.
std::optional<double> value_to_learn(const SchedulingContext& ctx, Signal signal, Candidate candidate) {
  if (!is_exported(ctx, signal, candidate)) return 0.0;
  const UsableSignal read = usable(ctx, signal, candidate);
  // Reserved already, the request itself is among what was sent since.
  return read.known ? std::optional(read.value - std::min(read.credit, 1U)) : std::nullopt;
}

uint64_t whole(double value) {
  return value > 0 ? static_cast<uint64_t>(std::llround(value)) : 0;
}

std::string class_name(std::string_view engine, std::string_view role) {
  return std::string(engine) + "/" + std::string(role);
}

// The models of one request's candidates, each looked up once.
class ClassReaders {
 public:
  ClassReaders(Arena& arena, const LatencyModels& models) : arena_(arena), models_(models) {}
  const LatencyModels::Reader& of(std::string_view engine, std::string_view role) {
    for (size_t i = 0; i < count_; ++i) {
      if (entries_[i]->engine == engine && entries_[i]->role == role) return entries_[i]->reader;
    }
    // More classes than there are models: a role label that tells every endpoint from the others.
    if (count_ == entries_.size()) count_ = 0;
    Entry*& entry = entries_[count_++];
    if (entry == nullptr) entry = arena_.make<Entry>();
    *entry = {engine, role, models_.reader(class_name(engine, role))};
    return entry->reader;
  }

 private:
  struct Entry {
    std::string_view engine;
    std::string_view role;
    LatencyModels::Reader reader;
  };
  Arena& arena_;
  const LatencyModels& models_;
  std::array<Entry*, LatencyModels::kMaxClasses> entries_{};
  size_t count_ = 0;
};

LatencyServiceSettings service_settings(const PredictedLatencyProducer::Params& params) {
  LatencyServiceSettings out;
  out.deadline = params.prediction_deadline;
  out.take_environment([](const char* name) -> const char* { return std::getenv(name); });
  out.take_urls(params.prediction_url, params.training_url);
  return out;
}

telemetry::FamilyOptions error_family() {
  return {"penstock_latency_prediction_error_ms",
          "Mean absolute error of the built-in latency predictor's latest predictions.",
          {"plugin_name", "type"}};
}
telemetry::FamilyOptions standard_error_family() {
  return {"penstock_latency_prediction_standard_error_ms",
          "Standard error of the built-in latency predictor's latest predictions: the uncertainty that it "
          "tells of a time where much was learnt.",
          {"plugin_name", "type"}};
}
telemetry::FamilyOptions violation_family() {
  return {"penstock_latency_objective_missed_total",
          "Answers that missed the latency objective of their request.",
          {"plugin_name", "type"}};
}

}  // namespace

void PredictedLatencyProducer::bind(config::Binder& b, Params& p) {
  b.field("sloBufferFactor", p.buffer_factor, "",
          "Factor on the objective for the time per output token; above 0.");
  b.field("uncertaintyFactor", p.uncertainty_factor, "standard errors",
          "Added to a prediction before it is compared with its objective: how sure one must be that the "
          "objective is met. 0: nothing is added.");
  b.field("contextTTL", p.context_ttl_ns, "ns", "How long a request without an end is remembered.");
  b.field("streamingMode", p.streaming_mode, "",
          "Answers are streams: the first piece ends the time to the first token. Otherwise the whole answer "
          "does.");
  b.field("endpointRoleLabel", p.role_label, "", "Label with an endpoint's role.");
  b.field("predictInProduce", p.predict_in_produce, "", "Predict; otherwise only observe.");
  b.field("prefixMatchInfoProducerName", p.prefix_producer, "",
          "Name of the prefix cache producer to read; empty: approx-prefix-cache-producer.");
  b.field("inFlightLoadProducerName", p.load_producer, "",
          "Name of the inflight-load-producer to read; empty: the default one.");
  b.field("useEncoderCacheFeatures", p.encoder_features, "",
          "Also require the encoder cache's matches; the built-in predictor does not use them.");
  b.field("encoderCacheMatchInfoProducerName", p.encoder_producer, "",
          "Name of the mm-embeddings-cache-producer; empty: the default one.");
  b.field("predictionServerURL", p.prediction_url, "",
          "An external latency predictor, http or https; several, separated by commas, take turns by chance. "
          "Empty: PREDICTION_SERVER_URL of the environment, else the built-in predictor.");
  b.field("trainingServerURL", p.training_url, "",
          "Who learns for it from what was measured. Empty: TRAINING_SERVER_URL of the environment, else "
          "nobody.");
  b.field("predictionDeadline", p.prediction_deadline, "",
          "How long a decision waits for the external predictor at most.");
  b.field("samplingMean", p.sampling_mean, "", "Ignored; accepted for older configurations.");
  b.field("maxDecodeTokenSamplesForPrediction", p.max_decode_samples, "",
          "Ignored; accepted for older configurations.");
  if (b.describing()) return;
  if (!(p.buffer_factor > 0)) b.fail("sloBufferFactor", "sloBufferFactor must be > 0");
  if (!(p.uncertainty_factor >= 0) || !std::isfinite(p.uncertainty_factor))
    b.fail("uncertaintyFactor", "uncertaintyFactor must be >= 0");
  if (p.context_ttl_ns <= 0) b.fail("contextTTL", "contextTTL must be > 0");
  if (p.prediction_deadline <= Duration::zero() || p.prediction_deadline > kLongestDeadline)
    b.fail("predictionDeadline", "predictionDeadline must be above 0 and at most 30s");
  for (const std::string* urls : {&p.prediction_url, &p.training_url}) {
    for (const std::string_view url : split(*urls, ',')) {
      const std::string_view text = trim(url);
      if (urls->empty() || text.starts_with("http://") || text.starts_with("https://")) continue;
      b.fail(urls == &p.prediction_url ? "predictionServerURL" : "trainingServerURL",
             "must be an http or https URL, got \"" + std::string(text) + "\"");
    }
  }
}

Result<std::unique_ptr<Plugin>> PredictedLatencyProducer::create(Params params,
                                                                 const PluginFactoryContext& context) {
  const auto make = []() -> Result<std::shared_ptr<LatencyModels>> {
    return std::make_shared<LatencyModels>();
  };
  const std::string key = std::string(kType) + "/" + std::string(context.name) + "/" +
                          (params.streaming_mode ? "streaming/" : "whole/") + params.role_label;
  std::shared_ptr<LatencyModels> models =
      context.warm == nullptr ? *make() : *context.warm->get<LatencyModels>(key, make);
  std::shared_ptr<LatencyService> service;
  LatencyServiceSettings settings = service_settings(params);
  if (context.outside != nullptr && !settings.prediction_urls.empty()) {
    std::vector<std::string> urls = settings.prediction_urls;
    if (!settings.training_url.empty()) urls.push_back(settings.training_url);
    bool callable = true;  // in a simulation nobody is
    for (const std::string& url : urls) {
      const Status usable_url = context.outside->prepare(url);
      if (usable_url.ok()) continue;
      if (usable_url.error().code != ErrorCode::kNotImplemented)
        return invalid_config("the latency predictor's " + url + ": " + usable_url.error().message);
      callable = false;
    }
    const std::string service_key =
        std::string(kType) + "/" + std::string(context.name) + "/service " + settings.text();
    const auto make_service = [&]() -> Result<std::shared_ptr<LatencyService>> {
      return std::make_shared<LatencyService>(std::move(settings), *context.outside, context.clock,
                                              context.loops, context.name, context.metrics);
    };
    if (callable) {
      service = context.warm == nullptr ? *make_service()
                                        : *context.warm->get<LatencyService>(service_key, make_service);
    }
  }
  return std::unique_ptr<Plugin>(
      std::make_unique<PredictedLatencyProducer>(std::move(params), std::move(models), std::move(service),
                                                 context.clock, context.name, context.metrics));
}

PredictedLatencyProducer::PredictedLatencyProducer(Params params, std::shared_ptr<LatencyModels> models,
                                                   std::shared_ptr<LatencyService> service,
                                                   const Clock& clock, std::string_view name,
                                                   telemetry::MetricRegistry& metrics)
    : params_(std::move(params)),
      models_(std::move(models)),
      service_(std::move(service)),
      clock_(clock),
      tracker_(Duration(params_.context_ttl_ns)),
      prefix_key_(data_keys::kPrefixMatch.with_producer(params_.prefix_producer)),
      load_key_(data_keys::kInFlightLoad.with_producer(params_.load_producer)),
      encoder_key_(data_keys::kMultiModalMatch.with_producer(params_.encoder_producer)),
      ttft_error_(metrics.gauge(error_family()).with({name, "ttft"})),
      tpot_error_(metrics.gauge(error_family()).with({name, "tpot"})),
      ttft_standard_error_(metrics.gauge(standard_error_family()).with({name, "ttft"})),
      tpot_standard_error_(metrics.gauge(standard_error_family()).with({name, "tpot"})),
      ttft_violations_(metrics.counter(violation_family()).with({name, "ttft"})),
      tpot_violations_(metrics.counter(violation_family()).with({name, "tpot"})) {}

void PredictedLatencyProducer::declare_data(DataDeclaration& declaration) const {
  declaration.require<PrefixMatch>(prefix_key_);
  declaration.require<InFlightLoad>(load_key_);
  declaration.require<TokenizedPromptMarker>(data_keys::kTokenizedPrompt);
  if (params_.encoder_features) declaration.require<MultiModalMatch>(encoder_key_);
  declaration.produce<LatencyPrediction>(key());
}

void PredictedLatencyProducer::bind_slots(const SlotResolver& slots) {
  prefix_slot_ = slots.slot(prefix_key_);
  load_slot_ = slots.slot(load_key_);
  if (params_.encoder_features) encoder_slot_ = slots.slot(encoder_key_);
  slot_ = slots.slot(key());
}

std::string_view PredictedLatencyProducer::role_of(const Endpoint& endpoint) const {
  return params_.role_label.empty() ? std::string_view() : endpoint.label(params_.role_label);
}

std::string PredictedLatencyProducer::class_of(const Endpoint& endpoint) const {
  return class_name(endpoint.engine, role_of(endpoint));
}

LatencyInputs PredictedLatencyProducer::inputs_of(const SchedulingContext& ctx, Candidate candidate,
                                                  const EndpointSignals& signals,
                                                  double prompt_tokens) const {
  LatencyInputs out;
  out.uncached_tokens = prompt_tokens;
  const auto matches = ctx.attributes.column<PrefixMatch>(prefix_slot_);
  if (!matches.empty()) {
    const PrefixMatch& match = matches[candidate];
    out.uncached_tokens =
        std::max(0.0, prompt_tokens - static_cast<double>(match.match_blocks) * match.block_size_tokens);
  }
  const auto load = ctx.attributes.column<InFlightLoad>(load_slot_);
  if (!load.empty()) out.tokens_in_flight = static_cast<double>(load[candidate].tokens);
  out.waiting_requests = signals.waiting_requests;
  out.running_requests = signals.running_requests;
  out.kv_usage = signals.kv_usage;
  return out;
}

std::span<const PredictedLatencyProducer::EndpointSignals> PredictedLatencyProducer::signals_of(
    SchedulingContext& ctx) const {
  const SignalColumn waiting = gather(ctx, ctx.candidates, Signal::kWaitingRequests);
  const SignalColumn running = gather(ctx, ctx.candidates, Signal::kRunningRequests);
  const SignalColumn usage = gather(ctx, ctx.candidates, Signal::kKvUsage);
  const std::span<EndpointSignals> out = ctx.arena.make_span<EndpointSignals>(ctx.candidates.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const auto value = [&](const SignalColumn& column, Signal signal) {
      return column.unknown == 0 || is_exported(ctx, signal, ctx.candidates[i]) ? column.values[i] : 0.0;
    };
    out[i] = {value(waiting, Signal::kWaitingRequests), value(running, Signal::kRunningRequests),
              value(usage, Signal::kKvUsage)};
  }
  return out;
}

LatencyRow PredictedLatencyProducer::row_of(const SchedulingContext& ctx, Candidate candidate,
                                            const EndpointSignals& signals) const {
  LatencyRow row;
  row.kv_usage = signals.kv_usage;
  row.input_tokens = ctx.request.prompt_tokens();
  row.waiting_requests = whole(signals.waiting_requests);
  row.running_requests = whole(signals.running_requests);
  if (const auto load = ctx.attributes.column<InFlightLoad>(load_slot_); !load.empty()) {
    row.running_requests = static_cast<uint64_t>(load[candidate].requests);
    row.prefill_tokens_in_flight = static_cast<uint64_t>(load[candidate].tokens);
  }
  if (const auto matches = ctx.attributes.column<PrefixMatch>(prefix_slot_); !matches.empty())
    row.prefix_score = matches[candidate].ratio();
  if (const auto items = ctx.attributes.column<MultiModalMatch>(encoder_slot_); !items.empty()) {
    row.encoder_items = items[candidate].request_items;
    row.encoder_items_matched = items[candidate].matched_items;
  }
  row.role = role_of(*ctx.pool.endpoints[candidate]);
  return row;
}

std::shared_ptr<Question> PredictedLatencyProducer::ask(SchedulingContext& ctx) const {
  if (!asks() || slot_ == kNoSlot) return nullptr;
  const std::span<const EndpointSignals> signals = signals_of(ctx);
  const std::span<LatencyRow> rows = ctx.arena.make_filled<LatencyRow>(signals.size());
  const std::span<EndpointSlot> slots = ctx.arena.make_span<EndpointSlot>(signals.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = row_of(ctx, ctx.candidates[i], signals[i]);
    slots[i] = ctx.pool.endpoints[ctx.candidates[i]]->slot;
  }
  return service_->ask(slots, rows);
}

const LatencyQuestion* PredictedLatencyProducer::question_of(const SchedulingContext& ctx) const {
  const auto mine = [this](const AskedQuestion& asked) { return asked.by == this; };
  const auto found = std::find_if(ctx.questions.begin(), ctx.questions.end(), mine);
  return found == ctx.questions.end() ? nullptr : static_cast<const LatencyQuestion*>(found->question.get());
}

Status PredictedLatencyProducer::produce(SchedulingContext& ctx) const {
  if (slot_ == kNoSlot || !params_.predict_in_produce) return {};
  const double ttft_objective = ttft_objective_ms(ctx.request);
  const double tpot_objective = tpot_objective_ms(ctx.request);
  const std::span<LatencyPrediction> column = ctx.attributes.create<LatencyPrediction>(slot_);
  const auto prompt_tokens = static_cast<double>(ctx.request.prompt_tokens());
  const size_t count = ctx.candidates.size();
  const std::span<EndpointSlot> slots = ctx.arena.make_span<EndpointSlot>(count);
  for (size_t i = 0; i < count; ++i) slots[i] = ctx.pool.endpoints[ctx.candidates[i]]->slot;
  const std::span<RequestTracker::Running> running = ctx.arena.make_span<RequestTracker::Running>(count);
  tracker_.running(slots, running);
  const std::span<const EndpointSignals> signals = signals_of(ctx);
  const LatencyQuestion* question = question_of(ctx);
  const bool answered = question != nullptr && question->answered() && question->failure().empty();
  size_t hint = 0;
  ClassReaders readers(ctx.arena, *models_);
  for (size_t i = 0; i < count; ++i) {
    const Candidate c = ctx.candidates[i];
    const Endpoint& endpoint = *ctx.pool.endpoints[c];
    const std::string_view role = role_of(endpoint);
    LatencyPrediction& p = column[c];
    const LatencyModels::Reader& model = readers.of(endpoint.engine, role);
    p.prefill_ms_per_token = model.prefill_ms_per_token();
    if (const LatencyTimes* told = answered ? question->of(endpoint.slot, hint) : nullptr) {
      p.known = p.ttft_known = p.tpot_known = true;
      p.ttft_ms = told->ttft_ms;
      p.tpot_ms = told->tpot_ms;
      p.ttft_error_ms = told->ttft_error_ms;
      p.tpot_error_ms = told->tpot_error_ms;
    } else {
      p.ttft_known = model.ttft_ready();
      p.tpot_known = model.tpot_ready();
      p.known = p.ttft_known || p.tpot_known;
      if (!p.known) continue;
      const LatencyModels::Prediction expected = model.predict(inputs_of(ctx, c, signals[i], prompt_tokens));
      p.ttft_ms = expected.ttft_ms;
      p.tpot_ms = expected.tpot_ms;
      p.ttft_error_ms = expected.ttft_error_ms;
      p.tpot_error_ms = expected.tpot_error_ms;
    }
    p.dispatched_requests = running[i].requests;
    p.ttft_valid = p.tpot_valid = true;
    if (p.ttft_known) {
      const double ttft = p.ttft_ms + params_.uncertainty_factor * p.ttft_error_ms;
      p.ttft_valid = ttft < ttft_objective;
      p.ttft_headroom_ms = ttft_objective - ttft;
    }
    if (!params_.streaming_mode || role == "prefill" || !p.tpot_known) continue;
    double limit = tpot_objective * params_.buffer_factor;
    if (running[i].min_tpot_objective_ms > 0)
      limit = std::min(limit, running[i].min_tpot_objective_ms * params_.buffer_factor);
    const double tpot = p.tpot_ms + params_.uncertainty_factor * p.tpot_error_ms;
    p.tpot_valid = tpot < limit;
    p.tpot_headroom_ms = limit - tpot;
  }
  if (answered || service_ == nullptr || ctx.explain) return {};
  return Error{ErrorCode::kBadGateway,
               question == nullptr ? "the latency predictor was not asked" : question->failure()};
}

Status PredictedLatencyProducer::pre_request(SchedulingContext& ctx, const SchedulingResult& result) const {
  if (ctx.explain || result.primary == nullptr || result.primary->targets.empty()) return {};
  const Candidate primary = result.primary->targets[0];
  // The first token waits for the prefill, wherever that runs.
  Candidate prefill = primary;
  for (const ProfileResult* profile : result.profiles) {
    if (profile != nullptr && profile->profile_name == "prefill" && !profile->targets.empty())
      prefill = profile->targets[0];
  }
  const auto prompt_tokens = static_cast<double>(ctx.request.prompt_tokens());
  const auto stage = [&](Candidate target) {
    TrackedRequest::Stage out;
    out.endpoint_class = class_of(*ctx.pool.endpoints[target]);
    const auto waiting = value_to_learn(ctx, Signal::kWaitingRequests, target);
    const auto busy = value_to_learn(ctx, Signal::kRunningRequests, target);
    const auto usage = value_to_learn(ctx, Signal::kKvUsage, target);
    out.teaches = waiting && busy && usage;
    if (!out.teaches) return out;
    const EndpointSignals signals{*waiting, *busy, *usage};
    out.inputs = inputs_of(ctx, target, signals, prompt_tokens);
    if (service_ == nullptr) return out;
    out.row = row_of(ctx, target, signals);
    out.role = std::exchange(out.row.role, {});
    return out;
  };
  TrackedRequest request;
  request.prefill = stage(prefill);
  request.decode = stage(primary);
  request.slot = ctx.pool.endpoints[primary]->slot;
  seen_.see(ctx.pool.endpoints[primary]);
  request.sent_at = ctx.now;
  request.ttft_objective_ms = ttft_objective_ms(ctx.request);
  request.tpot_objective_ms = tpot_objective_ms(ctx.request);
  tracker_.end(ctx.request.number);  // an earlier attempt of the same request
  tracker_.begin(ctx.request.number, std::move(request), ctx.now);
  return {};
}

// As the reference's samples: a first token has generated nothing yet, a pace owes nothing to the prefix.
void PredictedLatencyProducer::teach(const TrackedRequest::Stage& stage, double ttft_ms,
                                     double tpot_ms) const {
  if (service_ == nullptr) return;
  LatencySample sample;
  sample.row = stage.row;
  sample.row.role = stage.role;
  sample.row.generated_tokens = tpot_ms > 0 ? 1 : 0;
  if (tpot_ms > 0) sample.row.prefix_score = 0;
  sample.ttft_ms = ttft_ms;
  sample.tpot_ms = tpot_ms;
  sample.at = clock_.wall_now();
  service_->teach(sample);
}

void PredictedLatencyProducer::note_ttft(const TrackedRequest& request, TimePoint now) const {
  const double ttft = to_millis(now - request.sent_at);
  if (request.prefill.teaches) {
    models_->learn_ttft(request.prefill.endpoint_class, request.prefill.inputs, ttft);
    teach(request.prefill, ttft, 0);
  }
  const LatencyModels::Errors errors = models_->errors();
  ttft_error_.set(errors.ttft_ms);
  ttft_standard_error_.set(errors.ttft_standard_ms);
  if (request.ttft_objective_ms > 0 && ttft > request.ttft_objective_ms) ttft_violations_.add();
}

void PredictedLatencyProducer::on_response(const ResponseEvent& event, ResponseEdits& /*edits*/) const {
  if (event.kind == ResponseEvent::Kind::kChunk && event.streaming) {
    tracker_.chunk(event.request_number, event.now);
    return;
  }
  if (event.kind != ResponseEvent::Kind::kEnd) return;
  const std::optional<TrackedRequest> request = tracker_.end(event.request_number);
  // A refusal is quick, but nothing was served.
  if (!request || !event.natural_end || event.status != kServed || event.now == kNever) return;
  if (!params_.streaming_mode) {
    note_ttft(*request, event.now);
    return;
  }
  if (request->first_token_at == kNever) return;
  note_ttft(*request, request->first_token_at);
  // The engine's own count of tokens, where it gives one: a piece may hold several.
  const uint64_t tokens =
      event.has_usage && event.completion_tokens > 0 ? event.completion_tokens : request->chunks;
  if (tokens < 2) return;
  const double tpot = to_millis(event.now - request->first_token_at) / static_cast<double>(tokens - 1);
  if (request->decode.teaches) {
    models_->learn_tpot(request->decode.endpoint_class, request->decode.inputs, tpot);
    teach(request->decode, 0, tpot);
  }
  const LatencyModels::Errors errors = models_->errors();
  tpot_error_.set(errors.tpot_ms);
  tpot_standard_error_.set(errors.tpot_standard_ms);
  if (request->tpot_objective_ms > 0 && tpot > request->tpot_objective_ms) tpot_violations_.add();
}

std::optional<std::string> PredictedLatencyProducer::dump_state() const {
  const std::map<EndpointSlot, RequestTracker::Running> endpoints = tracker_.endpoints();
  std::string out = "{\"endpoints\":[";
  size_t count = 0;
  for (const auto& [slot, running] : endpoints) {
    if (count == kMaxEndpointsDumped) break;
    if (count++ > 0) out += ',';
    out += "{\"endpoint\":";
    append_json_quoted(out, seen_.id_of(slot));
    out += ",\"runningRequests\":" + std::to_string(running.requests) + ",\"minTpotSlo\":";
    append_number(out, running.min_tpot_objective_ms);
    out += '}';
  }
  out += "],\"totalEndpoints\":" + std::to_string(endpoints.size()) +
         ",\"maxEndpoints\":" + std::to_string(kMaxEndpointsDumped) + ",\"truncated\":";
  out += endpoints.size() > kMaxEndpointsDumped ? "true" : "false";
  out += ",\"trackedRequests\":" + std::to_string(tracker_.size()) + ",\"models\":[";
  for (const LatencyModels::Learnt& model : models_->learnt()) {
    if (out.back() == '}') out += ',';
    fmt::format_to(std::back_inserter(out),
                   "{{\"class\":{},\"ttftSamples\":{},\"tpotSamples\":{},\"predicts\":{},"
                   "\"ttftErrorMs\":{:.2f},\"tpotErrorMs\":{:.2f},"
                   "\"ttftStandardErrorMs\":{:.2f},\"tpotStandardErrorMs\":{:.2f}}}",
                   json_quote(model.endpoint_class), model.ttft_samples, model.tpot_samples, model.ready,
                   model.errors.ttft_ms, model.errors.tpot_ms, model.errors.ttft_standard_ms,
                   model.errors.tpot_standard_ms);
  }
  out += "]}";
  return out;
}

}  // namespace penstock::scheduling
