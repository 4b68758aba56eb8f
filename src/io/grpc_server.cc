#include <algorithm>
#include <array>
#include <cassert>
#include <typeinfo>

#include "io/detail/grpc_wire.h"
#include "io/detail/http2_server.h"
#include "io/detail/memory.h"
#include "io/grpc.h"

namespace penstock::io {

namespace {

constexpr std::array<std::string_view, 17> kCodeNumbers = {"0", "1",  "2",  "3",  "4",  "5",  "6",  "7", "8",
                                                           "9", "10", "11", "12", "13", "14", "15", "16"};

}  // namespace

// --- GrpcServerStream ---

// Receives until a message is whole. It starts at once and ends at its last suspension point, where it hands
// over to the read that waits; from then on it may be destroyed, also by that read's coroutine.
struct GrpcServerStream::Pump {
  struct promise_type {
    explicit promise_type(GrpcServerStream& owner) : stream(owner) {}
    static void* operator new(size_t bytes) { return detail::allocate_frame(bytes); }
    static void operator delete(void* frame, size_t bytes) noexcept { detail::free_frame(frame, bytes); }

    struct Final {
      bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<promise_type> self) const noexcept {
        GrpcServerStream& stream = self.promise().stream;
        stream.pump_done_ = true;
        stream.wait_.complete(Wait::Outcome::kReady);
      }
      void await_resume() const noexcept {}
    };
    Pump get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    Final final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() { stream.failed_ = Error{ErrorCode::kInternal, "receiving a message failed"}; }

    GrpcServerStream& stream;
  };
  std::coroutine_handle<promise_type> handle;
};

struct GrpcServerStream::Deadline {
  explicit Deadline(HttpExchange& exchange) : timer(exchange.loop()) {
    source.follow(exchange.cancel_token());
  }
  CancelSource source;
  Timer timer;
};

GrpcServerStream::GrpcServerStream(HttpExchange& exchange, const GrpcOptions& options)
    : exchange_(exchange),
      http2_(typeid(exchange) == typeid(detail::Http2Exchange)
                 ? static_cast<detail::Http2Exchange*>(&exchange)
                 : nullptr),
      max_send_message_bytes_(std::min<size_t>(options.max_send_message_bytes, UINT32_MAX)),
      decoder_(options.max_receive_message_bytes,
               detail::grpc_encoding_of(exchange.request().fields.get("grpc-encoding"))),
      wait_(exchange.loop()) {}

GrpcServerStream::~GrpcServerStream() {
  destroy_pump();
}

void GrpcServerStream::destroy_pump() {
  if (pump_) std::exchange(pump_, nullptr).destroy();
}

CancelToken GrpcServerStream::cancel_token() {
  return deadline_ ? deadline_->source.token() : exchange_.cancel_token();
}

void GrpcServerStream::arm_deadline(Duration timeout) {
  deadline_ = std::make_unique<Deadline>(exchange_);
  deadline_->timer.arm(std::max(timeout, Duration(1)), &GrpcServerStream::on_deadline, this);
}

void GrpcServerStream::on_deadline(void* self) {
  auto& stream = *static_cast<GrpcServerStream*>(self);
  if (stream.finished_) return;
  stream.deadline_passed_ = true;
  // A client that takes nothing can't be told.
  if (stream.writing_) stream.exchange_.abort();
  stream.wait_.complete_later(Wait::Outcome::kCancelled);
  stream.deadline_->source.cancel();
}

GrpcServerStream::Pump GrpcServerStream::receive() {
  while (http2_ != nullptr) {
    const Wait::Outcome outcome = co_await http2_->read_later();
    if (outcome != Wait::Outcome::kReady) failed_ = http2_->read_error(outcome);
    if (failed_ || receive_there()) co_return;
  }
  while (!last_piece_seen_) {
    Result<BodyPiece> piece = co_await exchange_.read();
    if (!piece.ok()) {
      failed_ = std::move(piece).error();
      break;
    }
    last_piece_seen_ = piece->last;
    decoder_.feed(piece->data);
    if (try_next()) break;
  }
}

bool GrpcServerStream::try_next() {
  Read message = decoder_.next();
  if (!message.ok()) {
    failed_ = std::move(message).error();
    return true;
  }
  if (!message->has_value()) return false;
  result_.emplace(std::move(message));
  ++messages_received_;
  return true;
}

bool GrpcServerStream::receive_there() {
  while (!last_piece_seen_) {
    std::optional<Result<BodyPiece>> piece = http2_->read_there();
    if (!piece) return false;
    if (!piece->ok()) {
      failed_ = std::move(*piece).error();
      return true;
    }
    last_piece_seen_ = (*piece)->last;
    decoder_.feed((*piece)->data);
    if (try_next()) return true;
  }
  return true;
}

bool GrpcServerStream::gone() const {
  return http2_ != nullptr && http2_->gone();
}

bool GrpcServerStream::message_ready() const {
  if (!pump_done_) return false;
  return result_.has_value() || failed_.has_value() || last_piece_seen_ || deadline_passed_ ||
         decoder_.ready();
}

bool GrpcServerStream::ReadAwaiter::await_ready() {
  GrpcServerStream& stream = stream_;
  if (stream.deadline_passed_) return true;
  if (!stream.pump_done_) return false;
  // What came after a read had given up waiting is the first to go.
  if (stream.result_ || stream.failed_ || stream.try_next() || stream.last_piece_seen_) return true;
  if (stream.http2_ != nullptr && stream.receive_there()) return true;
  stream.destroy_pump();
  stream.pump_done_ = false;
  stream.pump_ = stream.receive().handle;
  stream.pump_.resume();
  return stream.pump_done_;
}

void GrpcServerStream::ReadAwaiter::await_suspend(std::coroutine_handle<> handle) {
  stream_.wait_.start(handle, timeout_, token_);
}

GrpcServerStream::Read GrpcServerStream::ReadAwaiter::await_resume() {
  const Wait::Outcome outcome = stream_.wait_.outcome();
  stream_.wait_.rearm();
  if (stream_.deadline_passed_) return Error{ErrorCode::kRequestTimeout, "the call's deadline has passed"};
  if (!stream_.pump_done_)
    return status_of(outcome, ErrorCode::kRequestTimeout, "waiting for a message").error();
  return stream_.take_result();
}

GrpcServerStream::Read GrpcServerStream::take_result() {
  if (result_) {
    Read message = std::move(*result_);
    result_.reset();
    return message;
  }
  if (failed_) return *failed_;
  assert(last_piece_seen_);
  if (!decoder_.at_boundary()) {
    failed_ = Error{ErrorCode::kInternal, "the client half-closed inside a message"};
    return *failed_;
  }
  return std::optional<std::string_view>();
}

namespace {

Status write_grpc_head(HttpExchange& exchange) {
  constexpr std::array<HeaderField, 2> kFields = {detail::kGrpcContentType, detail::kGrpcAcceptEncoding};
  return exchange.write_head(200, kFields, BodyFraming::chunked());
}

}  // namespace

Task<Status> GrpcServerStream::send(GrpcPieces first, std::span<const GrpcPieces> more) {
  if (finished_) co_return Error{ErrorCode::kInternal, "a message after the end of the call"};
  detail::GrpcFrames frames;
  Status status =
      first.data() != nullptr || more.empty() ? frames.add(first, max_send_message_bytes_) : Status{};
  for (const GrpcPieces message : more) {
    if (!status.ok()) break;
    status = frames.add(message, max_send_message_bytes_);
  }
  if (!status.ok()) co_return status;
  if (!exchange_.head_written()) {
    status = write_grpc_head(exchange_);
    if (!status.ok()) co_return status;
  }
  writing_ = true;
  status = co_await exchange_.write(frames.all());
  writing_ = false;
  if (status.ok()) messages_sent_ += more.empty() ? 1 : more.size();
  co_return status;
}

Task<Status> GrpcServerStream::write_message(GrpcPieces pieces) {
  return send(pieces, {});
}

Task<Status> GrpcServerStream::write_messages(std::span<const GrpcPieces> messages) {
  return send({}, messages);
}

std::optional<Status> GrpcServerStream::write_messages_there(std::span<const GrpcPieces> messages) {
  if (http2_ == nullptr) return std::nullopt;
  if (finished_) return Error{ErrorCode::kInternal, "a message after the end of the call"};
  detail::GrpcFrames frames;
  for (const GrpcPieces message : messages) {
    if (Status status = frames.add(message, max_send_message_bytes_); !status.ok()) return status;
  }
  if (!http2_->head_written()) {
    if (Status status = write_grpc_head(exchange_); !status.ok()) return status;
  }
  std::optional<Status> sent = http2_->send_there(frames.all(), false, {});
  if (sent && sent->ok()) messages_sent_ += messages.size();
  return sent;
}

void GrpcServerStream::add_trailer(std::string_view name, std::string_view value) {
  trailers_.emplace_back(name, value);
}

Task<Status> GrpcServerStream::finish(GrpcStatus status, std::span<const GrpcPieces> messages) {
  if (finished_) co_return Error{ErrorCode::kInternal, "the call has ended already"};
  finished_ = true;
  detail::GrpcFrames frames;
  for (const GrpcPieces message : messages) {
    Status added = frames.add(message, max_send_message_bytes_);
    if (added.ok()) continue;
    status = grpc_status_of(added.error());
    frames = detail::GrpcFrames();
    break;
  }
  const bool trailers_only = !exchange_.head_written() && frames.all().empty();
  const std::string text = grpc_encode_message(status.message);
  std::vector<HeaderField> fields;
  fields.reserve(trailers_.size() + 4);
  if (trailers_only) {
    fields.push_back(detail::kGrpcContentType);
    fields.push_back(detail::kGrpcAcceptEncoding);
  }
  const auto code = std::min(static_cast<size_t>(status.code), kCodeNumbers.size() - 1);
  fields.push_back({"grpc-status", kCodeNumbers[code]});
  if (!text.empty()) fields.push_back({"grpc-message", text});
  for (const auto& [name, value] : trailers_) fields.push_back({name, value});

  if (trailers_only) {
    Status written = exchange_.write_head(200, fields, BodyFraming::none());
    if (!written.ok()) co_return written;
    co_return co_await exchange_.finish();
  }
  if (!exchange_.head_written()) {
    Status written = write_grpc_head(exchange_);
    if (!written.ok()) co_return written;
  }
  writing_ = true;
  Status ended = co_await exchange_.finish(frames.all(), fields);
  writing_ = false;
  co_return ended;
}

// --- GrpcRouter ---

void GrpcRouter::add(std::string path, GrpcMethod method) {
  methods_.emplace_back(std::move(path), std::move(method));
}

namespace {

Task<GrpcStatus> call_unary(const GrpcUnaryMethod& method, GrpcServerStream& stream) {
  GrpcServerStream::Read request = co_await stream.read_message();
  if (!request.ok()) co_return grpc_status_of(request.error());
  if (!request->has_value()) co_return GrpcStatus(GrpcCode::kInternal, "a unary call without a message");
  // Reading on, for the half-close, would end the message's life.
  std::string response;
  GrpcStatus status = co_await method(stream, **request, response);
  if (!status.ok() || stream.finished()) co_return status;
  const std::string_view piece = response;
  const GrpcPieces message(&piece, 1);
  (void)co_await stream.finish(std::move(status), std::span<const GrpcPieces>(&message, 1));
  co_return GrpcStatus();
}

}  // namespace

void GrpcRouter::add_unary(std::string path, GrpcUnaryMethod method) {
  add(std::move(path),
      [method = std::move(method)](GrpcServerStream& stream) { return call_unary(method, stream); });
}

const GrpcMethod* GrpcRouter::find(std::string_view path) const {
  for (const auto& [name, method] : methods_)
    if (name == path) return &method;
  return nullptr;
}

Task<void> GrpcRouter::handle(HttpExchange& exchange) {
  const RequestHead& head = exchange.request();
  if (!detail::is_grpc_content_type(head.fields.get("content-type"))) {
    if (fallback_) {
      co_await fallback_->handle(exchange);
    } else {
      (void)co_await exchange.respond(415, "text/plain",
                                      "This port speaks gRPC: content-type application/grpc\n");
    }
    co_return;
  }
  if (head.version != HttpVersion::kHttp2) {
    (void)co_await exchange.respond(505, "text/plain", "gRPC needs HTTP/2\n");
    co_return;
  }
  if (head.method != "POST") {
    const std::array<HeaderField, 1> allow = {HeaderField{"allow", "POST"}};
    (void)co_await exchange.respond(405, "text/plain", "gRPC calls are POST\n", allow);
    co_return;
  }
  GrpcServerStream stream(exchange, options_);
  const GrpcMethod* method = find(head.path);
  if (method == nullptr) {
    GrpcStatus unknown(GrpcCode::kUnimplemented, "unknown method " + std::string(head.path));
    (void)co_await stream.finish(std::move(unknown));
    co_return;
  }
  const std::string_view encoding = head.fields.get("grpc-encoding");
  if (detail::grpc_encoding_of(encoding) == GrpcFrameDecoder::Encoding::kUnsupported) {
    GrpcStatus refused(GrpcCode::kUnimplemented,
                       "grpc-encoding " + std::string(encoding) + " is not supported");
    (void)co_await stream.finish(std::move(refused));
    co_return;
  }
  if (const std::optional<std::string_view> text = head.fields.find("grpc-timeout")) {
    const std::optional<Duration> timeout = parse_grpc_timeout(*text);
    if (!timeout) {
      GrpcStatus malformed(GrpcCode::kInternal, "malformed grpc-timeout");
      (void)co_await stream.finish(std::move(malformed));
      co_return;
    }
    stream.arm_deadline(*timeout);
  }
  GrpcStatus status = co_await (*method)(stream);
  if (stream.finished() || stream.gone()) co_return;
  if (stream.deadline_passed()) status = {GrpcCode::kDeadlineExceeded, "the call's deadline has passed"};
  (void)co_await stream.finish(std::move(status));
}

}  // namespace penstock::io
