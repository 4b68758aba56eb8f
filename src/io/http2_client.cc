#include "io/detail/http2_client.h"

#include <algorithm>
#include <charconv>

#include "base/strings.h"

namespace penstock::io {

namespace detail {

namespace {
constexpr uint32_t kCallsKept = 1024;  // of one client, for the next calls
}  // namespace

// --- the call ---

Error Http2Call::gone_error(const char* doing) const {
  std::string why = "the peer reset the stream";
  if (too_large_) {
    why = "too large a response head";
  } else if (unprocessed_) {
    why = "the peer takes no more requests on this connection";
  } else if (reset_by_us_) {
    why = "the request was broken off";
  } else if (core_->lost()) {
    why = connection_->lost_why();
  } else if (close_code_ != NGHTTP2_NO_ERROR) {
    why += std::string(" with ") + nghttp2_http2_strerror(close_code_);
  }
  return Error{ErrorCode::kBadGateway, std::string(doing) + " from " + peer_.to_string() + ": " + why};
}

Task<Result<HttpCall::Sent>> Http2Call::write(std::span<const std::string_view> pieces, bool end,
                                              std::span<const HeaderField> trailers) {
  if (closed_ || reset_by_us_ || in_ended_) co_return HttpCall::Sent::kAnswered;
  if (Status status = account(pieces, end); !status.ok()) co_return std::move(status).error();
  if (end && out_kind_ == Out::kUnknown) {
    if (Status status = set_trailers(trailers); !status.ok()) co_return std::move(status).error();
  }
  if (queue(pieces, end)) co_return HttpCall::Sent::kAll;
  Status status = co_await send_waiting(pieces, end, write_timeout_, token_);
  if (status.ok()) co_return HttpCall::Sent::kAll;
  // The answer, or its absence, tells.
  if (in_ended_ || status.error().code == ErrorCode::kBadGateway) co_return HttpCall::Sent::kAnswered;
  co_return status.error().wrap("request to " + peer_.to_string());
}

Task<Result<const ResponseHead*>> Http2Call::response() {
  while (!head_read_) {
    if (closed_ || reset_by_us_) co_return gone_error("response");
    const Wait::Outcome outcome = co_await wait_for_news(first_byte_timeout_, token_);
    if (outcome == Wait::Outcome::kReady) continue;
    // A peer that hasn't said anything all the time may be gone: the next calls try another connection.
    if (outcome == Wait::Outcome::kTimedOut && core_->last_received() < started_at_)
      connection_->leave_pool();
    reset(NGHTTP2_CANCEL);
    Status status = status_of(outcome, ErrorCode::kGatewayTimeout, "waiting for a response");
    co_return status.error().wrap(peer_.to_string());
  }
  co_return &head_;
}

Task<Result<BodyPiece>> Http2Call::read() {
  return read_piece(idle_timeout_, token_, ~uint64_t{0});
}

Task<Result<std::span<char>>> Http2Call::read_all(size_t limit) {
  return read_whole(limit, ~uint64_t{0}, to_head_ ? std::nullopt : content_length_, idle_timeout_, token_);
}

bool Http2Call::failed_stale() const {
  if (unprocessed_) return true;
  return closed_ && broken_ && core_->lost() && reused_ && !head_read_ &&
         loop_.now() - started_at_ <= kStaleWindow;
}

bool Http2Call::complete_head() {
  const std::span<const HeaderField> all = fields_.all();
  if (all.empty() || all[0].name != ":status") return false;
  int status = 0;
  const std::string_view text = all[0].value;
  std::from_chars(text.data(), text.data() + text.size(), status);
  if (status < 200) {
    fields_.clear();
    return status >= 100 && status != 101 && ++informational_ <= kMaxInformational;
  }
  head_.status = status;
  head_.reason = reason_phrase(status);
  head_.version = HttpVersion::kHttp2;
  head_.fields = HeaderFields(all.subspan(1));
  if (const auto length = head_.fields.find("content-length")) {
    uint64_t value = 0;
    if (std::from_chars(length->data(), length->data() + length->size(), value).ec == std::errc())
      content_length_ = value;
  } else if (in_ended_) {
    content_length_ = 0;
  }
  head_read_ = true;
  return true;
}

void Http2Call::break_off() {
  if (closed_ || (in_ended_ && out_finished_ && queued() == 0)) return;
  drop_queue();
  reset(NGHTTP2_CANCEL);
  core_->push_ready(*this);
}

void Http2Call::release() {
  released_ = true;
  token_ = CancelToken();
  break_off();
  connection_->retire(*this);
}

void Http2Call::recycle() {
  detach();
  connection_ = nullptr;
  token_ = CancelToken();
  fields_.clear();
  head_ = ResponseHead{};
  content_length_.reset();
  informational_ = 0;
  to_head_ = reused_ = head_read_ = released_ = too_large_ = false;
}

// --- the connection ---

Http2ClientConnection::Http2ClientConnection(HttpClient::Impl& client, ClientPool& pool, SocketPtr socket)
    : Http2Core(client.loop, std::move(socket), Kind{}), client_(client), pool_(pool), peer_(peer_address()) {
  ++pool_.total;
  ++pool_.http2_count;
  next_ = pool_.http2;
  pool_.http2 = this;
  in_pool_ = true;
}

Http2ClientConnection::~Http2ClientConnection() {
  leave_pool();
  while (streams_ != nullptr) {
    auto* call = static_cast<Http2Call*>(streams_);
    forget(*call);
    call->recycle();
    delete call;
  }
  --pool_.total;
}

void Http2ClientConnection::begin() {
  const HttpClientOptions& options = client_.options;
  Limits limits;
  limits.stream_window = std::min(options.http2_stream_window_bytes, 0x7fffffffU);
  limits.connection_window = options.http2_connection_window_bytes;
  limits.max_header_bytes = static_cast<uint32_t>(options.max_header_bytes);
  limits.backlog = &client_.http2_backlog;
  limits.write_timeout = std::chrono::seconds(60);
  limits.ping_rest = options.http2_ping_rest;
  limits.ping_interval = options.http2_ping_interval;
  limits.ping_timeout = options.http2_ping_timeout;
  for (const Duration watched : {options.idle_timeout, limits.ping_interval, limits.ping_timeout})
    if (watched > Duration::zero())
      limits.tick = std::clamp<Duration>(watched / 4, std::chrono::milliseconds(5), limits.tick);
  Http2Core::begin(limits, {});
}

uint32_t Http2ClientConnection::wanted_calls() const {
  const uint32_t peers =
      nghttp2_session_get_remote_settings(session(), NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS);
  return std::max(std::min(peers, client_.options.http2_calls_per_connection), 1U);
}

Result<Http2Call*> Http2ClientConnection::open(const HttpRequest& request, const HttpCallOptions& options) {
  if (!is_token(request.method) || request.target.empty() || !is_field_text(request.target) ||
      request.target.find_first_of(" \t") != std::string_view::npos)
    return Error{ErrorCode::kInternal, "a request has an invalid method or target"};
  Http2Call* call = client_.free_calls;
  if (call != nullptr) {
    client_.free_calls = call->pool_next_;
    --client_.free_call_count;
  } else {
    call = new Http2Call(loop());
  }
  call->connection_ = this;
  call->peer_ = peer_;
  call->token_ = options.token;
  call->write_timeout_ = options.write_timeout;
  call->first_byte_timeout_ = options.first_byte_timeout;
  call->idle_timeout_ = options.idle_timeout;
  call->started_at_ = loop().now();
  call->reused_ = opened_calls_++ != 0;
  call->to_head_ = request.method == "HEAD";

  std::string_view authority = pool_.host_field;
  for (const HeaderField& field : request.fields)
    if (field.name.size() == 4 && ascii_iequals(field.name, "host")) authority = field.value;
  const std::string_view scheme = is_tls() ? "https" : "http";
  FieldBlock& head = call->head_out_;
  head.begin(request.fields, 5,
             7 + request.method.size() + 7 + scheme.size() + 10 + authority.size() + 5 +
                 request.target.size() + 14 + 20);
  head.add(":method", request.method);
  head.add(":scheme", scheme);
  head.add(":authority", authority);
  head.add(":path", request.target);
  bool valid = is_field_text(authority) && head.add_all(request.fields, true);
  char digits[24];
  switch (request.framing.kind) {
    case BodyFraming::Kind::kNone:
      call->out_kind_ = Http2Call::Out::kNone;
      if (request.method == "POST" || request.method == "PUT" || request.method == "PATCH")
        head.add("content-length", "0");
      break;
    case BodyFraming::Kind::kLength: {
      call->out_kind_ = Http2Call::Out::kLength;
      call->out_left_ = request.framing.length;
      const auto text = std::to_chars(digits, digits + sizeof(digits), request.framing.length);
      head.add("content-length", {digits, static_cast<size_t>(text.ptr - digits)});
      break;
    }
    case BodyFraming::Kind::kChunked:
      call->out_kind_ = Http2Call::Out::kUnknown;
      break;
  }
  const bool end = request.complete || request.framing.kind == BodyFraming::Kind::kNone;
  bool empty = true;
  for (const std::string_view piece : request.body) empty = empty && piece.empty();
  const nghttp2_data_provider body = call->provider();
  int32_t id = -1;
  if (valid)
    id = nghttp2_submit_request(session(), nullptr, head.data(), head.size(), end && empty ? nullptr : &body,
                                static_cast<Http2Stream*>(call));
  if (id < 0) {
    call->connection_ = nullptr;
    call->head_out_.clear();
    delete call;
    if (!valid) return Error{ErrorCode::kInternal, "a request field has an invalid name or value"};
    leave_pool();  // stream numbers are used up, or the session is ending
    return Error{ErrorCode::kBadGateway, "the connection takes no more calls"};
  }
  call->attach(*this, id);
  call->out_started_ = true;
  if (end && empty) call->out_finished_ = true;
  idle_since_ = kNever;
  mark_dirty();
  return call;
}

void Http2ClientConnection::close_if_idle() {
  if (stream_count_ != 0 || lost()) return;
  leave_pool();
  ended_by_us_ = true;
  nghttp2_session_terminate_session(session(), NGHTTP2_NO_ERROR);
  flush_now();
  lose("idle");
}

void Http2ClientConnection::leave_pool() {
  if (!in_pool_) return;
  in_pool_ = false;
  Http2ClientConnection** at = &pool_.http2;
  while (*at != this) at = &(*at)->next_;
  *at = next_;
  --pool_.http2_count;
  next_ = client_.over;
  client_.over = this;
}

Http2Stream* Http2ClientConnection::on_headers_begin(const nghttp2_frame& frame) {
  return find(frame.hd.stream_id);
}

int Http2ClientConnection::on_header(Http2Stream& stream, const nghttp2_frame&, std::string_view name,
                                     std::string_view value) {
  auto& call = static_cast<Http2Call&>(stream);
  FieldStore& store = call.head_read_ ? call.trailers_in_ : call.fields_;
  const HttpClientOptions& options = client_.options;
  if (store.bytes() + name.size() + value.size() > options.max_header_bytes ||
      store.size() > options.max_headers) {
    call.too_large_ = true;
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  }
  store.add(name, value);
  return 0;
}

void Http2ClientConnection::on_headers_end(Http2Stream& stream, const nghttp2_frame&) {
  auto& call = static_cast<Http2Call&>(stream);
  if (!call.head_read_ && !call.complete_head()) call.reset(NGHTTP2_PROTOCOL_ERROR);
  push_ready(call);
}

void Http2ClientConnection::on_closed(Http2Stream& stream, uint32_t error_code, bool) {
  auto& call = static_cast<Http2Call&>(stream);
  // What was never sent, or what the peer says it has not looked at, may be sent again.
  if (!call.head_read_ && !call.reset_by_us_ &&
      (error_code == NGHTTP2_REFUSED_STREAM || !call.out_headers_sent_))
    call.unprocessed_ = true;
}

void Http2ClientConnection::on_goaway(int32_t, uint32_t) {
  leave_pool();
}

void Http2ClientConnection::on_ready(Http2Stream& stream) {
  auto& call = static_cast<Http2Call&>(stream);
  if (call.released_) {
    retire(call);
    return;
  }
  if (call.closed_ || call.in_ended_ || call.reset_by_us_) call.wake_writer();
  call.wake_reader();
}

void Http2ClientConnection::retire(Http2Call& call) {
  if (!call.closed_) return;
  if (!call.detachable()) {
    push_ready(call);
    return;
  }
  call.recycle();
  if (client_.free_call_count < kCallsKept) {
    ++client_.free_call_count;
    call.pool_next_ = client_.free_calls;
    client_.free_calls = &call;
  } else {
    delete &call;
  }
  if (stream_count_ == 0 && closed()) client_.reaper.request();
}

void Http2ClientConnection::on_tick(TimePoint now) {
  if (stream_count_ != 0) {
    idle_since_ = kNever;
    return;
  }
  if (idle_since_ == kNever) idle_since_ = now;
  if (now - idle_since_ >= client_.options.idle_timeout) close_if_idle();
}

void Http2ClientConnection::on_lost() {
  leave_pool();
  if (stream_count_ != 0) return;
  if (!ended_by_us_) ++client_.stats.idle_closed_by_peer;
  client_.reaper.request();
}

}  // namespace detail

// --- the client's part ---

void HttpClient::Impl::reap() {
  for (detail::Http2ClientConnection** at = &over; *at != nullptr;) {
    detail::Http2ClientConnection* connection = *at;
    if (connection->calls() == 0 && connection->closed()) {
      *at = connection->next_;
      delete connection;
    } else {
      at = &connection->next_;
    }
  }
}

void HttpClient::Impl::end_http2() {
  for (const auto& [key, bucket] : pools) {
    for (const auto& pool : bucket)
      while (pool->http2 != nullptr) pool->http2->leave_pool();
  }
  while (over != nullptr) {
    detail::Http2ClientConnection* connection = over;
    over = connection->next_;
    delete connection;
  }
  while (free_calls != nullptr) delete std::exchange(free_calls, free_calls->pool_next_);
}

Task<Result<HttpCall>> HttpClient::Impl::start_http2(detail::ClientPool& pool, const HttpRequest& request,
                                                     const HttpCallOptions& call_options) {
  struct Waiting {
    explicit Waiting(uint32_t& n) : count(n) { ++count; }
    ~Waiting() { --count; }
    uint32_t& count;
  };
  const Waiting waiting(pool.waiting);
  const bool limited = call_options.connect_timeout > Duration::zero();
  const TimePoint deadline = loop.now() + call_options.connect_timeout;
  bool fresh = call_options.fresh_connection;
  bool refused = false;
  // Another connection would be better and can't be had: one of those that there are will do.
  bool settles = false;
  const auto failed = [&] {
    settles = !call_options.fresh_connection && pool.http2 != nullptr;
    return !settles;
  };
  for (;;) {
    detail::Http2ClientConnection* best = nullptr;
    for (detail::Http2ClientConnection* at = pool.http2; at != nullptr; at = at->next_)
      if (best == nullptr || at->calls() < best->calls()) best = at;
    const bool full = best == nullptr || best->calls() >= best->wanted_calls() || fresh;
    if (best != nullptr &&
        (!full || settles || pool.http2_count >= options.http2_connections_per_destination)) {
      auto opened = best->open(request, call_options);
      if (!opened.ok()) {
        if (opened.error().code == ErrorCode::kInternal || std::exchange(refused, true))
          co_return std::move(opened).error();
        continue;
      }
      detail::Http2Call* made = *opened;
      if (made->reused()) ++stats.connections_reused;
      HttpCall call(made);
      if (!request.body.empty() && !made->out_finished_) {
        auto sent = co_await made->write(request.body, request.complete, {});
        if (!sent.ok()) co_return std::move(sent).error();
      }
      co_return std::move(call);
    }
    if (call_options.token.cancelled())
      co_return Error{ErrorCode::kCancelled, "cancelled before the request was sent"};
    if (pool.http2_connecting) {
      // One attempt for all who want it.
      const Duration left = limited ? std::max(deadline - loop.now(), Duration(1)) : Duration::zero();
      Status status = co_await pool.http2_connected.wait(left, call_options.token);
      if (!status.ok()) {
        Error error = std::move(status).error();
        if (error.code == ErrorCode::kRequestTimeout && !failed()) continue;
        if (error.code == ErrorCode::kRequestTimeout) error.code = ErrorCode::kGatewayTimeout;
        co_return error.wrap("connecting to " + pool.host_field);
      }
      if (pool.http2_failure && failed()) co_return *pool.http2_failure;
      fresh = false;
      continue;
    }
    pool.http2_connecting = true;
    pool.http2_connected.reset();
    pool.http2_failure.reset();
    struct Attempt {
      explicit Attempt(detail::ClientPool& p) : pool(p) {}
      ~Attempt() {
        pool.http2_connecting = false;
        pool.http2_connected.set();
      }
      detail::ClientPool& pool;
    };
    const Attempt attempt(pool);
    auto socket = co_await connect(pool, call_options);
    if (!socket.ok()) {
      // Whoever was cancelled says nothing about the peer: the others try for themselves.
      if (socket.error().code != ErrorCode::kCancelled) {
        pool.http2_failure = socket.error();
        if (!failed()) continue;
      }
      co_return std::move(socket).error();
    }
    auto* connection = new detail::Http2ClientConnection(*this, pool, std::move(*socket));
    connection->begin();
    fresh = false;
  }
}

}  // namespace penstock::io
