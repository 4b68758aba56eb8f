#include "scheduling/producers/predicted_latency_producer.h"

#include <algorithm>
#include <map>

#include "base/strings.h"
#include "scheduling/admitters/latency_slo_admitter.h"
#include "scheduling/number_text.h"
#include "scheduling/signal_column.h"

namespace penstock::scheduling {

namespace {

constexpr size_t kMaxEndpointsDumped = 100;

double known_value(const SchedulingContext& ctx, Signal signal, Candidate candidate) {
  const SignalValue value = ctx.signals.at(signal, candidate);
  return is_known(value.state, value.observed_at) ? value.value : 0.0;
}

telemetry::FamilyOptions error_family() {
  return {"penstock_latency_prediction_error_ms",
          "Mean absolute error of the built-in latency predictor's latest predictions.",
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
  b.field("samplingMean", p.sampling_mean, "", "Ignored; accepted for older configurations.");
  b.field("maxDecodeTokenSamplesForPrediction", p.max_decode_samples, "",
          "Ignored; accepted for older configurations.");
  if (b.describing()) return;
  if (!(p.buffer_factor > 0)) b.fail("sloBufferFactor", "sloBufferFactor must be > 0");
  if (p.context_ttl_ns <= 0) b.fail("contextTTL", "contextTTL must be > 0");
}

Result<std::unique_ptr<Plugin>> PredictedLatencyProducer::create(const PluginFactoryContext& context) {
  Params params;
  Status status =
      config::decode_params(context.parameters, context.path, [&](config::Binder& b) { bind(b, params); });
  if (!status.ok()) return std::move(status).error();
  const auto make = []() -> Result<std::shared_ptr<LatencyModels>> {
    return std::make_shared<LatencyModels>();
  };
  const std::string key = std::string(kType) + "/" + std::string(context.name) + "/" +
                          (params.streaming_mode ? "streaming/" : "whole/") + params.role_label;
  std::shared_ptr<LatencyModels> models =
      context.warm == nullptr ? *make() : *context.warm->get<LatencyModels>(key, make);
  return std::unique_ptr<Plugin>(std::make_unique<PredictedLatencyProducer>(
      std::move(params), std::move(models), context.name, context.metrics));
}

PredictedLatencyProducer::PredictedLatencyProducer(Params params, std::shared_ptr<LatencyModels> models,
                                                   std::string_view name, telemetry::MetricRegistry& metrics)
    : params_(std::move(params)),
      models_(std::move(models)),
      tracker_(Duration(params_.context_ttl_ns)),
      prefix_key_(data_keys::kPrefixMatch.with_producer(params_.prefix_producer)),
      load_key_(data_keys::kInFlightLoad.with_producer(params_.load_producer)),
      ttft_error_(metrics.gauge(error_family()).with({name, "ttft"})),
      tpot_error_(metrics.gauge(error_family()).with({name, "tpot"})),
      ttft_violations_(metrics.counter(violation_family()).with({name, "ttft"})),
      tpot_violations_(metrics.counter(violation_family()).with({name, "tpot"})) {}

void PredictedLatencyProducer::declare_data(DataDeclaration& declaration) const {
  declaration.require<PrefixMatch>(prefix_key_);
  declaration.require<InFlightLoad>(load_key_);
  declaration.require<TokenizedPromptMarker>(data_keys::kTokenizedPrompt);
  if (params_.encoder_features) {
    declaration.require<MultiModalMatch>(data_keys::kMultiModalMatch.with_producer(params_.encoder_producer));
  }
  declaration.produce<LatencyPrediction>(key());
}

void PredictedLatencyProducer::bind_slots(const SlotResolver& slots) {
  prefix_slot_ = slots.slot(prefix_key_);
  load_slot_ = slots.slot(load_key_);
  slot_ = slots.slot(key());
}

std::string_view PredictedLatencyProducer::role_of(const Endpoint& endpoint) const {
  return params_.role_label.empty() ? std::string_view() : endpoint.label(params_.role_label);
}

std::string PredictedLatencyProducer::class_of(const Endpoint& endpoint) const {
  return endpoint.engine + "/" + std::string(role_of(endpoint));
}

LatencyInputs PredictedLatencyProducer::inputs_of(const SchedulingContext& ctx, Candidate candidate) const {
  LatencyInputs out;
  const auto prompt = static_cast<double>(ctx.request.prompt_tokens());
  out.uncached_tokens = prompt;
  const auto matches = ctx.attributes.column<PrefixMatch>(prefix_slot_);
  if (!matches.empty()) {
    const PrefixMatch& match = matches[candidate];
    out.uncached_tokens =
        std::max(0.0, prompt - static_cast<double>(match.match_blocks) * match.block_size_tokens);
  }
  const auto load = ctx.attributes.column<InFlightLoad>(load_slot_);
  if (!load.empty()) out.tokens_in_flight = static_cast<double>(load[candidate].tokens);
  out.waiting_requests = known_value(ctx, Signal::kWaitingRequests, candidate);
  out.running_requests = known_value(ctx, Signal::kRunningRequests, candidate);
  out.kv_usage = known_value(ctx, Signal::kKvUsage, candidate);
  return out;
}

Status PredictedLatencyProducer::produce(SchedulingContext& ctx) const {
  if (slot_ == kNoSlot || !params_.predict_in_produce) return {};
  const double ttft_objective = ttft_objective_ms(ctx.request);
  const double tpot_objective = tpot_objective_ms(ctx.request);
  const std::span<LatencyPrediction> column = ctx.attributes.create<LatencyPrediction>(slot_);
  // Pools have few classes, and neighbours are mostly of one.
  std::string current;
  std::optional<LatencyModels::Reader> reader;
  for (const Candidate c : ctx.candidates) {
    const Endpoint& endpoint = *ctx.pool.endpoints[c];
    std::string endpoint_class = class_of(endpoint);
    if (!reader || endpoint_class != current) {
      current = std::move(endpoint_class);
      reader = models_->reader(current);
    }
    if (!reader->ready()) continue;
    const LatencyModels::Prediction expected = reader->predict(inputs_of(ctx, c));
    const RequestTracker::Running running = tracker_.running(endpoint.slot);
    LatencyPrediction& p = column[c];
    p.known = true;
    p.ttft_ms = expected.ttft_ms;
    p.tpot_ms = expected.tpot_ms;
    p.ttft_error_ms = expected.ttft_error_ms;
    p.ttft_valid = p.ttft_ms < ttft_objective;
    p.ttft_headroom_ms = ttft_objective - p.ttft_ms;
    p.dispatched_requests = running.requests;
    if (!params_.streaming_mode || role_of(endpoint) == "prefill") {
      p.tpot_valid = true;
      continue;
    }
    double limit = tpot_objective * params_.buffer_factor;
    if (running.min_tpot_objective_ms > 0)
      limit = std::min(limit, running.min_tpot_objective_ms * params_.buffer_factor);
    p.tpot_valid = p.tpot_ms < limit;
    p.tpot_headroom_ms = limit - p.tpot_ms;
  }
  return {};
}

Status PredictedLatencyProducer::pre_request(SchedulingContext& ctx, const SchedulingResult& result) const {
  if (ctx.explain || result.primary == nullptr || result.primary->targets.empty()) return {};
  Candidate target = result.primary->targets[0];
  const EndpointSlot slot = ctx.pool.endpoints[target]->slot;
  // The first token waits for the prefill, wherever that runs.
  for (const ProfileResult* profile : result.profiles) {
    if (profile != nullptr && profile->profile_name == "prefill" && !profile->targets.empty())
      target = profile->targets[0];
  }
  TrackedRequest request;
  request.endpoint_class = class_of(*ctx.pool.endpoints[target]);
  request.inputs = inputs_of(ctx, target);
  request.slot = slot;
  request.sent_at = ctx.now;
  request.ttft_objective_ms = ttft_objective_ms(ctx.request);
  request.tpot_objective_ms = tpot_objective_ms(ctx.request);
  tracker_.end(ctx.request.request_id);  // an earlier attempt of the same request
  tracker_.begin(ctx.request.request_id, std::move(request), ctx.now);
  return {};
}

void PredictedLatencyProducer::note_ttft(const TrackedRequest& request, TimePoint now) const {
  const double ttft = to_millis(now - request.sent_at);
  models_->learn_ttft(request.endpoint_class, request.inputs, ttft);
  ttft_error_.set(models_->errors().ttft_ms);
  if (request.ttft_objective_ms > 0 && ttft > request.ttft_objective_ms) ttft_violations_.add();
}

void PredictedLatencyProducer::on_response(const ResponseEvent& event, ResponseEdits& /*edits*/) const {
  if (event.kind == ResponseEvent::Kind::kChunk && event.streaming) {
    const std::optional<TrackedRequest> request = tracker_.chunk(event.request_id, event.now);
    if (request && request->chunks == 1 && params_.streaming_mode) note_ttft(*request, event.now);
    return;
  }
  if (event.kind != ResponseEvent::Kind::kEnd) return;
  const std::optional<TrackedRequest> request = tracker_.end(event.request_id);
  if (!request || !event.natural_end || event.now == kNever) return;
  if (!params_.streaming_mode) {
    note_ttft(*request, event.now);
    return;
  }
  // The engine's own count of tokens, where it gives one: a piece may hold several.
  const uint64_t tokens =
      event.has_usage && event.completion_tokens > 0 ? event.completion_tokens : request->chunks;
  if (request->first_token_at == kNever || tokens < 2) return;
  const double tpot = to_millis(event.now - request->first_token_at) / static_cast<double>(tokens - 1);
  models_->learn_tpot(request->endpoint_class, request->inputs, tpot);
  tpot_error_.set(models_->errors().tpot_ms);
  if (request->tpot_objective_ms > 0 && tpot > request->tpot_objective_ms) tpot_violations_.add();
}

std::optional<std::string> PredictedLatencyProducer::dump_state() const {
  const std::map<EndpointSlot, RequestTracker::Running> endpoints = tracker_.endpoints();
  std::string out = "{\"endpoints\":[";
  size_t count = 0;
  for (const auto& [slot, running] : endpoints) {
    if (count == kMaxEndpointsDumped) break;
    if (count++ > 0) out += ',';
    out += "{\"slot\":" + std::to_string(slot) + ",\"runningRequests\":" + std::to_string(running.requests) +
           ",\"minTpotSlo\":";
    append_number(out, running.min_tpot_objective_ms);
    out += '}';
  }
  out += "],\"totalEndpoints\":" + std::to_string(endpoints.size()) +
         ",\"maxEndpoints\":" + std::to_string(kMaxEndpointsDumped) + ",\"truncated\":";
  out += endpoints.size() > kMaxEndpointsDumped ? "true" : "false";
  out += ",\"trackedRequests\":" + std::to_string(tracker_.size()) + "}";
  return out;
}

}  // namespace penstock::scheduling
