#include "gateway/exchange.h"

#include "gateway/framing.h"
#include "io/step.h"
#include "protocol/errors.h"

namespace penstock::gateway {

using io::BodyPiece;
using io::Task;

Task<void> Exchange::stream_back() {
  director::Observer& observer = state_.observer;
  const io::ResponseHead& head = *answer_;
  observer.head(head.status, head.fields.get("content-type"), head.fields.get("content-encoding"),
                core_.clock.now(), {});
  const bool changed = observer.rewrites();
  const int status = head.status;
  state_.fields.clear();
  response_fields(head, {request_id_, endpoint_header(), changed}, state_.fields);
  std::vector<HeaderEdits::Edit> edits;
  observer.append_header_edits(edits);
  apply_edits(edits, state_.fields);
  state_.hold.reset();
  Duration reading{0};
  Status wrote;
  // A stream's head must not wait for its first event, which may be a prefill away. Any other answer's goes
  // with its first bytes: an engine that dies before them is a 502, not a broken 200.
  const bool head_first = observer.is_event_stream();
  for (;;) {
    Result<BodyPiece> piece = BodyPiece{};
    if (!head_first || http_.head_written()) {
      co_await io::InStep(part_.loop, io::Step::kPass);
      piece = co_await call_.read();
      now_ = core_.clock.now();
    }
    if (piece.ok() && !http_.head_written()) {
      wrote =
          http_.write_head(status, state_.fields,
                           response_framing(http_.request().method, status, call_.content_length(), changed));
      if (!wrote.ok()) {
        failure_ = std::move(wrote).error();
        co_await fail("engine_error");
        co_return;
      }
      if (head_first) {
        wrote = co_await http_.flush();
        if (!wrote.ok()) break;
        continue;
      }
    }
    if (!piece.ok() && !http_.head_written()) {
      failure_ = std::move(piece).error();
      note_failure(client_gone() || state_.total_expired);
      call_.close();
      co_await fail_waiting(failure_.code == ErrorCode::kGatewayTimeout ? "idle_timeout" : "engine_died");
      co_return;
    }
    if (!piece.ok()) {
      call_.close();
      failure_ = std::move(piece).error();
      note_failure(client_gone() || state_.total_expired);
      if (client_gone()) {
        end(status, gone_reason(), nullptr);
        co_return;
      }
      Error error = failure_;
      if (state_.total_expired) {
        error = Error{ErrorCode::kGatewayTimeout, "the answer did not end before its deadline"};
      }
      std::string_view reason = "engine_died";
      if (state_.total_expired) {
        reason = "deadline";
      } else if (error.code == ErrorCode::kGatewayTimeout) {
        reason = "idle_timeout";
      }
      if (observer.takes_events()) {
        // What the reader and the hold still have is the beginning of a line that will not end.
        state_.pieces.clear();
        observer.body_end(state_.pieces, false);
        state_.pieces.clear();
        const std::string event = protocol::error_event(error, api_, http_.request().path, request_id_);
        const std::string_view before = state_.hold.before_error();
        if (!before.empty()) state_.pieces.push_back(before);
        state_.pieces.push_back(event);
        own_bytes_ = before.size() + event.size();
        (void)co_await http_.finish(state_.pieces);
      } else {
        http_.abort();
      }
      end(status, reason, &error);
      co_return;
    }
    state_.pieces.clear();
    observer.piece(piece->data, now_, state_.pieces);
    if (!observer.is_event_stream()) reading += core_.clock.now() - now_;
    if (piece->last) {
      observer.body_end(state_.pieces);
      state_.hold.end(state_.pieces);
      wrote = co_await http_.finish(state_.pieces, call_.trailers().all());
      if (!wrote.ok()) break;
      call_.close();
      if (!observer.is_event_stream()) pool_->metrics.response_seconds.observe(to_seconds(reading));
      end(status, "ok", nullptr);
      co_return;
    }
    if (observer.takes_events()) state_.hold.pass(state_.pieces);
    if (state_.pieces.empty()) continue;
    wrote = co_await http_.write(state_.pieces);
    if (!wrote.ok()) break;
  }
  // The client takes nothing any more.
  call_.close();
  http_.abort();
  end(status, gone_reason(), nullptr);
}

Task<void> Exchange::respond_json(int status, std::string_view body) {
  const std::array<io::HeaderField, 1> fields{{{"x-request-id", request_id_}}};
  own_bytes_ = http_.request().method == "HEAD" ? 0 : body.size();
  const Status wrote = co_await http_.respond(status, "application/json", body, fields);
  end(status, wrote.ok() ? "ok" : gone_reason(), nullptr);
}

}  // namespace penstock::gateway
