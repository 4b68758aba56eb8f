#include "io/detail/http1_client.h"

#include <algorithm>

#include "base/strings.h"
#include "io/step.h"

namespace penstock::io::detail {

ClientConnection::ClientConnection(HttpClient::Impl& client, ClientPool& pool, SocketPtr socket)
    : client_(client),
      pool_(pool),
      socket_(std::move(socket)),
      peer_(socket_->peer()),
      idle_timer_(client.loop) {
  ++pool_.total;
}

ClientConnection::~ClientConnection() {
  if (is_idle_) leave_idle();
  --pool_.total;
}

void ClientConnection::take(const HttpCallOptions& options) {
  if (is_idle_) leave_idle();
  ++uses_;
  token_ = options.token;
  write_timeout_ = options.write_timeout;
  first_byte_timeout_ = options.first_byte_timeout;
  idle_timeout_ = options.idle_timeout;
  scanner_.reset();
  body_.reset();
  writer_.reset();
  head_ = ResponseHead{};
  framing_ = MessageFraming{};
  head_read_ = anything_received_ = write_failed_ = answered_early_ = failed_ = stale_ = false;
  taken_at_ = client_.loop.now();
}

void ClientConnection::release() {
  socket_->unwatch();
  const bool whole = head_read_ && body_.finished() && !body_.overran() && !failed_;
  const bool reusable = whole && writer_.ended() && !write_failed_ && !answered_early_ &&
                        framing_.keep_alive && inbox_.pending() == 0 && socket_->is_open() &&
                        pool_.idle < client_.options.max_idle_per_destination &&
                        client_.options.idle_timeout > Duration::zero();
  if (!reusable) {
    delete this;
    return;
  }
  body_.reset();
  token_ = CancelToken();
  inbox_.release();
  if (fields_.capacity() > 64) fields_ = FieldVector();
  go_idle();
}

void ClientConnection::go_idle() {
  is_idle_ = true;
  newer_ = nullptr;
  older_ = pool_.newest_idle;
  if (older_ != nullptr) older_->newer_ = this;
  pool_.newest_idle = this;
  ++pool_.idle;
  ++client_.stats.connections_idle;
  idle_timer_.arm_coarse(
      client_.options.idle_timeout, [](void* self) { delete static_cast<ClientConnection*>(self); }, this);
  socket_->watch([](void* self) { static_cast<ClientConnection*>(self)->on_idle_readable(); }, this);
}

void ClientConnection::leave_idle() {
  is_idle_ = false;
  (newer_ != nullptr ? newer_->older_ : pool_.newest_idle) = older_;
  if (older_ != nullptr) older_->newer_ = newer_;
  newer_ = older_ = nullptr;
  --pool_.idle;
  --client_.stats.connections_idle;
  idle_timer_.disarm();
  socket_->unwatch();
}

// The peer closed, or sent what nobody asked for: either way the connection is of no use. TLS may have had
// something of its own to say.
void ClientConnection::on_idle_readable() {
  char byte = 0;
  if (socket_->try_read(&byte, 1) == Socket::kWouldBlock) {
    socket_->watch([](void* self) { static_cast<ClientConnection*>(self)->on_idle_readable(); }, this);
    return;
  }
  ++client_.stats.idle_closed_by_peer;
  delete this;
}

// --- sending ---

Status ClientConnection::write_head(const HttpRequest& request) {
  if (!is_token(request.method) || request.target.empty() || !is_field_text(request.target) ||
      request.target.find_first_of(" \t") != std::string_view::npos)
    return Error{ErrorCode::kInternal, "a request has an invalid method or target"};
  to_head_ = request.method == "HEAD";
  std::string& out = writer_.out();
  out.append(request.method);
  out += ' ';
  out.append(request.target);
  out += " HTTP/1.1\r\n";
  bool unused = false;
  bool has_host = false;
  if (!append_fields(out, request.fields, unused, has_host))
    return Error{ErrorCode::kInternal, "a request field has an invalid name or value"};
  if (!has_host) {
    out += "host: ";
    out += pool_.host_field;
    out += "\r\n";
  }
  MessageWriter::Kind kind = MessageWriter::Kind::kNone;
  switch (request.framing.kind) {
    case BodyFraming::Kind::kNone:
      if (request.method == "POST" || request.method == "PUT" || request.method == "PATCH")
        out += "content-length: 0\r\n";
      break;
    case BodyFraming::Kind::kLength:
      kind = MessageWriter::Kind::kLength;
      out += "content-length: ";
      append_number(out, request.framing.length);
      out += "\r\n";
      break;
    case BodyFraming::Kind::kChunked:
      kind = MessageWriter::Kind::kChunked;
      out += "transfer-encoding: chunked\r\n";
      break;
  }
  out += "\r\n";
  writer_.start(kind, request.framing.length, false);
  return {};
}

// The peer may answer (and refuse) before it has taken the whole body; then it often stops reading.
bool ClientConnection::interrupted() {
  if (answered_early_) return true;
  if (!inbox_.buffer) inbox_.buffer = Buffer(Inbox::kBytes);
  const ptrdiff_t got = inbox_.room() != 0 ? socket_->try_read(inbox_.data() + inbox_.end, inbox_.room()) : 1;
  if (got == Socket::kWouldBlock) {
    socket_->watch([](void* socket) { static_cast<Socket*>(socket)->wake_writer(); }, socket_.get());
    return false;
  }
  if (got > 0) {
    anything_received_ = true;
    inbox_.end += inbox_.room() != 0 ? static_cast<size_t>(got) : 0;
  }
  answered_early_ = true;
  return true;
}

Task<Result<HttpCall::Sent>> ClientConnection::write(std::span<const std::string_view> pieces, bool end,
                                                     std::span<const HeaderField> trailers) {
  if (write_failed_ || answered_early_) co_return HttpCall::Sent::kAnswered;
  Status status = co_await send(pieces, end, trailers);
  co_return after_send(std::move(status));
}

Result<HttpCall::Sent> ClientConnection::after_send(Status status) {
  socket_->unwatch();
  if (status.ok()) return HttpCall::Sent::kAll;
  Error error = std::move(status).error();
  if (answered_early_) return HttpCall::Sent::kAnswered;
  write_failed_ = true;
  if (error.code == ErrorCode::kIo) return HttpCall::Sent::kAnswered;  // the answer, or its absence, tells
  failed_ = true;
  if (error.code == ErrorCode::kRequestTimeout) error.code = ErrorCode::kGatewayTimeout;
  return error.wrap("request to " + peer_.to_string());
}

// --- receiving ---

Error ClientConnection::failure(ptrdiff_t got, const char* doing) {
  failed_ = true;
  // A peer that took its time has worked on the request: sending it again would do that twice.
  const bool at_once = client_.loop.now() - taken_at_ <= kStaleWindow;
  stale_ = reused() && !anything_received_ && (write_failed_ || at_once);
  const std::string why = got == 0 ? std::string("the peer closed the connection") : socket_->error_text();
  return Error{ErrorCode::kBadGateway, std::string(doing) + " from " + peer_.to_string() + ": " + why};
}

Error ClientConnection::wait_failure(Wait::Outcome outcome, const char* doing) {
  failed_ = true;
  return status_of(outcome, ErrorCode::kGatewayTimeout, doing).error().wrap(peer_.to_string());
}

Task<Result<const ResponseHead*>> ClientConnection::response() {
  if (head_read_) co_return &head_;
  if (failed_) co_return Error{ErrorCode::kBadGateway, "the call has failed before"};
  const HttpClientOptions& options = client_.options;
  if (!inbox_.buffer) inbox_.buffer = Buffer(Inbox::kBytes);
  const auto malformed = [&](const char* what) {
    failed_ = true;
    return Error{ErrorCode::kBadGateway, std::string(what) + " from " + peer_.to_string()};
  };
  uint32_t informational = 0;
  TimePoint deadline = kNever;  // for the whole head, however often a part of it comes
  for (;;) {
    if (inbox_.pending() != 0) {
      // After a 1xx the next head lies behind it: the scanner starts at the inbox's beginning.
      inbox_.compact();
      switch (scanner_.scan(inbox_.data(), inbox_.end, false)) {
        case HeadScanner::Result::kComplete: {
          const ParseError error =
              parse_response_head(inbox_.data(), scanner_.begin(), scanner_.end(), options.max_headers,
                                  to_head_, fields_, head_, framing_);
          if (error != ParseError::kNone) co_return malformed("malformed response head");
          inbox_.begin = scanner_.end();
          scanner_.reset();
          if (head_.status == 101) co_return malformed("an upgrade nobody asked for");
          if (head_.status < 200) {
            if (++informational > kMaxInformational) co_return malformed("too many informational responses");
            continue;
          }
          head_read_ = true;
          body_.start(framing_, inbox_, ~uint64_t{0}, options.max_header_bytes);
          co_return &head_;
        }
        case HeadScanner::Result::kMalformed:
          co_return malformed("malformed response head");
        case HeadScanner::Result::kIncomplete:
          break;
      }
      if (inbox_.pending() >= options.max_header_bytes) co_return malformed("too large a response head");
    }
    if (inbox_.room() == 0) inbox_.grow(options.max_header_bytes);
    const ptrdiff_t got = socket_->maybe_readable()
                              ? socket_->try_read(inbox_.data() + inbox_.end, inbox_.room())
                              : Socket::kWouldBlock;
    if (got > 0) {
      inbox_.end += static_cast<size_t>(got);
      anything_received_ = true;
      co_await InStep(client_.loop, Step::kAnswer);
      continue;
    }
    if (got != Socket::kWouldBlock) co_return failure(got, "response");
    Duration patience = first_byte_timeout_;
    if (patience > Duration::zero()) {
      const TimePoint now = client_.loop.now();
      if (deadline == kNever) deadline = now + patience;
      patience = deadline - now;
      if (patience <= Duration::zero())
        co_return wait_failure(Wait::Outcome::kTimedOut, "waiting for a response");
    }
    const Wait::Outcome outcome = co_await socket_->readable(patience, token_);
    if (outcome != Wait::Outcome::kReady) co_return wait_failure(outcome, "waiting for a response");
  }
}

Task<Result<BodyPiece>> ClientConnection::read() {
  BodyPiece piece;
  for (;;) {
    const BodyReader::Step step = body_.next(piece);
    if (step == BodyReader::Step::kPiece) co_return piece;
    if (step != BodyReader::Step::kNeedMore) {
      failed_ = true;
      co_return Error{ErrorCode::kBadGateway, "malformed response body from " + peer_.to_string()};
    }
    const ptrdiff_t got = socket_->maybe_readable() ? body_.receive(*socket_) : Socket::kWouldBlock;
    if (got > 0) {
      if (turn_.spend(static_cast<size_t>(got))) co_await client_.loop.yield();
      continue;
    }
    if (got == 0 && body_.end_of_stream()) co_return BodyPiece{{}, true};
    if (got != Socket::kWouldBlock) co_return failure(got, "response body");
    const Wait::Outcome outcome = co_await socket_->readable(idle_timeout_, token_);
    if (outcome != Wait::Outcome::kReady) co_return wait_failure(outcome, "waiting for a response body");
    turn_.restart();
  }
}

Task<Result<std::span<char>>> ClientConnection::read_all(size_t limit) {
  BodyReader::Step step = body_.begin_whole(limit, nullptr);
  while (step == BodyReader::Step::kNeedMore) {
    const ptrdiff_t got = socket_->maybe_readable() ? body_.receive_whole(*socket_) : Socket::kWouldBlock;
    if (got > 0) {
      if (turn_.spend(static_cast<size_t>(got))) co_await client_.loop.yield();
      step = body_.check_whole(limit);
      continue;
    }
    if (got == 0 && body_.end_of_stream()) break;
    if (got != Socket::kWouldBlock) co_return failure(got, "response body");
    const Wait::Outcome outcome = co_await socket_->readable(idle_timeout_, token_);
    if (outcome != Wait::Outcome::kReady) co_return wait_failure(outcome, "waiting for a response body");
  }
  if (step == BodyReader::Step::kTooLarge || step == BodyReader::Step::kMalformed) {
    failed_ = true;
    if (step == BodyReader::Step::kTooLarge)
      co_return Error{ErrorCode::kPayloadTooLarge, "the response body from " + peer_.to_string() +
                                                       " is larger than the limit of " +
                                                       std::to_string(limit) + " bytes"};
    co_return Error{ErrorCode::kBadGateway, "malformed response body from " + peer_.to_string()};
  }
  co_return body_.take_whole();
}

std::optional<uint64_t> ClientConnection::content_length() const {
  if (framing_.declared_length) return framing_.length;
  if (framing_.kind == MessageFraming::Kind::kNone) return 0;
  return std::nullopt;
}

}  // namespace penstock::io::detail
