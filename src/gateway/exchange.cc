#include "gateway/exchange.h"

#include "assembly/await_questions.h"
#include "director/tracing.h"
#include "io/step.h"
#include "protocol/errors.h"

namespace penstock::gateway {

using io::Task;

Task<void> Exchange::run() {
  if (!admit()) {
    co_await fail(refusal_);
    co_return;
  }
  if (routed_by_model()) {
    if (!co_await read_body()) co_return;
    if (!read_model()) {
      co_await fail(refusal_);
      co_return;
    }
  }
  switch (find_target()) {
    case Target::kRefused:
      co_await fail(refusal_);
      co_return;
    case Target::kModels:
      co_await serve_pool_models();
      co_return;
    case Target::kService:
      co_await serve_service(*core_.services[backend_]);
      co_return;
    case Target::kPool:
      break;
  }
  PoolPart& pool = *part_.pools[backend_];
  if (!co_await read_body()) co_return;
  co_await io::InStep(part_.loop, io::Step::kDecide);
  begin_decision(pool);
  const bool waits = pool.director.ask(state_.request, decision_input());
  if (waits) {
    start_deadline(upstream_->deadlines.total);
    co_await assembly::await_questions(part_.loop, state_.request, state_.cancel.token());
    if (client_gone()) {
      // Nobody waits for the decision any more: no plugin is told of a request that will not be sent.
      state_.total_timer.disarm();
      failure_ = Error{ErrorCode::kClientClosed, "the client left before the request was decided"};
      pool.director.refuse(state_.request, decision_input(), failure_);
      end(499, gone_reason(), nullptr);
      http_.abort();
      co_return;
    }
    co_await io::InStep(part_.loop, io::Step::kDecide);
  }
  // Whoever is out of time by now is decided, for the record, and goes no further.
  if (!decide(pool)) {
    state_.total_timer.disarm();
    co_await fail(refusal_);
    co_return;
  }
  if (!waits) start_deadline(upstream_->deadlines.total);
  co_await io::InStep(part_.loop, io::Step::kForward);
  Next next = Next::kAgain;
  while (next == Next::kAgain) {
    const std::shared_ptr<const Endpoint> endpoint = state_.request.endpoint;
    co_await attempt(pool, *endpoint);
    next = after_attempt(pool);
  }
  if (next == Next::kFail) {
    co_await fail_waiting(refusal_);
  } else {
    co_await stream_back();
  }
  state_.total_timer.disarm();
}

void Exchange::start_deadline(Duration otherwise) {
  Duration total = rule_ == nullptr ? otherwise : rule_->request_timeout.value_or(otherwise);
  const Duration backend =
      rule_ == nullptr ? Duration::zero() : rule_->backend_timeout.value_or(Duration::zero());
  if (backend > Duration::zero() && (total == Duration::zero() || backend < total)) total = backend;
  state_.total_expired = false;
  state_.cancel.reset();
  state_.cancel.follow(http_.cancel_token());
  if (total > Duration::zero()) state_.total_timer.arm_coarse(total, &Exchange::total_expired, &state_);
}

void Exchange::total_expired(void* context) {
  auto* state = static_cast<ExchangeState*>(context);
  state->total_expired = true;
  state->cancel.cancel();
}

Task<void> Exchange::fail_waiting(std::string_view reason) {
  Error& error = failure_;
  if (state_.total_expired && !http_.head_written()) {
    failure_ = Error{ErrorCode::kGatewayTimeout, "the request did not end before its deadline"};
    co_await fail("deadline");
    co_return;
  }
  if (client_gone() || error.code == ErrorCode::kClientClosed) {
    end(499, gone_reason(), nullptr);
    http_.abort();
    co_return;
  }
  // Nobody but us could have cancelled: the listener is being stopped.
  if (error.code == ErrorCode::kCancelled) {
    error = Error{ErrorCode::kServiceUnavailable, "the gateway is shutting down", "rejected-shutting-down"};
  } else if (error.code == ErrorCode::kIo) {
    error.code = ErrorCode::kBadGateway;
  } else if (error.code == ErrorCode::kResourceExhausted) {
    error.code = ErrorCode::kServiceUnavailable;
  }
  co_await fail(reason);
}

Task<void> Exchange::fail(std::string_view reason) {
  const Error& error = failure_;
  if (http_.head_written()) {
    http_.abort();
    end(0, reason, &error);
    co_return;
  }
  const std::string_view path = http_.request().path;
  const int status = protocol::error_status(error.code).http_status;
  const std::string body = protocol::error_body(error, api_, path, request_id_);
  std::array<io::HeaderField, 4> fields;
  size_t count = 0;
  fields[count++] = {"x-request-id", request_id_};
  if (!error.dropped_reason.empty()) {
    fields[count++] = {"x-llm-d-request-dropped-reason", error.dropped_reason};
  }
  if (error.code == ErrorCode::kUnauthorized) fields[count++] = {"www-authenticate", "Bearer"};
  if (const auto field = protocol::error_field(error.code)) fields[count++] = {field->name, field->value};
  own_bytes_ = http_.request().method == "HEAD" ? 0 : body.size();
  (void)co_await http_.respond(status, "application/json", body, std::span(fields).first(count));
  end(status, reason, &error);
}

void Exchange::end(int status, std::string_view reason, const Error* error) {
  if (ended_) return;
  ended_ = true;
  now_ = core_.clock.now();
  const auto shown = static_cast<size_t>(status / 100);
  listener_.responses[shown < listener_.responses.size() ? shown : 0]->add();
  if (reason == "client_disconnect") core_.client_disconnects->add();
  const bool logs = core_.access_log != nullptr;
  if (pool_ != nullptr) {
    director::Observer::End how;
    how.status = status;
    how.reason = reason;
    how.error = error;
    how.attempts = attempts_;
    how.own_bytes = own_bytes_;
    if (logs) how.wall = core_.clock.wall_now();
    state_.observer.end(how, now_);
    return;
  }
  const bool traced = state_.request.trace.started();
  if (!logs && !traced) return;
  director::Outcome outcome;
  outcome.status = status;
  outcome.reason = reason;
  outcome.attempts = attempts_;
  outcome.ended_at = now_;
  if (traced) {
    state_.request.inference.request_id = request_id_;
    state_.request.inference.incoming_model = parsed_.model;
    director::end_trace(state_.request, http_.request().method, http_.request().path, outcome, error);
  }
  if (!logs) return;
  director::AccessLog::Line line;
  line.request_id = request_id_;
  line.identity = identity_;
  line.method = http_.request().method;
  line.path = http_.request().path;
  line.model = parsed_.model;
  line.bytes_out = own_bytes_;
  line.fallback = fallback_state_name(FallbackState::kNone);
  line.arrived_at = arrived_at_;
  line.outcome = &outcome;
  core_.access_log->append(part_.loop.index(), core_.clock.wall_now(), line);
}

}  // namespace penstock::gateway
