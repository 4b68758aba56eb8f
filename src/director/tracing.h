#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "director/decision_log.h"
#include "director/director.h"
#include "telemetry/tracer.h"

// The spans of a request as both doors make them; names and scopes are the reference's.
//
//   gateway.request                 begin_trace() to the request's end
//   └ gateway.request_orchestration Director::decide(), decide_again()
//     └ run_scheduler_profile       each profile run
//       ├ filter_endpoints
//       ├ llm_d.epp.scoring
//       │ └ llm_d.epp.scorer.<type> each scorer
//       └ pick_endpoints
namespace penstock::director {

inline constexpr std::string_view kHandlersScope = "llm-d-router/pkg/epp/handlers";
inline constexpr std::string_view kRequestControlScope = "llm-d-router/pkg/epp/requestcontrol";

// The caller's context out of its header fields (www.w3.org/TR/trace-context): the values of several
// tracestate fields are one list, in their order; of several traceparent fields none counts. Views into the
// fields, which must outlive it.
class CallerContext {
 public:
  void add(std::string_view lower_name, std::string_view value);
  std::string_view traceparent() const { return parents_ == 1 ? traceparent_ : std::string_view(); }
  std::string_view tracestate() const { return joined_.empty() ? tracestate_ : joined_; }

 private:
  std::string_view traceparent_;
  size_t parents_ = 0;
  std::string_view tracestate_;
  std::string joined_;  // of more than one field
};

// As the request's headers are there, before the decision; nothing when `tracer` is nullptr. Afterwards
// request.trace.traceparent() and tracestate() are what goes on in place of the caller's.
// `fields` is a range of header fields with lower-case names.
template <typename Fields>
void begin_trace(telemetry::Tracer* tracer, Request& request, const Fields& fields) {
  if (tracer == nullptr) return;
  CallerContext caller;
  for (const auto& field : fields) caller.add(field.name, field.value);
  request.trace.start(*tracer, caller.traceparent(), caller.tracestate(), "gateway.request",
                      telemetry::SpanKind::kServer, kHandlersScope);
}

// Says how a decision ended in its span, gateway.request_orchestration.
void end_orchestration(telemetry::SpanScope& span, const Request& request, const Status& status);

// Ends the trace of a request, if there is one. Observer::end() does so for requests it was started for; only
// requests that end before need it. The span's status is an error for an error of ours, for an answer other
// than 200, and for one that broke off.
void end_trace(Request& request, std::string_view method, std::string_view path, const Outcome& outcome,
               const Error* error);

}  // namespace penstock::director
