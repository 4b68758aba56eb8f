#include "director/tracing.h"

namespace penstock::director {

namespace {

void set_text(telemetry::RequestTrace& trace, std::string_view key, std::string_view value) {
  if (!value.empty()) trace.set(key, std::string(value));
}
void set_count(telemetry::RequestTrace& trace, std::string_view key, uint64_t value) {
  if (value != 0) trace.set(key, static_cast<int64_t>(value));
}

}  // namespace

void CallerContext::add(std::string_view lower_name, std::string_view value) {
  if (lower_name == "traceparent") {
    traceparent_ = value;
    ++parents_;
  } else if (lower_name == "tracestate" && !value.empty()) {
    if (tracestate_.empty()) {
      tracestate_ = value;
      return;
    }
    if (joined_.empty()) joined_ = tracestate_;
    joined_ += ',';
    joined_ += value;
  }
}

void end_orchestration(telemetry::SpanScope& span, const Request& request, const Status& status) {
  if (!span) return;
  span.set("target_model", std::string(request.inference.target_model));
  span.set("request_prio", int64_t{request.inference.priority});
  if (!status.ok()) span.fail(status.error().message);
}

void end_trace(Request& request, std::string_view method, std::string_view path, const Outcome& outcome,
               const Error* error) {
  if (!request.trace.started()) return;
  if (telemetry::RequestTrace* trace = request.trace.recording()) {
    set_text(*trace, "http.request.method", method);
    set_text(*trace, "url.path", path);
    if (outcome.status != 0) trace->set("http.response.status_code", int64_t{outcome.status});
    set_text(*trace, "gen_ai.request.id", request.inference.request_id);
    set_text(*trace, "gen_ai.request.model", request.inference.incoming_model);
    set_text(*trace, "gen_ai.response.model", request.inference.target_model);
    set_count(*trace, "gen_ai.usage.input_tokens", outcome.prompt_tokens);
    set_count(*trace, "gen_ai.usage.output_tokens", outcome.output_tokens);
    set_text(*trace, "penstock.pool", request.record.pool);
    set_text(*trace, "penstock.endpoint", request.record.winner);
    set_text(*trace, "penstock.reason", outcome.reason);
    set_count(*trace, "penstock.attempts", outcome.attempts);
    set_count(*trace, "penstock.cached_tokens", outcome.cached_tokens);
    if (outcome.first_token_at != kNever)
      trace->set("penstock.ttft_ms", to_seconds(outcome.first_token_at - request.record.arrived_at) * 1e3);
    if (request.record.fallback != FallbackState::kNone)
      set_text(*trace, "penstock.fallback", fallback_state_name(request.record.fallback));
    if (error != nullptr) {
      trace->fail(error->message);
    } else if (outcome.status != 0 && outcome.status != 200) {
      trace->fail("status " + std::to_string(outcome.status));
    } else if (outcome.reason != "ok" && outcome.reason != "unobserved" &&
               outcome.reason != "left_response_phase") {
      trace->fail(outcome.reason);
    }
  }
  request.trace.finish();
}

}  // namespace penstock::director
