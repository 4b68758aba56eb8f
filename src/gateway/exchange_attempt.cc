#include "gateway/exchange.h"

#include "gateway/framing.h"

namespace penstock::gateway {

using io::Task;

RequestRules Exchange::rules_of_client() {
  RequestRules rules;
  rules.request_id = request_id_;
  rules.traceparent = state_.request.trace.traceparent();
  rules.tracestate = state_.request.trace.tracestate();
  state_.peer_ip = part_.peer_ip(http_.connection());
  rules.peer_ip = state_.peer_ip;
  rules.scheme = http_.connection().tls ? "https" : "http";
  return rules;
}

Task<void> Exchange::attempt(PoolPart& pool, const Endpoint& endpoint) {
  ++attempts_;
  const UpstreamSettings& settings = *upstream_;
  const io::RequestHead& head = http_.request();
  const director::Request& request = state_.request;
  RequestRules rules = rules_of_client();
  rules.drop_credentials = keys_ != nullptr || !settings.forward_client_authorization;
  rules.authorization = settings.authorization;
  rules.drop_accept_encoding = request.restore_model;
  rules.host = endpoint.host_port;
  state_.fields.clear();
  request_fields(head, rules, state_.scratch, state_.fields);
  apply_edits(request.request_edits, state_.fields);
  state_.pieces.clear();
  uint64_t length = body_.size;
  if (!request.rewritten.pieces.empty()) {
    length = request.rewritten.size;
    for (const std::string_view piece : request.rewritten.pieces) {
      if (!piece.empty()) state_.pieces.push_back(piece);
    }
  } else if (length != 0) {
    state_.pieces.push_back(body_.view());
  }

  io::HttpRequest message;
  message.method = head.method;
  message.target = head.target;
  message.fields = state_.fields;
  const bool bodyless = length == 0 && (head.method == "GET" || head.method == "HEAD");
  message.framing = bodyless ? io::BodyFraming::none() : io::BodyFraming::of_length(length);
  message.body = state_.pieces;
  io::HttpCallOptions options;
  options.connect_timeout = settings.deadlines.connect;
  options.first_byte_timeout = settings.deadlines.first_byte;
  options.idle_timeout = settings.deadlines.idle;
  options.token = state_.cancel.token();

  for (;;) {
    answer_ = nullptr;
    sent_ = false;
    Result<io::HttpCall> started =
        co_await pool.client.start(pool.destination(endpoint, upstream_), message, options);
    if (!started.ok()) {
      failure_ = std::move(started).error();
      co_return;
    }
    call_ = *std::move(started);
    sent_ = true;
    Result<const io::ResponseHead*> answer = co_await call_.response();
    if (answer.ok()) {
      answer_ = *answer;
      co_return;
    }
    failure_ = std::move(answer).error();
    if (!call_.failed_stale() || options.fresh_connection) co_return;
    // The engine closed the idle connection as the request came: once more, on a fresh one.
    options.fresh_connection = true;
    call_.close();
    pool_->metrics.retries.with({pool_->name, "stale_connection"}).add();
  }
}

void Exchange::note_failure(bool cancelled) {
  director::RequestHealth& health = state_.request.health;
  const TimePoint now = core_.clock.now();
  if (cancelled || failure_.code == ErrorCode::kCancelled || failure_.code == ErrorCode::kResourceExhausted) {
    health.drop(now);
    return;
  }
  using director::FailureKind;
  health.fail(!sent_                                        ? FailureKind::kConnect
              : failure_.code == ErrorCode::kGatewayTimeout ? FailureKind::kTimeout
                                                            : FailureKind::kReset,
              now);
}

bool Exchange::choose_another(PoolPart& pool, std::string_view reason) {
  if (attempts_ >= upstream_->attempts || excluded_count_ == kMaxExcluded) return false;
  if (client_gone() || state_.total_expired) return false;
  excluded_[excluded_count_++] = state_.request.endpoint->slot;
  const std::string_view winner = state_.request.record.winner;
  const std::string_view address = state_.request.record.winner_host_port;
  if (!pool.director.decide_again(state_.request, std::span(excluded_).first(excluded_count_)).ok()) {
    // What the client gets is still the failed endpoint's answer.
    state_.request.record.winner = winner;
    state_.request.record.winner_host_port = address;
    return false;
  }
  pool_->metrics.retries.with({pool_->name, reason}).add();
  return true;
}

Exchange::Next Exchange::after_attempt(PoolPart& pool) {
  if (answer_ == nullptr) {
    const bool cancelled = client_gone() || state_.total_expired;
    note_failure(cancelled);
    call_.close();
    // Only what certainly never reached an engine may go to another one.
    if (!sent_ && !cancelled && choose_another(pool, "connect")) return Next::kAgain;
    refusal_ = !sent_                                        ? "connect"
               : failure_.code == ErrorCode::kGatewayTimeout ? "first_byte_timeout"
                                                             : "engine_error";
    return Next::kFail;
  }
  if (director::is_failure_status(answer_->status))
    state_.request.health.fail_status(answer_->status, call_.content_length() == uint64_t{0},
                                      core_.clock.now());
  if (answer_->status == 503 && choose_another(pool, "status_503")) {
    call_.close();
    return Next::kAgain;
  }
  return Next::kAnswer;
}

}  // namespace penstock::gateway
