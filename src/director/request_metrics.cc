#include "director/request_metrics.h"

#include <cstring>

#include "scheduling/scheduler.h"

namespace penstock::director {

using telemetry::FamilyOptions;
using telemetry::MetricRegistry;
using telemetry::Twin;
namespace buckets = telemetry::buckets;

namespace {

constexpr std::string_view kModel = "model_name";
constexpr std::string_view kTarget = "target_model_name";
constexpr std::string_view kFairness = "fairness_id";
constexpr std::string_view kPriority = "priority";

FamilyOptions mfp(std::string_view name, std::string_view help, std::span<const double> bounds,
                  std::string_view twin) {
  FamilyOptions options{name, help, {kModel, kTarget, kFairness, kPriority}, bounds};
  if (!twin.empty()) options.twins.push_back(Twin{twin, {{kModel, kModel}, {kTarget, kTarget}}});
  return options;
}

telemetry::Family<telemetry::Counter>& make_total(MetricRegistry& registry) {
  FamilyOptions options = mfp("llm_d_epp_request_total", "Total number of processed requests.", {}, "");
  options.twins.push_back(Twin{"inference_objective_request_total",
                               {{kModel, kModel}, {kTarget, kTarget}, {kPriority, kPriority}}});
  return registry.counter(options);
}

telemetry::Family<telemetry::Counter>& make_errors(MetricRegistry& registry) {
  FamilyOptions options = mfp("llm_d_epp_request_error_total", "Total number of failed requests.", {}, "");
  options.labels.push_back("error_code");
  options.twins.push_back(Twin{"inference_objective_request_error_total",
                               {{kModel, kModel}, {kTarget, kTarget}, {"error_code", "error_code"}}});
  return registry.counter(options);
}

telemetry::Family<telemetry::Gauge>& make_running(MetricRegistry& registry) {
  FamilyOptions options =
      mfp("llm_d_epp_request_running", "Number of requests being answered right now.", {}, "");
  options.twins.push_back(Twin{"inference_objective_running_requests", {{kModel, kModel}}});
  return registry.gauge(options);
}

telemetry::Family<telemetry::Histogram>& make_ttft(MetricRegistry& registry) {
  FamilyOptions options =
      mfp("llm_d_epp_request_ttft_seconds",
          "Time from the receipt of a request to the first output of a stream, or the first byte of another "
          "answer.",
          buckets::ttft(), "");
  options.labels.push_back("streaming");
  return registry.histogram(options);
}

telemetry::Family<telemetry::Counter>& make_attempts(MetricRegistry& registry) {
  FamilyOptions options{"llm_d_epp_scheduler_attempts_total",
                        "Scheduling attempts by result and chosen endpoint.",
                        {"status", "target_model_name", "endpoint_name", "namespace", "port"}};
  options.twins.push_back(Twin{"inference_extension_scheduler_attempts_total",
                               {{"status", "status"},
                                {"target_model_name", "target_model_name"},
                                {"pod_name", "endpoint_name"},
                                {"namespace", "namespace"},
                                {"port", "port"}}});
  return registry.counter(options);
}

std::span<const double> processing_bounds() {
  static constexpr std::array<double, 16> kBounds{.0005, .001, .002, .005, .01, .015, .025, .04,
                                                  .06,   .1,   .25,  .5,   1,   2.5,  5,    10};
  return kBounds;
}

std::span<const double> response_bounds() {
  static constexpr std::array<double, 15> kBounds{.0001, .00025, .0005, .001, .0025, .005, .01, .025,
                                                  .05,   .1,     .25,   .5,   1,     2.5,  5};
  return kBounds;
}

}  // namespace

RequestMetrics::RequestMetrics(MetricRegistry& registry)
    : total(make_total(registry)),
      errors(make_errors(registry)),
      duration(registry.histogram(mfp("llm_d_epp_request_duration_seconds",
                                      "Time from the receipt of a request to the end of its answer.",
                                      buckets::latency(), "inference_objective_request_duration_seconds"))),
      request_bytes(registry.histogram(mfp("llm_d_epp_request_size_bytes", "Size of request bodies.",
                                           buckets::request_bytes(), "inference_objective_request_sizes"))),
      response_bytes(
          registry.histogram(mfp("llm_d_epp_response_size_bytes", "Size of answers.",
                                 buckets::response_bytes(), "inference_objective_response_sizes"))),
      input_tokens(registry.histogram(mfp("llm_d_epp_request_input_tokens",
                                          "Prompt tokens of requests, as the engine counted them.",
                                          buckets::tokens_in(), "inference_objective_input_tokens"))),
      output_tokens(registry.histogram(mfp("llm_d_epp_request_output_tokens",
                                           "Generated tokens of requests, as the engine counted them.",
                                           buckets::tokens_out(), "inference_objective_output_tokens"))),
      cached_tokens(registry.histogram(
          mfp("llm_d_epp_request_cached_tokens", "Prompt tokens that the engine found in its cache.",
              buckets::tokens_in(), "inference_objective_prompt_cached_tokens"))),
      running(make_running(registry)),
      ntpot(registry.histogram(mfp("llm_d_epp_request_ntpot_seconds",
                                   "Request duration divided by generated tokens.", buckets::ntpot(),
                                   "inference_objective_normalized_time_per_output_token_seconds"))),
      ttft(make_ttft(registry)),
      tpot(registry.histogram(mfp("llm_d_epp_request_streaming_tpot_seconds",
                                  "Time per output token after the first, of streamed answers.",
                                  buckets::tpot(), ""))),
      itl(registry.histogram(mfp("llm_d_epp_request_streaming_itl_seconds",
                                 "Time between the pieces of streamed answers.", buckets::itl(), ""))),
      attempts(make_attempts(registry)),
      rewrites(registry.counter({"llm_d_epp_model_rewrite_decisions_total",
                                 "Model rewrites by rule, requested and chosen model.",
                                 {"model_rewrite_name", "model_name", "target_model"},
                                 {},
                                 10000,
                                 {Twin{"inference_extension_model_rewrite_decisions_total",
                                       {{"model_rewrite_name", "model_rewrite_name"},
                                        {"model_name", "model_name"},
                                        {"target_model", "target_model"}}}}})),
      fallbacks(registry.counter({"penstock_decision_fallback_total",
                                  "Decisions made in a fallback state, by pool and state.",
                                  {"pool", "state"}})),
      fallback_state(registry.gauge({"penstock_decision_fallback_state",
                                     "1 for the fallback state that the pool's latest decision met, 0 for "
                                     "those it was in before.",
                                     {"pool", "state"}})),
      fallback_transitions(
          registry.counter({"penstock_decision_fallback_transitions_total",
                            "Times that a pool's decisions entered a fallback state, or none again.",
                            {"pool", "state"}})),
      retries(registry.counter({"penstock_request_retries_total",
                                "Requests sent again, by pool and why the attempt before failed.",
                                {"pool", "reason"}})),
      endpoint_failures(registry.counter(
          {"penstock_endpoint_failures_total",
           "Requests that an endpoint did not serve, as outlier detection counts them, by pool and kind: "
           "connect, reset, status (5xx), timeout, stall.",
           {"pool", "kind"}})),
      ejections(registry.counter({"penstock_endpoint_ejections_total",
                                  "Times an endpoint was ejected for a while, by pool and reason: the kind "
                                  "of the last failure, or failure_ratio.",
                                  {"pool", "reason"}})),
      ejections_refused(
          registry.counter({"penstock_endpoint_ejections_refused_total",
                            "Times an endpoint stayed because no more of the pool may be out, by pool.",
                            {"pool"}})),
      endpoint_returns(registry.counter(
          {"penstock_endpoint_returns_total", "Times an ejected endpoint came back, by pool.", {"pool"}})),
      responses_held(registry.gauge(
          {"penstock_sticky_responses", "Stored responses whose endpoint is known, by pool.", {"pool"}})),
      response_lookups(registry.counter(
          {"penstock_sticky_response_lookups_total",
           "Requests that named a stored response, by pool and result: found, unknown, or gone (its endpoint "
           "left).",
           {"pool", "result"}})),
      responses_forgotten(
          registry.counter({"penstock_sticky_responses_forgotten_total",
                            "Stored responses whose endpoint was forgotten, by pool and reason: "
                            "capacity, expired, deleted.",
                            {"pool", "reason"}})),
      plugin_seconds(scheduling::plugin_durations(registry)),
      corrected_scores(scheduling::corrected_scores(registry)),
      scheduler_seconds(registry
                            .histogram({"llm_d_epp_scheduler_e2e_duration_seconds",
                                        "Time the scheduler took for one request.",
                                        {},
                                        buckets::short_seconds(),
                                        1,
                                        {Twin{"inference_extension_scheduler_e2e_duration_seconds", {}}}})
                            .with({})),
      processing_seconds(registry
                             .histogram({"llm_d_epp_request_processing_duration_seconds",
                                         "Time from the receipt of a request until it was on its way.",
                                         {},
                                         processing_bounds()})
                             .with({})),
      decision_seconds(registry
                           .histogram({"penstock_decision_duration_seconds",
                                       "Time of one whole decision: parse, produce, schedule, reserve.",
                                       {},
                                       buckets::micro_seconds()})
                           .with({})),
      response_seconds(registry
                           .histogram({"llm_d_epp_response_processing_duration_seconds",
                                       "Time spent reading an answer while it passed; answers that are no "
                                       "event streams only.",
                                       {},
                                       response_bounds()})
                           .with({})) {
  auto& family = registry.histogram({"penstock_request_moment_seconds",
                                     "When a request reached each of its moments, since it arrived.",
                                     {"moment"},
                                     buckets::ttft()});
  moments = {&family.with({"pool_chosen"}), &family.with({"decision_started"}),
             &family.with({"endpoint_chosen"}), &family.with({"first_token"})};
}

const RequestSeries& SeriesCache::find(std::string_view model, std::string_view target,
                                       std::string_view fairness_id, int priority) {
  key_.assign(model);
  key_ += '\0';
  key_ += target;
  key_ += '\0';
  key_ += fairness_id;
  key_.append(reinterpret_cast<const char*>(&priority), sizeof priority);
  if (last_ != nullptr && key_ == last_key_) return *last_;
  auto it = series_.find(key_);
  if (it == series_.end()) {
    // Requests in flight hold pointers into the cache, so it never shrinks: names beyond the budget share
    // one entry by their folded labels.
    const bool full = series_.size() >= kMaxCached;
    const std::string_view m = full ? "other" : metrics_.models.admit(model);
    const std::string_view t = full ? "other" : metrics_.models.admit(target);
    const std::string_view f = full ? "other" : metrics_.fairness_ids.admit(fairness_id);
    if (m != model || t != target || f != fairness_id) {
      key_.assign(m);
      key_ += '\0';
      key_ += t;
      key_ += '\0';
      key_ += f;
      key_.append(reinterpret_cast<const char*>(&priority), sizeof priority);
      it = series_.find(key_);
    }
    if (it == series_.end()) {
      auto made = std::make_unique<RequestSeries>();
      made->priority = std::to_string(priority);
      made->model = m;
      made->target = t;
      made->fairness_id = f;
      const std::string_view p = made->priority;
      made->total = &metrics_.total.with({m, t, f, p});
      made->running = m.empty() ? nullptr : &metrics_.running.with({m, t, f, p});
      made->duration = &metrics_.duration.with({m, t, f, p});
      made->request_bytes = &metrics_.request_bytes.with({m, t, f, p});
      made->response_bytes = &metrics_.response_bytes.with({m, t, f, p});
      made->input_tokens = &metrics_.input_tokens.with({m, t, f, p});
      made->output_tokens = &metrics_.output_tokens.with({m, t, f, p});
      made->cached_tokens = &metrics_.cached_tokens.with({m, t, f, p});
      made->ntpot = &metrics_.ntpot.with({m, t, f, p});
      made->ttft_streaming = &metrics_.ttft.with({m, t, f, p, "true"});
      made->ttft_unary = &metrics_.ttft.with({m, t, f, p, "false"});
      made->tpot = &metrics_.tpot.with({m, t, f, p});
      made->itl = &metrics_.itl.with({m, t, f, p});
      it = series_.emplace(key_, std::move(made)).first;
    }
  }
  last_ = it->second.get();
  last_key_ = it->first;
  return *last_;
}

telemetry::Counter& SeriesCache::attempt(std::string_view target, const Endpoint& endpoint) {
  if (endpoint.slot >= attempts_.size()) attempts_.resize(endpoint.slot + size_t{1});
  Attempt& cached = attempts_[endpoint.slot];
  if (cached.counter == nullptr || cached.target != target || cached.endpoint_id != endpoint.id) {
    cached.target = target;
    cached.endpoint_id = endpoint.id;
    cached.counter = &metrics_.attempts.with({"success", metrics_.models.admit(target), endpoint.name,
                                              endpoint.ns, std::to_string(endpoint.port)});
  }
  return *cached.counter;
}

}  // namespace penstock::director
