#include "io/detail/http1_server.h"

#include <algorithm>

#include "base/strings.h"
#include "io/step.h"

namespace penstock::io::detail {

namespace {
constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kUnreadBodyKept = 64 * 1024;  // an unread body up to this is read past, beyond it we close
constexpr Duration kWholeLinger = std::chrono::seconds(30);
}  // namespace

Http1Connection::Http1Connection(std::shared_ptr<HttpServer::Impl> server, ServerLoop& home, SocketPtr socket,
                                 std::shared_ptr<HttpServer::Impl::Listening> listening,
                                 const SocketAddress& peer)
    : ServerConnection(std::move(server), home, std::move(socket), std::move(listening), peer) {}

void Http1Connection::force_close() {
  socket_->close();
  if (in_exchange_) cancel_.cancel();
}

// Runs the handler, and starts to watch for the client's end when the handler first waits.
struct Http1Connection::Handling {
  Http1Connection& connection;
  Task<void> task;
  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> handle) {
    if (!task.await_suspend(handle)) return false;
    connection.start_watch();
    return true;
  }
  void await_resume() { task.await_resume(); }
};

Task<void> Http1Connection::serve() {
  if (listening_->tls) {
    const CancelToken stop = home_.stop_idling.token();
    Status status =
        co_await socket_->handshake_server(*listening_->tls, server_->options.tls_handshake_timeout, stop);
    if (!status.ok()) {
      if (status.error().code == ErrorCode::kIo) report_bad_start(status.error().message);
      co_return;
    }
    info_.tls = true;
    info_.alpn = socket_->alpn();
    info_.client_certificate_names = socket_->client_certificate_subject();
    if (info_.alpn == "h2") {
      wants_http2_ = true;
      co_return;
    }
  }
  for (;;) {
    const Head head = co_await read_head();
    if (head == Head::kHttp2) {
      wants_http2_ = true;
      co_return;
    }
    if (head == Head::kClose) co_return;
    if (head == Head::kRefuse) {
      home_.bad_requests.fetch_add(1, std::memory_order_relaxed);
      co_await refuse(refuse_status_);
      co_return;
    }
    begin_exchange();
    bool threw = false;
    try {
      Handling handling{*this, server_->handler->handle(*this)};
      co_await handling;
    } catch (...) {
      threw = true;
    }
    const bool go_on = co_await end_exchange(threw);
    if (!go_on) co_return;
  }
}

// --- heads ---

Task<Http1Connection::Head> Http1Connection::read_head() {
  const HttpServerOptions& options = server_->options;
  scanner_.reset();
  inbox_.compact();
  TimePoint deadline = kNever;
  for (;;) {
    if (inbox_.pending() != 0) {
      if (begins_tls()) {
        report_bad_start("the client speaks TLS, this port plain text");
        refuse_status_ = 400;
        co_return Head::kRefuse;
      }
      const bool maybe_http2 = begins_http2();
      if (maybe_http2 && inbox_.pending() >= kHttp2Preface.size()) co_return Head::kHttp2;
      if (!maybe_http2) {
        switch (scanner_.scan(inbox_.data(), inbox_.end, true)) {
          case HeadScanner::Result::kComplete:
            co_return parse_head();
          case HeadScanner::Result::kMalformed:
            refuse_status_ = 400;
            co_return Head::kRefuse;
          case HeadScanner::Result::kIncomplete:
            break;
        }
      }
      if (inbox_.pending() >= options.max_header_bytes) {
        refuse_status_ = 431;
        co_return Head::kRefuse;
      }
    }
    if (!inbox_.buffer) inbox_.buffer = Buffer(std::min(Inbox::kBytes, options.max_header_bytes));
    if (inbox_.room() == 0) inbox_.grow(options.max_header_bytes);
    const ptrdiff_t got = socket_->maybe_readable()
                              ? socket_->try_read(inbox_.data() + inbox_.end, inbox_.room())
                              : Socket::kWouldBlock;
    if (got > 0) {
      inbox_.end += static_cast<size_t>(got);
      co_await InStep(home_.loop, Step::kRequest);
      continue;
    }
    if (got != Socket::kWouldBlock) co_return Head::kClose;

    if (inbox_.pending() == 0) {
      if (server_->draining.load(std::memory_order_relaxed)) co_return Head::kClose;
      inbox_.release();
      const CancelToken stop = home_.stop_idling.token();
      const Wait::Outcome outcome =
          co_await socket_->readable(requests_ == 0 ? options.header_timeout : options.idle_timeout, stop);
      if (outcome != Wait::Outcome::kReady) co_return Head::kClose;
      continue;
    }
    const TimePoint now = home_.loop.now();
    if (deadline == kNever) deadline = now + options.header_timeout;
    Wait::Outcome outcome = Wait::Outcome::kTimedOut;
    if (now < deadline) outcome = co_await socket_->readable(deadline - now, never_);
    if (outcome == Wait::Outcome::kTimedOut) {
      refuse_status_ = 408;
      co_return Head::kRefuse;
    }
  }
}

// What has come first is a TLS handshake.
bool Http1Connection::begins_tls() const {
  const std::string_view seen = received();
  return requests_ == 0 && !listening_->tls && seen.size() >= 2 && seen[0] == 0x16 && seen[1] == 0x03;
}

void Http1Connection::report_bad_start(std::string_view reason) const {
  if (server_->options.on_bad_start) server_->options.on_bad_start(info_, reason);
}

// What has come is the beginning of the client's HTTP/2 preface, or all of it and more.
bool Http1Connection::begins_http2() const {
  if (requests_ != 0 || !server_->options.http2.enabled) return false;
  const size_t seen = std::min(inbox_.pending(), kHttp2Preface.size());
  return received().substr(0, seen) == kHttp2Preface.substr(0, seen);
}

Http1Connection::Head Http1Connection::parse_head() {
  const HttpServerOptions& options = server_->options;
  if (scanner_.end() - scanner_.begin() > options.max_header_bytes) {
    refuse_status_ = 431;
    return Head::kRefuse;
  }
  const ParseError error = parse_request_head(inbox_.data(), scanner_.begin(), scanner_.end(),
                                              options.max_headers, fields_, head_, framing_);
  if (error != ParseError::kNone) {
    refuse_status_ = status_of(error);
    return Head::kRefuse;
  }
  if (framing_.unknown_expectation || head_.method == "CONNECT") {
    refuse_status_ = framing_.unknown_expectation ? 417 : 501;
    return Head::kRefuse;
  }
  inbox_.begin = scanner_.end();
  return Head::kComplete;
}

Task<void> Http1Connection::refuse(int status) {
  writer_.reset();
  keep_alive_ = false;
  close_after_ = true;
  head_ = RequestHead{};
  head_.method = "GET";
  framing_ = MessageFraming{};
  body_.reset();
  cancel_.reset();
  const std::string_view reason = reason_phrase(status);
  HttpServerOptions::ErrorBody body;
  if (server_->options.error_body) {
    body = server_->options.error_body(status, reason);
  } else {
    body.content_type = "text/plain";
    body.body = std::string(reason) + "\n";
  }
  const Status sent = co_await respond(status, body.content_type, body.body);
  if (sent.ok()) co_await linger();
}

Task<void> Http1Connection::linger() {
  if (!socket_->is_open()) co_return;
  socket_->unwatch();
  socket_->shutdown_write();
  if (!inbox_.buffer) inbox_.buffer = Buffer(Inbox::kBytes);
  const TimePoint deadline = home_.loop.now() + kWholeLinger;
  for (;;) {
    const ptrdiff_t got = socket_->try_read(inbox_.data(), inbox_.buffer.capacity());
    if (home_.loop.now() > deadline) co_return;
    if (got > 0) {
      if (turn_.spend(static_cast<size_t>(got))) co_await home_.loop.yield();
      continue;
    }
    if (got != Socket::kWouldBlock) co_return;
    const CancelToken stop = home_.stop_idling.token();
    const Wait::Outcome outcome = co_await socket_->readable(server_->options.linger_timeout, stop);
    if (outcome != Wait::Outcome::kReady) co_return;
  }
}

// --- one exchange ---

void Http1Connection::begin_exchange() {
  ++requests_;
  in_exchange_ = true;
  home_.requests.fetch_add(1, std::memory_order_relaxed);
  home_.loop.open_streams().fetch_add(1, std::memory_order_relaxed);
  home_.open_exchanges.fetch_add(1, std::memory_order_relaxed);
  cancel_.reset();
  writer_.reset();
  body_.start(framing_, inbox_, server_->options.max_body_bytes, server_->options.max_trailer_bytes);
  watching_ = peer_gone_ = body_failed_ = aborted_ = close_after_ = false;
  continue_due_ = framing_.expect_continue && !body_.received() && inbox_.pending() == 0;
  keep_alive_ = framing_.keep_alive && requests_ < server_->options.max_requests_per_connection;
}

Task<bool> Http1Connection::end_exchange(bool threw) {
  socket_->unwatch();
  if ((threw || !writer_.started()) && !writer_.anything_sent() && !peer_gone_ && !aborted_ &&
      socket_->is_open()) {
    writer_.reset();
    close_after_ = true;
    const std::string_view reason = reason_phrase(500);
    HttpServerOptions::ErrorBody body{"text/plain", "Internal Server Error\n"};
    if (server_->options.error_body) body = server_->options.error_body(500, reason);
    (void)co_await respond(500, body.content_type, body.body);
  }
  const bool whole =
      writer_.ended() && !aborted_ && !peer_gone_ && !cancel_.cancelled() && socket_->is_open();
  bool go_on = whole && keep_alive_ && !body_failed_ && !body_.overran();
  if (go_on && !body_.finished()) {
    // A short rest of the request is read past; write_head() decided that it is short.
    BodyPiece piece;
    while (go_on && !body_.finished()) {
      switch (body_.next(piece)) {
        case BodyReader::Step::kPiece:
          break;
        case BodyReader::Step::kNeedMore: {
          const Status received = co_await receive_body("rest of the request");
          go_on = received.ok();
          break;
        }
        case BodyReader::Step::kMalformed:
        case BodyReader::Step::kTooLarge:
        case BodyReader::Step::kNoRoom:
          go_on = false;
          break;
      }
    }
    if (body_.overran()) go_on = false;
  }
  if (!go_on && whole) co_await linger();
  if (!go_on && !whole) socket_->close();
  body_.reset();
  fields_.clear();
  in_exchange_ = false;
  home_.loop.open_streams().fetch_sub(1, std::memory_order_relaxed);
  home_.open_exchanges.fetch_sub(1, std::memory_order_relaxed);
  if (fields_.capacity() > 64) fields_ = FieldVector();
  co_return go_on;
}

void Http1Connection::start_watch() {
  if (watching_ || !in_exchange_ || peer_gone_ || !body_.received()) return;
  watching_ = true;
  socket_->watch([](void* self) { static_cast<Http1Connection*>(self)->on_watch(); }, this);
}

void Http1Connection::on_watch() {
  while (inbox_.room() != 0) {
    const ptrdiff_t got = socket_->try_read(inbox_.data() + inbox_.end, inbox_.room());
    if (got > 0) {
      inbox_.end += static_cast<size_t>(got);
      continue;
    }
    if (got == Socket::kWouldBlock) {
      socket_->watch([](void* self) { static_cast<Http1Connection*>(self)->on_watch(); }, this);
      return;
    }
    peer_gone_ = true;
    cancel_.cancel();
    return;
  }
}

// --- request body ---

std::optional<uint64_t> Http1Connection::content_length() const {
  if (framing_.kind == MessageFraming::Kind::kChunked) return std::nullopt;
  return framing_.length;
}

Task<Status> Http1Connection::send_continue() {
  continue_due_ = false;
  if (writer_.started()) co_return Status();
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  iovec vector{const_cast<char*>(kContinue.data()), kContinue.size()};
  const CancelToken token = cancel_.token();
  Status status =
      co_await socket_->write_all(std::span<iovec>(&vector, 1), server_->options.write_timeout, token);
  co_return status;
}

Error Http1Connection::body_error(BodyReader::Step step, size_t limit) {
  body_failed_ = true;
  if (step == BodyReader::Step::kNoRoom)
    return Error{ErrorCode::kResourceExhausted, "there is no room for the request body"};
  if (step == BodyReader::Step::kTooLarge)
    return Error{ErrorCode::kPayloadTooLarge,
                 "the request body is larger than the limit of " + std::to_string(limit) + " bytes"};
  return Error{ErrorCode::kBadRequest, "malformed chunked request body"};
}

// One receive, waiting for it when needed.
Task<Status> Http1Connection::receive_body(const char* what) {
  const CancelToken token = cancel_.token();
  for (;;) {
    const ptrdiff_t got = socket_->maybe_readable() ? body_.receive(*socket_) : Socket::kWouldBlock;
    if (got > 0) {
      if (turn_.spend(static_cast<size_t>(got))) co_await home_.loop.yield();
      co_return Status();
    }
    if (got != Socket::kWouldBlock) {
      body_failed_ = true;
      peer_gone_ = true;
      cancel_.cancel();
      co_return Error{ErrorCode::kClientClosed, std::string(what) + ": the client closed the connection"};
    }
    const Wait::Outcome outcome = co_await socket_->readable(server_->options.body_timeout, token);
    if (outcome != Wait::Outcome::kReady) {
      body_failed_ = true;
      co_return status_of(outcome, ErrorCode::kRequestTimeout, what);
    }
    turn_.restart();
  }
}

Task<Result<BodyPiece>> Http1Connection::read() {
  if (continue_due_) {
    Status status = co_await send_continue();
    if (!status.ok()) co_return std::move(status).error();
  }
  BodyPiece piece;
  for (;;) {
    const BodyReader::Step step = body_.next(piece);
    if (step == BodyReader::Step::kPiece) {
      if (piece.last) start_watch();
      co_return piece;
    }
    if (step != BodyReader::Step::kNeedMore) co_return body_error(step, server_->options.max_body_bytes);
    Status status = co_await receive_body("request body");
    if (!status.ok()) co_return std::move(status).error();
  }
}

Task<Result<std::span<char>>> Http1Connection::read_whole(size_t limit, BodyBudget* budget) {
  const size_t effective = static_cast<size_t>(std::min<uint64_t>(limit, server_->options.max_body_bytes));
  BodyReader::Step step = body_.begin_whole(effective, budget);
  if (step == BodyReader::Step::kNeedMore && continue_due_) {
    Status status = co_await send_continue();
    if (!status.ok()) co_return std::move(status).error();
  }
  const CancelToken token = cancel_.token();
  TimePoint deadline = kNever;
  while (step == BodyReader::Step::kNeedMore) {
    const ptrdiff_t got = socket_->maybe_readable() ? body_.receive_whole(*socket_) : Socket::kWouldBlock;
    if (got > 0) {
      if (turn_.spend(static_cast<size_t>(got))) co_await home_.loop.yield();
      step = body_.check_whole(effective);
      continue;
    }
    if (got == BodyReader::kNoMemory) {
      step = BodyReader::Step::kNoRoom;
      break;
    }
    if (got != Socket::kWouldBlock) {
      body_failed_ = true;
      peer_gone_ = true;
      cancel_.cancel();
      co_return Error{ErrorCode::kClientClosed, "request body: the client closed the connection"};
    }
    body_.rest_whole();
    Duration patience = server_->options.body_timeout;
    bool out_of_time = false;
    if (server_->options.body_total_timeout > Duration::zero()) {
      const TimePoint now = home_.loop.now();
      if (deadline == kNever) deadline = now + server_->options.body_total_timeout;
      out_of_time = now >= deadline;
      if (patience <= Duration::zero() || deadline - now < patience) patience = deadline - now;
    }
    Wait::Outcome outcome = Wait::Outcome::kTimedOut;
    if (!out_of_time) outcome = co_await socket_->readable(patience, token);
    if (outcome != Wait::Outcome::kReady) {
      body_failed_ = true;
      co_return std::move(status_of(outcome, ErrorCode::kRequestTimeout, "request body")).error();
    }
    turn_.restart();
  }
  if (step != BodyReader::Step::kPiece) co_return body_error(step, effective);
  start_watch();
  co_return body_.take_whole();
}

// --- response ---

Task<Status> Http1Connection::write_informational(int status, std::span<const HeaderField> fields) {
  if (head_.version == HttpVersion::kHttp10) co_return Status();
  if (status < 100 || status > 199 || status == 101 || writer_.started())
    co_return Error{ErrorCode::kInternal, "no informational response may be sent here"};
  std::string text = "HTTP/1.1 " + std::to_string(status) + " " + std::string(reason_phrase(status)) + "\r\n";
  bool unused = false;
  if (!append_fields(text, fields, unused, unused))
    co_return Error{ErrorCode::kInternal, "a response field has an invalid name or value"};
  text += "\r\n";
  iovec vector{text.data(), text.size()};
  const CancelToken token = cancel_.token();
  Status sent =
      co_await socket_->write_all(std::span<iovec>(&vector, 1), server_->options.write_timeout, token);
  co_return sent;
}

Status Http1Connection::write_head(int status, std::span<const HeaderField> fields, BodyFraming framing) {
  if (writer_.started()) return Error{ErrorCode::kInternal, "a response head was written twice"};
  if (status < 200 || status > 999)
    return Error{ErrorCode::kInternal, "not a final status: " + std::to_string(status)};
  const bool http10 = head_.version == HttpVersion::kHttp10;
  const bool bodiless = status == 204 || status == 304;

  if (close_after_ || body_failed_ || server_->draining.load(std::memory_order_relaxed)) keep_alive_ = false;
  if (continue_due_) keep_alive_ = false;  // whether the client will send its body is its choice
  if (!body_.finished() && !body_.received() &&
      (body_.kind() == MessageFraming::Kind::kChunked || body_.left() > kUnreadBodyKept))
    keep_alive_ = false;

  std::string& out = writer_.out();
  out.clear();
  if (status == 200) {
    out += "HTTP/1.1 200 OK\r\n";
  } else {
    out += "HTTP/1.1 ";
    append_number(out, static_cast<uint64_t>(status));
    out += ' ';
    out += reason_phrase(status);
    out += "\r\n";
  }
  bool has_date = false;
  bool unused = false;
  if (!append_fields(out, fields, has_date, unused)) {
    out.clear();
    return Error{ErrorCode::kInternal, "a response field has an invalid name or value"};
  }
  if (!has_date) {
    out += "date: ";
    out += http_date();
    out += "\r\n";
  }
  MessageWriter::Kind kind = MessageWriter::Kind::kNone;
  switch (framing.kind) {
    case BodyFraming::Kind::kNone:
      if (!bodiless && head_.method != "HEAD") out += "content-length: 0\r\n";
      break;
    case BodyFraming::Kind::kLength:
      kind = MessageWriter::Kind::kLength;
      if (!bodiless) {
        out += "content-length: ";
        append_number(out, framing.length);
        out += "\r\n";
      }
      break;
    case BodyFraming::Kind::kChunked:
      kind = http10 ? MessageWriter::Kind::kUntilClose : MessageWriter::Kind::kChunked;
      if (http10) {
        if (!bodiless && head_.method != "HEAD") keep_alive_ = false;
      } else if (!bodiless) {
        out += "transfer-encoding: chunked\r\n";
      }
      break;
  }
  if (!keep_alive_) {
    out += "connection: close\r\n";
  } else if (http10) {
    out += "connection: keep-alive\r\n";
  }
  out += "\r\n";
  writer_.start(kind, framing.length, bodiless || head_.method == "HEAD");
  return {};
}

Task<Status> Http1Connection::send(std::span<const std::string_view> pieces, bool end,
                                   std::span<const HeaderField> trailers) {
  return writer_.send(*socket_, pieces, end, trailers, server_->options.write_timeout, cancel_.token(),
                      *this);
}

void Http1Connection::send_failed(Error& error) {
  aborted_ = true;
  if (error.code != ErrorCode::kIo) return;
  peer_gone_ = true;
  error.code = ErrorCode::kClientClosed;
  cancel_.cancel();
}

Task<Status> Http1Connection::flush() {
  return send({}, false, {});
}

Task<Status> Http1Connection::write(std::span<const std::string_view> pieces) {
  return send(pieces, false, {});
}

Task<Status> Http1Connection::finish(std::span<const std::string_view> pieces,
                                     std::span<const HeaderField> trailers) {
  return send(pieces, true, trailers);
}

}  // namespace penstock::io::detail
