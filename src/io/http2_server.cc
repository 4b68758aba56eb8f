#include "io/detail/http2_server.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/strings.h"

namespace penstock::io {

namespace detail {

namespace {

constexpr uint32_t kRememberedStreams = 4096;  // more would take too much memory
constexpr uint32_t kExchangesKept = 4096;      // of one loop, for the next streams
constexpr size_t kHardHeaderFactor = 4;        // a head of this many times the limit isn't worth a 431

// Counters with one writer.
template <typename T>
void add(std::atomic<T>& counter, T more) {
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

Http2Core::Limits limits_of(const HttpServerOptions& options, ServerLoop& home) {
  const Http2ServerOptions& http2 = options.http2;
  Http2Core::Limits limits;
  limits.max_concurrent_streams = std::max(http2.max_concurrent_streams, 1U);
  limits.stream_window = std::min(http2.stream_window_bytes, 0x7fffffffU);
  limits.connection_window = http2.connection_window_bytes;
  limits.max_frame_bytes = http2.max_frame_bytes;
  limits.max_header_bytes = static_cast<uint32_t>(std::min<size_t>(options.max_header_bytes, 1U << 30U));
  limits.stream_queue_bytes = http2.stream_queue_bytes;
  limits.connection_queue_bytes = http2.connection_queue_bytes;
  limits.backlog = &home.http2_backlog;
  limits.control_burst = http2.control_burst;
  limits.control_per_second = http2.control_per_second;
  limits.write_timeout = options.write_timeout;
  limits.header_timeout = options.header_timeout;
  limits.linger_timeout = options.linger_timeout;
  limits.ping_interval = http2.ping_interval;
  limits.ping_timeout = http2.ping_timeout;
  // Often enough for the shortest of what it looks after.
  for (const Duration watched :
       {options.write_timeout, options.header_timeout, options.idle_timeout, options.linger_timeout,
        http2.ping_interval, http2.ping_timeout, http2.max_connection_age, http2.rebalance_after}) {
    if (watched > Duration::zero())
      limits.tick = std::clamp<Duration>(watched / 4, std::chrono::milliseconds(5), limits.tick);
  }
  return limits;
}

}  // namespace

ServerLoop::~ServerLoop() {
  while (free_exchanges != nullptr) delete std::exchange(free_exchanges, free_exchanges->pool_next_);
}

// --- the exchange ---

const ConnectionInfo& Http2Exchange::connection() const {
  return connection_->info_;
}

const HttpServerOptions& Http2Exchange::options() const {
  return connection_->server_->options;
}

bool Http2Exchange::connection_lost() const {
  return core_ != nullptr && core_->lost();
}

Error Http2Exchange::gone_error(const char* doing) const {
  return Error{ErrorCode::kClientClosed,
               std::string(doing) + (connection_lost() ? ": the client closed the connection"
                                     : reset_by_us_    ? ": the stream was reset"
                                                       : ": the client reset the stream")};
}

int Http2Exchange::complete_head() {
  fields_.join_cookies();
  const std::span<const HeaderField> all = fields_.all();
  size_t pseudo = 0;
  for (; pseudo < all.size() && all[pseudo].name.starts_with(':'); ++pseudo) {
    const auto& [name, value] = all[pseudo];
    if (name == ":method") {
      head_.method = value;
    } else if (name == ":path") {
      head_.target = value;
    } else if (name == ":authority") {
      head_.authority = value;
    }
  }
  head_.version = HttpVersion::kHttp2;
  head_.fields = HeaderFields(all.subspan(pseudo));
  head_.path = head_.target.substr(0, head_.target.find('?'));
  head_.query = head_.path.size() < head_.target.size() ? head_.target.substr(head_.path.size() + 1)
                                                        : std::string_view();
  if (bodiless_) content_length_ = 0;
  bool expects = false;
  bool unknown_expectation = false;
  for (const HeaderField& field : head_.fields) {
    switch (field.name.size()) {
      case 4:
        if (head_.authority.empty() && field.name == "host") head_.authority = field.value;
        break;
      case 6:
        if (field.name == "expect") {
          expects = ascii_iequals(field.value, "100-continue");
          unknown_expectation = !expects;
        }
        break;
      case 14:
        if (field.name == "content-length" && !bodiless_) {
          uint64_t length = 0;
          const auto parsed =
              std::from_chars(field.value.data(), field.value.data() + field.value.size(), length);
          if (parsed.ec == std::errc()) content_length_ = length;
        }
        break;
      default:
        break;
    }
  }
  continue_due_ = expects && !in_ended_ && in_total_ == 0;
  if (too_large_) return 431;
  if (unknown_expectation) return 417;
  if (head_.method == "CONNECT" || head_.target.empty()) return 501;
  return 0;
}

void Http2Exchange::send_continue() {
  if (!std::exchange(continue_due_, false) || closed_ || head_written_ || in_total_ != 0) return;
  static constexpr std::string_view kName = ":status";
  static constexpr std::string_view kValue = "100";
  const nghttp2_nv field{reinterpret_cast<uint8_t*>(const_cast<char*>(kName.data())),
                         reinterpret_cast<uint8_t*>(const_cast<char*>(kValue.data())), kName.size(),
                         kValue.size(), NGHTTP2_NV_FLAG_NONE};
  nghttp2_submit_headers(core_->session(), NGHTTP2_FLAG_NONE, id_, nullptr, &field, 1, nullptr);
  core_->mark_dirty();
}

Task<Result<BodyPiece>> Http2Exchange::read() {
  if (continue_due_) send_continue();
  return read_piece(options().body_timeout, CancelToken(), options().max_body_bytes);
}

Duration Http2Exchange::read_timeout() const {
  return options().body_timeout;
}

const CancelToken& Http2Exchange::never() {
  static const CancelToken token;
  return token;
}

std::optional<Result<BodyPiece>> Http2Exchange::read_there() {
  if (continue_due_) send_continue();
  return piece_there(options().max_body_bytes);
}

Task<Result<std::span<char>>> Http2Exchange::read_all(size_t limit) {
  if (continue_due_ && content_length_.value_or(0) <= limit) send_continue();
  return read_whole(limit, options().max_body_bytes, content_length_, options().body_timeout, CancelToken(),
                    options().body_total_timeout);
}

Task<Result<std::span<char>>> Http2Exchange::read_all_within(size_t limit, BodyBudget& budget) {
  if (continue_due_ && content_length_.value_or(0) <= limit) send_continue();
  return read_whole(limit, options().max_body_bytes, content_length_, options().body_timeout, CancelToken(),
                    options().body_total_timeout, &budget);
}

Task<Status> Http2Exchange::write_informational(int status, std::span<const HeaderField> fields) {
  if (status < 100 || status > 199 || status == 101 || head_written_)
    co_return Error{ErrorCode::kInternal, "no informational response may be sent here"};
  if (closed_ || reset_by_us_) co_return gone_error("write");
  FieldBlock block;
  block.begin(fields, 1, 16);
  const std::string text = std::to_string(status);
  block.add(":status", text);
  if (!block.add_all(fields, false))
    co_return Error{ErrorCode::kInternal, "a response field has an invalid name or value"};
  std::vector<nghttp2_nv> copied(block.data(), block.data() + block.size());
  for (nghttp2_nv& field : copied) field.flags = NGHTTP2_NV_FLAG_NONE;
  nghttp2_submit_headers(core_->session(), NGHTTP2_FLAG_NONE, id_, nullptr, copied.data(), copied.size(),
                         nullptr);
  core_->mark_dirty();
  co_return Status();
}

Status Http2Exchange::write_head(int status, std::span<const HeaderField> fields, BodyFraming framing) {
  if (head_written_) return Error{ErrorCode::kInternal, "a response head was written twice"};
  if (status < 200 || status > 999)
    return Error{ErrorCode::kInternal, "not a final status: " + std::to_string(status)};
  const bool bodiless = status == 204 || status == 304;
  const bool to_head = head_.method == "HEAD";
  // ":status" and its value, "content-length" and its value, "date" and its value
  head_out_.begin(fields, 3, 7 + 3 + 14 + 20 + 4 + 32);
  char digits[24];
  const auto number = [&digits](uint64_t value) {
    const auto result = std::to_chars(digits, digits + sizeof(digits), value);
    return std::string_view(digits, static_cast<size_t>(result.ptr - digits));
  };
  head_out_.add(":status", number(static_cast<uint64_t>(status)));
  if (!head_out_.add_all(fields, false)) {
    head_out_.clear();
    return Error{ErrorCode::kInternal, "a response field has an invalid name or value"};
  }
  bool grpc = false;
  for (const HeaderField& field : fields)
    grpc = grpc || (field.name.size() == 12 && field.value.starts_with("application/grpc"));
  switch (framing.kind) {
    case BodyFraming::Kind::kNone:
      out_kind_ = Out::kNone;
      if (!bodiless && !to_head) head_out_.add("content-length", "0");
      break;
    case BodyFraming::Kind::kLength:
      out_kind_ = Out::kLength;
      if (!bodiless) head_out_.add("content-length", number(framing.length));
      break;
    case BodyFraming::Kind::kChunked:
      out_kind_ = Out::kUnknown;
      break;
  }
  if (!grpc && !head_out_.has_date()) head_out_.add("date", http_date());
  out_left_ = framing.length;
  out_drop_ = bodiless || to_head;
  head_written_ = true;
  return {};
}

std::optional<Status> Http2Exchange::send_now(std::span<const std::string_view>& pieces, bool end,
                                              std::span<const HeaderField> trailers) {
  if (!head_written_) return Error{ErrorCode::kInternal, "a response body without a head"};
  if (Status status = account(pieces, end); !status.ok()) return status;
  if (end && out_kind_ == Out::kUnknown && !out_drop_) {
    if (Status status = set_trailers(trailers); !status.ok()) return status;
  }
  if (gone()) return gone_error("write");
  if (out_drop_) pieces = {};
  if (!out_started_) {
    out_started_ = true;
    bool empty = true;
    for (const std::string_view piece : pieces) empty = empty && piece.empty();
    if (end && empty && trailers_out_.size() == 0) {
      out_finished_ = true;
      nghttp2_submit_response(core_->session(), id_, head_out_.data(), head_out_.size(), nullptr);
      core_->mark_dirty();
      return Status();
    }
    const nghttp2_data_provider body = provider();
    nghttp2_submit_response(core_->session(), id_, head_out_.data(), head_out_.size(), &body);
  }
  if (queue(pieces, end)) return Status();
  return std::nullopt;
}

std::optional<Status> Http2Exchange::send_there(std::span<const std::string_view> pieces, bool end,
                                                std::span<const HeaderField> trailers) {
  if (!gone() && !takes(pieces)) return std::nullopt;
  return send_now(pieces, end, trailers);
}

Task<Status> Http2Exchange::send(std::span<const std::string_view> pieces, bool end,
                                 std::span<const HeaderField> trailers) {
  if (std::optional<Status> sent = send_now(pieces, end, trailers)) co_return std::move(*sent);
  Status status = co_await send_waiting(pieces, end, options().write_timeout, never());
  co_return status;
}

void Http2Exchange::abort() {
  reset(NGHTTP2_INTERNAL_ERROR);
  // Whoever waits in the exchange learns it now: the reset may have to wait for the socket.
  if (core_ != nullptr && reset_by_us_) core_->push_ready(*this);
}

void Http2Exchange::answer(int status) {
  HttpServerOptions::ErrorBody body;
  const std::string_view reason = reason_phrase(status);
  if (options().error_body) {
    body = options().error_body(status, reason);
  } else {
    body.content_type = "text/plain";
    body.body = std::string(reason) + "\n";
  }
  head_written_ = false;
  out_kind_ = Out::kNone;
  const HeaderField type{"content-type", body.content_type};
  if (!write_head(status, {&type, 1}, BodyFraming::of_length(body.body.size())).ok() || closed_) return;
  out_started_ = true;
  const nghttp2_data_provider data = provider();
  nghttp2_submit_response(core_->session(), id_, head_out_.data(), head_out_.size(), &data);
  std::string_view text = out_drop_ ? std::string_view() : std::string_view(body.body);
  text = text.substr(0, 16 * 1024);
  if (!queue({&text, 1}, true)) reset(NGHTTP2_INTERNAL_ERROR);
}

void Http2Exchange::recycle() {
  detach();
  connection_ = nullptr;
  state_ = State::kHead;
  fields_.clear();
  field_bytes_ = 0;
  head_ = RequestHead{};
  content_length_.reset();
  cancel_.reset();
  too_large_ = bodiless_ = continue_due_ = head_written_ = close_after_ = false;
}

// --- the connection ---

Http2ServerConnection::Http2ServerConnection(ServerConnection& from)
    : ServerConnection(from),
      Http2Core(home_.loop, std::move(ServerConnection::socket_),
                Kind{.server = true,
                     .remember = server_->options.http2.max_concurrent_streams <= kRememberedStreams,
                     .any_authority = server_->options.http2.any_authority}),
      gone_(home_.loop),
      resets_left_(server_->options.http2.reset_burst),
      opened_at_(home_.loop.now()),
      reset_refilled_at_(opened_at_) {
  add(home_.http2_connections, uint64_t{1});
}

Http2ServerConnection::~Http2ServerConnection() = default;

Task<void> Http2ServerConnection::serve(std::string_view received) {
  begin(limits_of(server_->options, home_), received);
  on_stop_.arm(
      home_.stop_idling.token(), [](void* self) { static_cast<Http2ServerConnection*>(self)->drain(); },
      this);
  (void)co_await gone_.wait();
}

void Http2ServerConnection::force_close() {
  if (!lost()) {
    nghttp2_session_terminate_session(session(), NGHTTP2_NO_ERROR);
    flush_now();
  }
  lose("the server is stopping");
}

void Http2ServerConnection::on_lost() {
  if (stream_count_ == 0) gone_.set();
}

Http2Stream* Http2ServerConnection::on_headers_begin(const nghttp2_frame& frame) {
  if (frame.headers.cat != NGHTTP2_HCAT_REQUEST) return find(frame.hd.stream_id);
  // Streams that the client has ended count as long as their handlers run: it resets faster than they end.
  if (stream_count_ >= 2 * limits().max_concurrent_streams) {
    nghttp2_submit_rst_stream(session(), NGHTTP2_FLAG_NONE, frame.hd.stream_id, NGHTTP2_REFUSED_STREAM);
    count_reset();
    return nullptr;
  }
  Http2Exchange* exchange = home_.free_exchanges;
  if (exchange != nullptr) {
    home_.free_exchanges = exchange->pool_next_;
    --home_.free_exchange_count;
  } else {
    exchange = new Http2Exchange(home_.loop);
  }
  exchange->connection_ = this;
  exchange->attach(*this, frame.hd.stream_id);
  add(home_.streams, 1U);
  home_.loop.open_streams().fetch_add(1, std::memory_order_relaxed);
  nghttp2_session_set_stream_user_data(session(), frame.hd.stream_id, static_cast<Http2Stream*>(exchange));
  return exchange;
}

int Http2ServerConnection::on_header(Http2Stream& stream, const nghttp2_frame&, std::string_view name,
                                     std::string_view value) {
  auto& exchange = static_cast<Http2Exchange&>(stream);
  const HttpServerOptions& options = server_->options;
  const size_t bytes = name.size() + value.size() + 32;
  if (exchange.state_ != Http2Exchange::State::kHead) {
    if (exchange.trailers_in_.bytes() + bytes > options.max_trailer_bytes + 32)
      return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    exchange.trailers_in_.add(name, value);
    return 0;
  }
  exchange.field_bytes_ += bytes;
  if (exchange.field_bytes_ > options.max_header_bytes ||
      (exchange.fields_.size() >= options.max_headers + 4 && !name.starts_with(':'))) {
    exchange.too_large_ = true;
    if (exchange.field_bytes_ > options.max_header_bytes * kHardHeaderFactor)
      return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    return 0;
  }
  exchange.fields_.add(name, value);
  return 0;
}

void Http2ServerConnection::on_headers_end(Http2Stream& stream, const nghttp2_frame& frame) {
  auto& exchange = static_cast<Http2Exchange&>(stream);
  if (frame.headers.cat == NGHTTP2_HCAT_REQUEST) {
    exchange.state_ = Http2Exchange::State::kReady;
    exchange.bodiless_ = (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    ++requests_;
  }
  push_ready(exchange);
}

void Http2ServerConnection::on_closed(Http2Stream& stream, uint32_t, bool reset_by_peer) {
  const auto& exchange = static_cast<Http2Exchange&>(stream);
  if (!reset_by_peer || exchange.out_started_ || lost()) return;
  add(home_.http2_early_resets, uint64_t{1});
  count_reset();
}

void Http2ServerConnection::on_reset_sent(int32_t, uint32_t error_code) {
  if (error_code == NGHTTP2_REFUSED_STREAM) {
    add(home_.http2_refused_streams, uint64_t{1});
    return;
  }
  add(home_.http2_malformed_streams, uint64_t{1});
  add(home_.bad_requests, uint64_t{1});
  count_reset();
}

void Http2ServerConnection::count_reset() {
  if (--resets_left_ < 0) give_up(Fault::kResetFlood, NGHTTP2_ENHANCE_YOUR_CALM);
}

void Http2ServerConnection::on_fault(Fault fault) {
  add(home_.http2_faults[static_cast<size_t>(fault)], uint64_t{1});
}

void Http2ServerConnection::on_stuck(Http2Stream&) {
  add(home_.http2_stalled_streams, uint64_t{1});
}

void Http2ServerConnection::on_ready(Http2Stream& stream) {
  auto& exchange = static_cast<Http2Exchange&>(stream);
  switch (exchange.state_) {
    case Http2Exchange::State::kHead:
      if (exchange.closed_) release(exchange);
      break;
    case Http2Exchange::State::kReady:
      if (exchange.closed_) {
        release(exchange);
      } else {
        start(exchange);
      }
      break;
    case Http2Exchange::State::kRunning:
      if (exchange.closed_ && exchange.broken_) exchange.cancel_.cancel();
      if (exchange.gone()) exchange.wake_writer();
      if (exchange.gone() || exchange.in_ended_ || exchange.anything_unread()) exchange.wake_reader();
      break;
    case Http2Exchange::State::kDone:
      settle(exchange);
      break;
  }
}

void Http2ServerConnection::start(Http2Exchange& exchange) {
  if (const int status = exchange.complete_head(); status != 0) {
    add(home_.bad_requests, uint64_t{1});
    exchange.state_ = Http2Exchange::State::kDone;
    exchange.drop_received();
    exchange.answer(status);
    return;
  }
  exchange.state_ = Http2Exchange::State::kRunning;
  home_.requests.fetch_add(1, std::memory_order_relaxed);
  spawn(home_.loop, run(exchange));
}

Task<void> Http2ServerConnection::run(Http2Exchange& exchange) {
  bool threw = false;
  try {
    Task<void> handling = server_->handler->handle(exchange);
    co_await std::move(handling);
  } catch (...) {
    threw = true;
  }
  ended(exchange, threw);
}

void Http2ServerConnection::ended(Http2Exchange& exchange, bool threw) {
  exchange.state_ = Http2Exchange::State::kDone;
  exchange.drop_received();
  if (!exchange.closed_ && !exchange.reset_by_us_) {
    if ((threw && !exchange.out_started_) || !exchange.head_written_) {
      exchange.answer(500);
    } else if (!exchange.out_finished_) {
      exchange.reset(NGHTTP2_INTERNAL_ERROR);
    }
  }
  if (exchange.close_after_) drain();
  settle(exchange);
}

void Http2ServerConnection::settle(Http2Exchange& exchange) {
  if (exchange.closed_) {
    release(exchange);
    return;
  }
  // Answered before the request had ended: the client needn't send the rest (RFC 9113, 8.1).
  if (exchange.out_end_sent_ && !exchange.in_ended_) exchange.reset(NGHTTP2_NO_ERROR);
}

void Http2ServerConnection::release(Http2Exchange& exchange) {
  if (!exchange.detachable()) return;
  exchange.recycle();
  add(home_.streams, ~0U);
  home_.loop.open_streams().fetch_sub(1, std::memory_order_relaxed);
  if (home_.free_exchange_count < kExchangesKept) {
    ++home_.free_exchange_count;
    exchange.pool_next_ = home_.free_exchanges;
    home_.free_exchanges = &exchange;
  } else {
    delete &exchange;
  }
  if (stream_count_ == 0 && closed()) gone_.set();
}

void Http2ServerConnection::on_tick(TimePoint now) {
  const Http2ServerOptions& http2 = server_->options.http2;
  reset_credit_ += http2.resets_per_second * std::chrono::duration<double>(now - reset_refilled_at_).count();
  reset_refilled_at_ = now;
  const auto whole = static_cast<int64_t>(reset_credit_);
  reset_credit_ -= static_cast<double>(whole);
  resets_left_ = std::min<int64_t>(resets_left_ + whole, http2.reset_burst);

  if (stream_count_ != 0) {
    idle_since_ = kNever;
  } else {
    if (idle_since_ == kNever) idle_since_ = now;
    const Duration limit = requests_ == 0 ? server_->options.header_timeout : server_->options.idle_timeout;
    if (limit > Duration::zero() && now - idle_since_ >= limit) drain();
  }
  if (http2.max_connection_age > Duration::zero() && now - opened_at_ >= http2.max_connection_age) drain();
  if (http2.rebalance_factor > 0 && server_->loops.size() > 1 && !draining()) rebalance(now);
}

void Http2ServerConnection::rebalance(TimePoint now) {
  const Http2ServerOptions& http2 = server_->options.http2;
  const uint32_t mine = home_.streams.load(std::memory_order_relaxed);
  uint32_t least = mine;
  for (const auto& other : server_->loops)
    least = std::min(least, other->streams.load(std::memory_order_relaxed));
  if (mine < least + http2.rebalance_streams || mine <= least * http2.rebalance_factor) {
    home_.unbalanced_since = kNever;
    return;
  }
  if (home_.unbalanced_since == kNever) home_.unbalanced_since = now;
  // Moving this one must leave both loops with less than we have now.
  if (now - home_.unbalanced_since < http2.rebalance_after || stream_count_ == 0 ||
      least + stream_count_ >= mine)
    return;
  home_.unbalanced_since = kNever;
  add(home_.http2_rebalanced, uint64_t{1});
  drain();
}

}  // namespace detail
}  // namespace penstock::io
