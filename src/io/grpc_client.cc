#include "base/escapes.h"
#include "base/strings.h"
#include "io/detail/grpc_wire.h"
#include "io/grpc.h"

namespace penstock::io {

namespace {

GrpcCode code_of_http_status(int status) {
  switch (status) {
    case 400:
      return GrpcCode::kInternal;
    case 401:
      return GrpcCode::kUnauthenticated;
    case 403:
      return GrpcCode::kPermissionDenied;
    case 404:
      return GrpcCode::kUnimplemented;
    case 429:
    case 502:
    case 503:
    case 504:
      return GrpcCode::kUnavailable;
    default:
      return GrpcCode::kUnknown;
  }
}

}  // namespace

struct GrpcClientStream::State {
  State(Loop& loop, const GrpcCallOptions& options)
      : decoder(options.max_receive_message_bytes), timer(loop) {
    if (options.token.can_cancel()) cancel.follow(options.token);
  }

  static void on_deadline(void* self) {
    auto& state = *static_cast<State*>(self);
    state.timed_out = true;
    state.cancel.cancel();
  }

  void end(GrpcStatus how) {
    if (ended) return;
    ended = true;
    timer.disarm();
    status = std::move(how);
  }
  void fail(const Error& error) {
    GrpcStatus how = grpc_status_of(error);
    if (timed_out) how = {GrpcCode::kDeadlineExceeded, "the call's deadline has passed"};
    end(std::move(how));
    call.break_off();  // not close(): a writer may be waiting in it
  }
  // The status among trailers or the fields of a Trailers-Only head; false: there is none.
  bool take_status(HeaderFields fields) {
    const std::optional<std::string_view> number = fields.find("grpc-status");
    if (!number) return false;
    for (const HeaderField& field : fields) trailers.emplace_back(field.name, field.value);
    const std::optional<uint64_t> code = parse_u64(*number);
    const bool known = code && *code < detail::kGrpcCodes;
    end({known ? static_cast<GrpcCode>(*code) : GrpcCode::kUnknown,
         percent_decode(fields.get("grpc-message"))});
    return true;
  }
  Task<bool> take_head();

  CancelSource cancel;
  HttpCall call;
  GrpcFrameDecoder decoder;
  Timer timer;
  bool timed_out = false;
  bool have_head = false;
  bool last_piece_seen = false;
  bool ended = false;
  GrpcStatus status;
  std::vector<std::pair<std::string, std::string>> trailers;
};

// False: the call has ended.
Task<bool> GrpcClientStream::State::take_head() {
  Result<const ResponseHead*> head = co_await call.response();
  if (!head.ok()) {
    fail(head.error());
    co_return false;
  }
  have_head = true;
  const ResponseHead& response = **head;
  const bool is_grpc = detail::is_grpc_content_type(response.fields.get("content-type"));
  if (response.fields.has("grpc-status")) {
    take_status(response.fields);
    co_return false;
  }
  if (response.status != 200) {
    end({code_of_http_status(response.status), "HTTP status " + std::to_string(response.status)});
    call.break_off();
    co_return false;
  }
  if (!is_grpc) {
    end({GrpcCode::kUnknown, "the answer's content-type is not application/grpc"});
    call.break_off();
    co_return false;
  }
  decoder.set_encoding(detail::grpc_encoding_of(response.fields.get("grpc-encoding")));
  co_return true;
}

GrpcClientStream::GrpcClientStream(std::unique_ptr<State> state) : state_(std::move(state)) {}
GrpcClientStream::~GrpcClientStream() = default;

Task<Result<std::unique_ptr<GrpcClientStream>>> GrpcClientStream::open(HttpClient& client,
                                                                       const HttpDestination& to,
                                                                       std::string_view path,
                                                                       const GrpcCallOptions& options) {
  auto state = std::make_unique<State>(client.loop(), options);
  std::string timeout;
  std::vector<HeaderField> fields = {
      detail::kGrpcContentType, {"te", "trailers"}, detail::kGrpcAcceptEncoding};
  if (options.timeout > Duration::zero()) {
    timeout = format_grpc_timeout(options.timeout);
    fields.push_back({"grpc-timeout", timeout});
    state->timer.arm(options.timeout, &State::on_deadline, state.get());
  }
  fields.insert(fields.end(), options.metadata.begin(), options.metadata.end());
  HttpRequest request;
  request.method = "POST";
  request.target = path;
  request.fields = fields;
  request.framing = BodyFraming::chunked();
  request.complete = false;
  HttpCallOptions call_options;
  call_options.connect_timeout = options.connect_timeout;
  call_options.token = state->cancel.token();
  HttpDestination destination = to;
  destination.http2 = true;
  Result<HttpCall> call = co_await client.start(destination, request, call_options);
  if (!call.ok()) {
    if (state->timed_out) co_return Error{ErrorCode::kGatewayTimeout, "the call's deadline has passed"};
    co_return std::move(call).error();
  }
  state->call = std::move(*call);
  co_return std::unique_ptr<GrpcClientStream>(new GrpcClientStream(std::move(state)));
}

Task<Result<bool>> GrpcClientStream::write_message(GrpcPieces pieces) {
  if (state_->ended) co_return false;
  detail::GrpcFrames frames;
  if (Status status = frames.add(pieces, UINT32_MAX); !status.ok()) co_return std::move(status).error();
  Result<HttpCall::Sent> sent = co_await state_->call.write(frames.all());
  if (!sent.ok()) co_return std::move(sent).error();
  co_return *sent == HttpCall::Sent::kAll;
}

Task<Result<bool>> GrpcClientStream::half_close() {
  if (state_->ended) co_return false;
  Result<HttpCall::Sent> sent = co_await state_->call.finish();
  if (!sent.ok()) co_return std::move(sent).error();
  co_return *sent == HttpCall::Sent::kAll;
}

Task<std::optional<std::string_view>> GrpcClientStream::read_message() {
  State& state = *state_;
  if (state.ended) co_return std::nullopt;
  if (!state.have_head && !co_await state.take_head()) co_return std::nullopt;
  for (;;) {
    Result<std::optional<std::string_view>> message = state.decoder.next();
    if (!message.ok()) {
      state.fail(message.error());
      co_return std::nullopt;
    }
    if (message->has_value()) co_return *message;
    if (state.last_piece_seen) {
      const bool whole = state.decoder.at_boundary();
      if (!state.take_status(state.call.trailers()))
        state.end({GrpcCode::kInternal, "the answer ended without grpc-status"});
      if (!whole && state.status.ok())
        state.status = {GrpcCode::kInternal, "the answer ended inside a message"};
      co_return std::nullopt;
    }
    Result<BodyPiece> piece = co_await state.call.read();
    if (!piece.ok()) {
      state.fail(piece.error());
      co_return std::nullopt;
    }
    state.last_piece_seen = piece->last;
    state.decoder.feed(piece->data);
  }
}

const GrpcStatus& GrpcClientStream::status() const {
  return state_->status;
}

std::string_view GrpcClientStream::trailer(std::string_view lower_name) const {
  for (const auto& [name, value] : state_->trailers)
    if (name == lower_name) return value;
  return {};
}

void GrpcClientStream::cancel() {
  state_->end({GrpcCode::kCancelled, "cancelled by the caller"});
  state_->call.break_off();
}

Task<GrpcReply> grpc_unary(HttpClient& client, const HttpDestination& to, std::string_view path,
                           GrpcPieces request, const GrpcCallOptions& options) {
  GrpcReply reply;
  Result<std::unique_ptr<GrpcClientStream>> opened =
      co_await GrpcClientStream::open(client, to, path, options);
  if (!opened.ok()) {
    reply.status = grpc_status_of(opened.error());
    co_return reply;
  }
  GrpcClientStream& call = **opened;
  // A write that fails is no answer yet: the server may have given its status before.
  if (Result<bool> sent = co_await call.write_message(request); sent.ok() && *sent)
    (void)co_await call.half_close();
  size_t messages = 0;
  for (;;) {
    const std::optional<std::string_view> message = co_await call.read_message();
    if (!message) break;
    if (++messages == 1) reply.message = *message;
  }
  reply.status = call.status();
  if (reply.status.ok() && messages != 1)
    reply.status = {GrpcCode::kInternal,
                    "a unary call was answered with " + std::to_string(messages) + " messages"};
  if (!reply.status.ok()) reply.message.clear();
  co_return reply;
}

}  // namespace penstock::io
