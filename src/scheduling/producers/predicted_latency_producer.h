#pragma once

#include <memory>

#include "inference/plugin.h"
#include "scheduling/producers/latency_models.h"
#include "scheduling/producers/latency_service.h"
#include "scheduling/seen_endpoints.h"
#include "telemetry/metrics.h"

namespace penstock::scheduling {

// `predicted-latency-producer`: what time to the first token and time per output token to expect on each
// endpoint, and how that stands to the request's objectives (x-llm-d-slo-ttft-ms, x-llm-d-slo-tpot-ms; none:
// 0, so the headroom is negative).
//   TTFT valid: TTFT < objective; headroom = objective - TTFT
//   not streamingMode, or the endpoint's role label says "prefill": TPOT valid, headroom 0
//   streamingMode: limit = objective * sloBufferFactor, lowered to that of the tightest request running on
//   the
//     endpoint; TPOT valid: TPOT < limit; headroom = limit - TPOT
// Examples, factor 1, objectives 100 and 30: predicted (50, 20): both valid, 50 and 10; (150, 20): TTFT -50;
// (50, 25) beside a running request with objective 20: TPOT -5.
//   uncertaintyFactor (0, as in the reference): each time counts as prediction + factor * its standard error
//     in both lines, so who is less sure has less headroom. Example, factor 2: (50 +- 20, 20 +- 1): headrooms
//     10 and 8.
//
// Predictions are those of the built-in models (latency_models.h), learnt from the answers of the class of an
// endpoint (its engine and role): in streamingMode from the first piece and the pace of streams, else from
// the time to the whole answer. Only answers with status 200 that came whole teach. With a profile `prefill`,
// TTFT belongs to its endpoint's class and TPOT to the primary one's. A time that its class has not shown 20
// times is not predicted, and nothing is held against the endpoint for it: valid, headroom 0; an endpoint
// with neither has no prediction. An endpoint whose signals are unknown (signal_column.h) is predicted with
// the largest known ones and teaches nothing; what its engine does not export counts as 0.
//
// Whoever predicts, the built-in model of TTFT also tells what a token to prefill costs on endpoints of a
// class.
//
// An external predictor is asked instead where one is named, by predictionServerURL or, as for the reference,
// by the environment (latency_service.h, whose client this uses): one row an endpoint, all of them before the
// decision, and both times are then predicted. It is told what it may learn from where a training server is
// named too. When it gives no answer by predictionDeadline, or a wrong one, the built-in models predict, and
// the decision's record and the metrics say producer_failed.
class PredictedLatencyProducer final : public DataProducer,
                                       public AskingProducer,
                                       public PreRequest,
                                       public ResponseHook,
                                       public EndpointObserver {
 public:
  static constexpr std::string_view kType = "predicted-latency-producer";
  struct Params {
    double buffer_factor = 1;
    double uncertainty_factor = 0;  // standard errors
    int64_t context_ttl_ns = 300'000'000'000;
    bool streaming_mode = false;
    std::string role_label;
    bool predict_in_produce = true;
    std::string prefix_producer;
    std::string load_producer;
    bool encoder_features = false;
    std::string encoder_producer;
    double sampling_mean = 1000;
    int64_t max_decode_samples = 0;
    std::string prediction_url;
    std::string training_url;
    Duration prediction_deadline = std::chrono::milliseconds(400);
  };
  static void bind(config::Binder& b, Params& p);
  static Result<std::unique_ptr<Plugin>> create(Params params, const PluginFactoryContext& context);

  // `service`: the external predictor; nullptr: there is none.
  PredictedLatencyProducer(Params params, std::shared_ptr<LatencyModels> models,
                           std::shared_ptr<LatencyService> service, const Clock& clock, std::string_view name,
                           telemetry::MetricRegistry& metrics);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  bool asks() const override { return service_ != nullptr && params_.predict_in_produce; }
  std::shared_ptr<Question> ask(SchedulingContext& ctx) const override;
  Status produce(SchedulingContext& ctx) const override;
  Status pre_request(SchedulingContext& ctx, const SchedulingResult& result) const override;
  void on_response(const ResponseEvent& event, ResponseEdits& edits) const override;
  void endpoint_removed(const Endpoint& endpoint) const override {
    tracker_.forget(endpoint.slot);
    seen_.forget(endpoint.slot);
  }
  std::optional<std::string> dump_state() const override;

 private:
  // The signals a prediction is made from.
  struct EndpointSignals {
    double waiting_requests = 0;
    double running_requests = 0;
    double kv_usage = 0;
  };
  DataKey key() const { return data_keys::kLatencyPrediction.with_producer(name()); }
  LatencyInputs inputs_of(const SchedulingContext& ctx, Candidate candidate, const EndpointSignals& signals,
                          double prompt_tokens) const;
  // One candidate as an external predictor looks at it.
  LatencyRow row_of(const SchedulingContext& ctx, Candidate candidate, const EndpointSignals& signals) const;
  // The signals of each candidate, unknown ones as the largest known.
  std::span<const EndpointSignals> signals_of(SchedulingContext& ctx) const;
  const LatencyQuestion* question_of(const SchedulingContext& ctx) const;
  std::string_view role_of(const Endpoint& endpoint) const;
  std::string class_of(const Endpoint& endpoint) const;
  void note_ttft(const TrackedRequest& request, TimePoint now) const;
  void teach(const TrackedRequest::Stage& stage, double ttft_ms, double tpot_ms) const;

  Params params_;
  std::shared_ptr<LatencyModels> models_;
  std::shared_ptr<LatencyService> service_;
  const Clock& clock_;
  mutable RequestTracker tracker_;
  DataKey prefix_key_;
  DataKey load_key_;
  DataKey encoder_key_;
  mutable SeenEndpoints seen_;
  AttributeSlot prefix_slot_ = kNoSlot;
  AttributeSlot load_slot_ = kNoSlot;
  AttributeSlot encoder_slot_ = kNoSlot;
  AttributeSlot slot_ = kNoSlot;
  telemetry::Gauge& ttft_error_;
  telemetry::Gauge& tpot_error_;
  telemetry::Gauge& ttft_standard_error_;
  telemetry::Gauge& tpot_standard_error_;
  telemetry::Counter& ttft_violations_;
  telemetry::Counter& tpot_violations_;
};

}  // namespace penstock::scheduling
