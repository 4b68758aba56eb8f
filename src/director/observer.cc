#include "director/observer.h"

#include <array>
#include <charconv>

#include "base/strings.h"
#include "director/stored_response.h"
#include "director/tracing.h"
#include "protocol/errors.h"

namespace penstock::director {

// Keeps what ResponseHooks add.
class Observer::Collector final : public ResponseEdits {
 public:
  explicit Collector(Observer& observer) : observer_(observer) {}
  void set_header(std::string_view name, std::string_view value) override {
    if (observer_.headers_.size() < HeaderEdits::kMaxEdits)
      observer_.headers_.push_back({std::string(name), std::string(value)});
  }
  void set_metadata(std::string_view ns, std::string_view name, double value) override {
    if (observer_.metadata_.size() < HeaderEdits::kMaxEdits)
      observer_.metadata_.push_back({std::string(ns), std::string(name), value});
  }

 private:
  Observer& observer_;
};

void Observer::tell(ResponseEvent::Kind kind, TimePoint now, bool natural_end, const Served& served) {
  if (request_->policy == nullptr || request_->policy->response_hooks.empty()) return;
  ResponseEvent event;
  event.kind = kind;
  event.request_number = request_->inference.number;
  event.request_id = request_->inference.request_id;
  event.endpoint = request_->endpoint.get();
  event.streaming = is_event_stream();
  event.status = status_;
  event.now = now;
  event.natural_end = natural_end;
  event.has_lb_metadata = served.has_lb_metadata;
  event.served_endpoint = served.endpoint;
  if (kind == ResponseEvent::Kind::kEnd && reads_ && reader_.usage() != nullptr) {
    const protocol::Usage& usage = *reader_.usage();
    event.has_usage = true;
    event.prompt_tokens = usage.prompt_tokens;
    event.completion_tokens = usage.completion_tokens;
    event.total_tokens = usage.total_tokens;
    event.cached_tokens = usage.cached_tokens;
  }
  Collector collector(*this);
  for (const ResponseHook* hook : request_->policy->response_hooks) hook->on_response(event, collector);
}

void Observer::append_header_edits(std::vector<HeaderEdits::Edit>& out) const {
  out.insert(out.end(), request_->response_edits.begin(), request_->response_edits.end());
  for (const Header& header : headers_) out.push_back({header.name, header.value, false});
}

void Observer::start(Pool& pool, Request& request, AccessLog* access_log, size_t loop) {
  pool_ = &pool;
  request_ = &request;
  access_log_ = access_log;
  loop_ = loop;
  reads_ = false;
  status_ = 0;
  takes_events_ = false;
  learns_response_ = false;
  maker_.reset();
  bytes_out_ = 0;
  first_token_at_ = kNever;
  last_piece_at_ = kNever;
  ended_ = false;
  hooks_ended_ = false;
  headers_.clear();
  metadata_.clear();
}

void Observer::head(int status, std::string_view content_type, std::string_view content_encoding,
                    TimePoint now, const Served& served) {
  status_ = status;
  Request& request = *request_;
  if (request.parsed.skip_response) {
    tell(ResponseEvent::Kind::kHead, now, false, served);
    return;
  }
  protocol::ResponseReader::Options options;
  options.api = request.inference.api;
  if (request.restore_model) {
    options.served_model = request.inference.target_model;
    options.client_model = request.inference.incoming_model;
  }
  learns_response_ = request.learns_response && status < 300;
  if (learns_response_) {
    options.max_id_bytes = ResponseHolders::kMaxIdBytes;
    maker_ = request.endpoint;
  }
  if (request.inference.method == "DELETE" && status < 300)
    pool_->responses.forget(stored_response_id(request.inference.method, request.inference.path));
  reads_ = true;
  reader_.start(options);
  reader_.begin(status, content_type, content_encoding);
  takes_events_ =
      reader_.is_event_stream() && (content_encoding.empty() || ascii_iequals(content_encoding, "identity"));
  tell(ResponseEvent::Kind::kHead, now, false, served);
}

void Observer::piece(std::string_view piece, TimePoint now, std::vector<std::string_view>& out) {
  if (bytes_out_ == 0 && !piece.empty()) {
    request_->prefill_load.release();
    if (request_->tokens_until_first_byte) {
      request_->load.release_tokens();
      request_->stage_load.release_tokens();
    }
  }
  bytes_out_ += piece.size();
  if (!reads_) {
    out.push_back(piece);
    if (first_token_at_ == kNever && !piece.empty()) note_first_token(now);
    if (!piece.empty()) request_->health.output(now);
    last_piece_at_ = now;
    return;
  }
  reader_.feed(piece, out);
  if (learns_response_) note_response(now);
  // Streams may begin with events that carry no output.
  if (first_token_at_ == kNever) {
    if (!reader_.is_event_stream() ? !piece.empty() : reader_.first_token_seen()) note_first_token(now);
  } else if (reader_.is_event_stream() && request_->series != nullptr) {
    request_->series->itl->observe(to_seconds(now - last_piece_at_));
  }
  last_piece_at_ = now;
  if (first_token_at_ != kNever) request_->health.output(now);
  if (first_token_at_ != kNever) tell(ResponseEvent::Kind::kChunk, now, false, {});
}

void Observer::note_response(TimePoint now) {
  const std::string_view id = reader_.response_id();
  if (id.empty()) return;
  learns_response_ = false;
  if (maker_ != nullptr) pool_->responses.note(id, *maker_, now);
}

void Observer::note_first_token(TimePoint now) {
  first_token_at_ = now;
  request_->record.first_token_at = now;
  pool_->metrics.moments[3]->observe(to_seconds(now - request_->record.arrived_at));
}

void Observer::body_end(std::vector<std::string_view>& out, bool natural) {
  if (reads_) reader_.finish(out);
  if (natural && !is_failure_status(status_))
    request_->health.succeed(last_piece_at_ == kNever ? request_->record.endpoint_chosen_at : last_piece_at_);
  if (hooks_ended_) return;
  hooks_ended_ = true;
  tell(ResponseEvent::Kind::kEnd, last_piece_at_, natural, {});
}

void Observer::end(const End& end, TimePoint now) {
  if (ended_) return;
  ended_ = true;
  Request& request = *request_;
  request.health.drop(now);
  request.release_load();
  if (!hooks_ended_) {
    hooks_ended_ = true;
    tell(ResponseEvent::Kind::kEnd, now, false, {});
  }

  Outcome outcome;
  outcome.status = end.status;
  outcome.reason = end.reason;
  outcome.attempts = end.attempts;
  outcome.first_token_at = first_token_at_;
  outcome.ended_at = now;
  if (reads_ && reader_.usage() != nullptr) {
    const protocol::Usage& usage = *reader_.usage();
    outcome.prompt_tokens = usage.prompt_tokens;
    outcome.output_tokens = usage.completion_tokens;
    outcome.cached_tokens = usage.cached_tokens.value_or(0);
  }
  bytes_out_ += end.own_bytes;
  count(end, now);
  pool_->log.finish(request.log_handle, outcome);
  if (access_log_ != nullptr) {
    AccessLog::Line line;
    line.request_id = request.inference.request_id;
    line.identity = request.inference.identity;
    line.method = request.inference.method;
    line.path = request.inference.path;
    line.model = request.inference.incoming_model;
    line.target_model = request.inference.target_model;
    line.pool = pool_->name;
    line.endpoint = request.record.winner;
    line.fallback = fallback_state_name(request.record.fallback);
    line.arrived_at = request.record.arrived_at;
    line.bytes_out = bytes_out_;
    line.outcome = &outcome;
    access_log_->append(loop_, end.wall, line);
  }
  reads_ = false;
  maker_.reset();
  end_trace(request, request.inference.method, request.inference.path, outcome, end.error);
}

void Observer::count(const End& end, TimePoint now) {
  const Request& request = *request_;
  const RequestSeries* series = request.series;
  if (end.error != nullptr || status_ >= 400) {
    std::array<char, 8> digits{};
    std::string_view code;
    if (end.error != nullptr) {
      code = protocol::error_status(end.error->code).name;
    } else {
      const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), status_);
      code = {digits.data(), static_cast<size_t>(written.ptr - digits.data())};
    }
    if (series != nullptr) {
      pool_->metrics.errors.with({series->model, series->target, series->fairness_id, series->priority, code})
          .add();
    } else {
      pool_->metrics.errors
          .with({pool_->metrics.models.admit(request.inference.incoming_model), "", "", "0", code})
          .add();
    }
  }
  if (series == nullptr || !request.decided) return;
  if (series->running != nullptr) series->running->add(-1);
  if (end.error != nullptr || end.reason != "ok") return;

  const double total = to_seconds(now - request.record.arrived_at);
  if (total > 0) series->duration->observe(total);
  series->response_bytes->observe(static_cast<double>(bytes_out_));
  const bool streaming = reads_ && reader_.is_event_stream();
  const double ttft = to_seconds(first_token_at_ - request.record.arrived_at);
  if (first_token_at_ != kNever) (streaming ? series->ttft_streaming : series->ttft_unary)->observe(ttft);
  if (!reads_ || reader_.usage() == nullptr) return;
  const protocol::Usage& usage = *reader_.usage();
  if (usage.prompt_tokens > 0) series->input_tokens->observe(static_cast<double>(usage.prompt_tokens));
  if (usage.cached_tokens) series->cached_tokens->observe(static_cast<double>(*usage.cached_tokens));
  if (usage.completion_tokens > 0) {
    const auto tokens = static_cast<double>(usage.completion_tokens);
    series->output_tokens->observe(tokens);
    series->ntpot->observe(total / tokens);
    if (streaming && first_token_at_ != kNever && usage.completion_tokens > 1)
      series->tpot->observe((total - ttft) / (tokens - 1));
  }
}

}  // namespace penstock::director
