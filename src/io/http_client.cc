#include "io/http_client.h"

#include <algorithm>

#include "base/hash.h"
#include "base/strings.h"
#include "io/detail/http1_client.h"
#include "io/detail/http2_client.h"

namespace penstock::io {

// --- HttpCall ---

HttpCall& HttpCall::operator=(HttpCall&& other) noexcept {
  if (this != &other) {
    close();
    call_ = std::exchange(other.call_, nullptr);
  }
  return *this;
}
void HttpCall::close() {
  if (call_ != nullptr) std::exchange(call_, nullptr)->release();
}
void HttpCall::break_off() {
  if (call_ != nullptr) call_->break_off();
}
bool HttpCall::reused() const {
  return call_ != nullptr && call_->reused();
}
bool HttpCall::failed_stale() const {
  return call_ != nullptr && call_->failed_stale();
}
SocketAddress HttpCall::peer() const {
  return call_ != nullptr ? call_->peer() : SocketAddress();
}
Task<Result<HttpCall::Sent>> HttpCall::write(std::span<const std::string_view> pieces) {
  return call_->write(pieces, false, {});
}
Task<Result<HttpCall::Sent>> HttpCall::finish(std::span<const std::string_view> pieces,
                                              std::span<const HeaderField> trailers) {
  return call_->write(pieces, true, trailers);
}
Task<Result<const ResponseHead*>> HttpCall::response() {
  return call_->response();
}
Task<Result<BodyPiece>> HttpCall::read() {
  return call_->read();
}
Task<Result<std::span<char>>> HttpCall::read_all(size_t limit) {
  return call_->read_all(limit);
}
HeaderFields HttpCall::trailers() const {
  return call_->trailers();
}
std::optional<uint64_t> HttpCall::content_length() const {
  return call_->content_length();
}

// --- pools ---

namespace {

uint64_t key_of(const HttpDestination& destination) {
  return hash_of(destination.host) * 31 + destination.port;
}

bool same(const HttpDestination& a, const HttpDestination& b) {
  return a.port == b.port && a.tls == b.tls && a.http2 == b.http2 && a.host == b.host &&
         a.server_name == b.server_name;
}

}  // namespace

detail::ClientPool* HttpClient::Impl::find(const HttpDestination& destination) {
  const auto bucket = pools.find(key_of(destination));
  if (bucket == pools.end()) return nullptr;
  for (const auto& pool : bucket->second)
    if (same(pool->destination, destination)) return pool.get();
  return nullptr;
}

detail::ClientPool& HttpClient::Impl::pool_of(const HttpDestination& destination) {
  if (detail::ClientPool* pool = find(destination)) return *pool;
  if (pool_count >= sweep_at) sweep();
  auto pool = std::make_unique<detail::ClientPool>(loop);
  pool->destination = destination;
  const uint16_t usual = destination.tls ? 443 : 80;
  const std::string with_port = join_host_port(destination.host, destination.port);
  pool->host_field = destination.port == usual ? with_port.substr(0, with_port.rfind(':')) : with_port;
  ++pool_count;
  auto& bucket = pools[key_of(destination)];
  bucket.push_back(std::move(pool));
  return *bucket.back();
}

void HttpClient::Impl::sweep() {
  for (auto bucket = pools.begin(); bucket != pools.end();) {
    pool_count -= static_cast<size_t>(std::erase_if(
        bucket->second, [](const auto& pool) { return pool->total == 0 && pool->waiting == 0; }));
    bucket = bucket->second.empty() ? pools.erase(bucket) : std::next(bucket);
  }
  sweep_at = std::max<size_t>(256, pool_count * 2);
}

void HttpClient::Impl::drop_idle(detail::ClientPool& pool) {
  while (pool.newest_idle != nullptr) delete pool.newest_idle;
  for (detail::Http2ClientConnection* at = pool.http2; at != nullptr;) {
    detail::Http2ClientConnection* next = at->next_in_pool();
    at->close_if_idle();
    at = next;
  }
}

HttpClient::HttpClient(Loop& loop, HttpClientOptions options)
    : impl_(std::make_unique<Impl>(loop, options)) {}

HttpClient::~HttpClient() {
  drop_idle();
  impl_->end_http2();
}

Loop& HttpClient::loop() {
  return impl_->loop;
}

HttpClient::Stats HttpClient::stats() const {
  Stats out = impl_->stats;
  uint64_t total = 0;
  for (const auto& [key, bucket] : impl_->pools)
    for (const auto& pool : bucket) {
      total += pool->total;
      for (const detail::Http2ClientConnection* at = pool->http2; at != nullptr; at = at->next_in_pool())
        out.connections_idle += at->calls() == 0 ? 1 : 0;
    }
  out.connections_busy = total - out.connections_idle;
  return out;
}

void HttpClient::drop_idle(const HttpDestination& destination) {
  if (detail::ClientPool* pool = impl_->find(destination)) impl_->drop_idle(*pool);
}

void HttpClient::drop_idle() {
  for (const auto& [key, bucket] : impl_->pools)
    for (const auto& pool : bucket) impl_->drop_idle(*pool);
}

// --- calls ---

Task<Result<detail::SocketPtr>> HttpClient::Impl::connect(detail::ClientPool& pool,
                                                          const HttpCallOptions& call_options) {
  struct Count {
    explicit Count(uint32_t& n) : total(n) { ++total; }
    ~Count() { --total; }
    uint32_t& total;
  };
  if (pool.total >= options.max_connections_per_destination)
    co_return Error{ErrorCode::kResourceExhausted,
                    "more than " + std::to_string(options.max_connections_per_destination) +
                        " connections to " + pool.host_field};
  const Count counted(pool.total);
  const auto as_gateway_error = [&](Error error) {
    if (error.code == ErrorCode::kIo) error.code = ErrorCode::kBadGateway;
    return error;
  };
  const bool limited = call_options.connect_timeout > Duration::zero();
  const TimePoint deadline = loop.now() + call_options.connect_timeout;
  const auto left = [&] { return limited ? std::max(deadline - loop.now(), Duration(1)) : Duration::zero(); };
  if (pool.addresses.empty() || loop.now() - pool.resolved_at > options.resolve_ttl) {
    auto resolved =
        co_await resolve(loop, pool.destination.host, pool.destination.port, left(), call_options.token);
    if (!resolved.ok()) co_return as_gateway_error(std::move(resolved).error());
    pool.addresses = std::move(*resolved);
    pool.resolved_at = loop.now();
  }
  const std::vector<SocketAddress> addresses = pool.addresses;
  auto socket = co_await detail::connect_any(loop, addresses, left(), call_options.token);
  if (!socket.ok()) {
    pool.addresses.clear();
    co_return as_gateway_error(std::move(socket).error());
  }
  if (pool.destination.tls) {
    const HttpDestination& to = pool.destination;
    Status status = co_await (*socket)->handshake_client(
        *to.tls, to.server_name.empty() ? to.host : to.server_name, left(), call_options.token, to.http2);
    if (!status.ok()) co_return as_gateway_error(std::move(status).error());
    if (to.http2 && (*socket)->alpn() != "h2")
      co_return Error{ErrorCode::kBadGateway, pool.host_field + " doesn't speak HTTP/2"};
  }
  ++stats.connections_opened;
  co_return std::move(*socket);
}

Task<Result<HttpCall>> HttpClient::start(const HttpDestination& destination, const HttpRequest& request,
                                         const HttpCallOptions& options) {
  if (options.token.cancelled())
    co_return Error{ErrorCode::kCancelled, "cancelled before the request was sent"};
  detail::ClientPool& pool = impl_->pool_of(destination);
  if (destination.http2) {
    auto call = co_await impl_->start_http2(pool, request, options);
    co_return std::move(call);
  }
  detail::ClientConnection* connection = options.fresh_connection ? nullptr : pool.newest_idle;
  if (connection != nullptr) {
    ++impl_->stats.connections_reused;
  } else {
    auto socket = co_await impl_->connect(pool, options);
    if (!socket.ok()) co_return std::move(socket).error();
    connection = new detail::ClientConnection(*impl_, pool, std::move(*socket));
  }
  connection->take(options);
  HttpCall call(connection);
  Status status = connection->write_head(request);
  if (!status.ok()) co_return std::move(status).error();
  const bool end = request.complete || request.framing.kind == BodyFraming::Kind::kNone;
  status = co_await connection->send(request.body, end, {});
  const Result<HttpCall::Sent> sent = connection->after_send(std::move(status));
  if (!sent.ok()) co_return sent.error();
  co_return std::move(call);
}

Task<Result<HttpClient::Simple>> HttpClient::fetch(const HttpDestination& destination,
                                                   const HttpRequest& request,
                                                   const HttpCallOptions& call_options,
                                                   Duration total_timeout, size_t body_limit) {
  HttpCallOptions options = call_options;
  CancelSource cancel;
  cancel.follow(options.token);
  options.token = cancel.token();
  bool expired = false;
  struct Expiry {
    CancelSource& cancel;
    bool& expired;
  } expiry{cancel, expired};
  Timer timer(impl_->loop);
  if (total_timeout > Duration::zero()) {
    timer.arm(
        total_timeout,
        [](void* context) {
          auto& self = *static_cast<Expiry*>(context);
          self.expired = true;
          self.cancel.cancel();
        },
        &expiry);
  }
  const auto failure = [&](Error error) {
    if (expired && error.code == ErrorCode::kCancelled)
      return Error{ErrorCode::kGatewayTimeout,
                   "no whole answer from " + join_host_port(destination.host, destination.port) + " in time"};
    return error;
  };
  for (int attempt = 0;; ++attempt) {
    auto call = co_await start(destination, request, options);
    if (!call.ok()) co_return failure(std::move(call).error());
    auto head = co_await call->response();
    if (!head.ok()) {
      if (attempt == 0 && call->failed_stale()) {
        options.fresh_connection = true;
        continue;
      }
      co_return failure(std::move(head).error());
    }
    Simple out;
    out.status = (*head)->status;
    out.content_type = (*head)->fields.get("content-type");
    auto body = co_await call->read_all(body_limit);
    if (!body.ok()) co_return failure(std::move(body).error());
    out.body.assign(body->data(), body->size());
    co_return out;
  }
}

// --- URLs and the blocking helper ---

Result<HttpUrl> parse_url(std::string_view url) {
  HttpUrl out;
  std::string_view rest = url;
  const auto bad = [&] { return invalid_config("'" + std::string(url) + "' is not an http or https URL"); };
  if (rest.size() > 7 && ascii_iequals(rest.substr(0, 7), "http://")) {
    rest.remove_prefix(7);
  } else if (rest.size() > 8 && ascii_iequals(rest.substr(0, 8), "https://")) {
    out.https = true;
    rest.remove_prefix(8);
  } else {
    return bad();
  }
  const size_t path = std::min(rest.find_first_of("/?#"), rest.size());
  const std::string_view authority = rest.substr(0, path);
  if (authority.empty() || authority.find('@') != std::string_view::npos) return bad();
  auto parts = parse_host_port(authority, out.https ? 443 : 80);
  if (!parts.ok() || parts->host.empty()) return bad();
  out.host = std::move(parts->host);
  out.port = parts->port;
  std::string_view target = rest.substr(path);
  target = target.substr(0, target.find('#'));
  out.target = target.empty() || target[0] != '/' ? "/" + std::string(target) : std::string(target);
  return out;
}

Result<HttpClient::Simple> http_request_blocking(std::string_view method, std::string_view url,
                                                 std::string_view body, std::span<const HeaderField> fields,
                                                 Duration timeout, std::shared_ptr<TlsClientContext> tls,
                                                 size_t body_limit) {
  auto parsed = parse_url(url);
  if (!parsed.ok()) return std::move(parsed).error();
  HttpDestination destination;
  destination.host = parsed->host;
  destination.port = parsed->port;
  if (parsed->https) {
    if (!tls) {
      auto context = TlsClientContext::create({});
      if (!context.ok()) return std::move(context).error();
      tls = std::move(*context);
    }
    destination.tls = std::move(tls);
  }
  HttpRequest request;
  request.method = method;
  request.target = parsed->target;
  request.fields = fields;
  if (!body.empty()) {
    request.framing = BodyFraming::of_length(body.size());
    request.body = std::span<const std::string_view>(&body, 1);
  }
  Loop loop;
  HttpClient client(loop);
  HttpCallOptions options;
  options.connect_timeout = timeout;
  return block_on(loop, client.fetch(destination, request, options, timeout, body_limit));
}

}  // namespace penstock::io
