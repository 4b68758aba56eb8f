#include "io/net.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/strings.h"
#include "io/detail/socket.h"

namespace penstock::io {

// --- addresses ---

std::optional<SocketAddress> SocketAddress::from_ip(std::string_view ip, uint16_t port) {
  const std::string text(ip);
  sockaddr_in v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    return from_native(&v4, sizeof(v4));
  }
  sockaddr_in6 v6{};
  if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    return from_native(&v6, sizeof(v6));
  }
  return std::nullopt;
}

Result<SocketAddress> SocketAddress::parse(std::string_view text) {
  auto parts = parse_host_port(text);
  if (!parts.ok()) return std::move(parts).error();
  if (parts->host.empty()) parts->host = "::";
  if (auto address = from_ip(parts->host, parts->port)) return *address;
  return invalid_config("'" + std::string(text) + "': '" + parts->host + "' is no IP address");
}

SocketAddress SocketAddress::from_native(const void* sockaddr, size_t bytes) {
  SocketAddress out;
  out.bytes_ = static_cast<uint32_t>(std::min(bytes, out.storage_.size()));
  std::memcpy(out.storage_.data(), sockaddr, out.bytes_);
  return out;
}

bool SocketAddress::is_v6() const {
  sa_family_t family = 0;
  std::memcpy(&family, storage_.data() + offsetof(sockaddr_in, sin_family), sizeof(family));
  return family == AF_INET6;
}

uint16_t SocketAddress::port() const {
  uint16_t port = 0;
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  std::memcpy(&port, storage_.data() + offsetof(sockaddr_in, sin_port), sizeof(port));
  return ntohs(port);
}

std::string SocketAddress::ip() const {
  if (bytes_ == 0) return {};
  char text[INET6_ADDRSTRLEN] = "";
  if (is_v6()) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, storage_.data(), sizeof(v6));
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      inet_ntop(AF_INET, v6.sin6_addr.s6_addr + 12, text, sizeof(text));
    } else {
      inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    }
  } else {
    inet_ntop(AF_INET, storage_.data() + offsetof(sockaddr_in, sin_addr), text, sizeof(text));
  }
  return text;
}

std::string SocketAddress::to_string() const {
  return bytes_ == 0 ? std::string() : join_host_port(ip(), port());
}

Result<HostPort> parse_host_port(std::string_view text, uint16_t default_port) {
  HostPort out;
  out.port = default_port;
  const auto bad = [&] { return invalid_config("'" + std::string(text) + "' is not host:port"); };
  std::string_view rest;
  if (!text.empty() && text[0] == '[') {
    const size_t close = text.find(']');
    if (close == std::string_view::npos || close == 1) return bad();
    out.host = text.substr(1, close - 1);
    rest = text.substr(close + 1);
    if (!rest.empty() && rest[0] != ':') return bad();
  } else {
    const size_t colon = text.find(':');
    if (colon != std::string_view::npos && text.find(':', colon + 1) != std::string_view::npos) {
      // A bare IPv6 address has no port.
      if (!SocketAddress::from_ip(text, 0)) return bad();
      out.host = text;
      return out;
    }
    out.host = text.substr(0, colon);
    if (colon != std::string_view::npos) rest = text.substr(colon);
  }
  if (rest.empty()) return out;
  const auto port = parse_u64(rest.substr(1));
  if (!port) return bad();
  if (*port > 65535) return invalid_config("'" + std::string(text) + "': the port is not in 0..65535");
  out.port = static_cast<uint16_t>(*port);
  return out;
}

std::string join_host_port(std::string_view host, uint16_t port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  std::string out;
  if (v6) out += '[';
  out += host;
  if (v6) out += ']';
  out += ':';
  out += std::to_string(port);
  return out;
}

// --- names ---

namespace {

Result<std::vector<SocketAddress>> resolve_blocking(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (error != 0) return Error{ErrorCode::kIo, "can't resolve '" + host + "': " + gai_strerror(error)};
  std::vector<SocketAddress> out;
  for (const addrinfo* entry = list; entry != nullptr && out.size() < 64; entry = entry->ai_next) {
    sockaddr_storage storage{};
    std::memcpy(&storage, entry->ai_addr, entry->ai_addrlen);
    if (entry->ai_family == AF_INET) reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
    if (entry->ai_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
    out.push_back(SocketAddress::from_native(&storage, entry->ai_addrlen));
  }
  freeaddrinfo(list);
  if (out.empty()) return Error{ErrorCode::kIo, "'" + host + "' has no address"};
  return out;
}

}  // namespace

Task<Result<std::vector<SocketAddress>>> resolve(Loop& loop, std::string host, uint16_t port,
                                                 Duration timeout, CancelToken token) {
  if (auto literal = SocketAddress::from_ip(host, port)) {
    std::vector<SocketAddress> one;
    one.push_back(*literal);
    co_return one;
  }
  auto job = [host, port] { return resolve_blocking(host, port); };
  auto result = co_await run_blocking(loop, job, timeout, token);
  if (!result.ok()) {
    Error error = std::move(result).error();
    if (error.code == ErrorCode::kRequestTimeout) error.code = ErrorCode::kGatewayTimeout;
    co_return error.wrap("resolving '" + host + "'");
  }
  co_return std::move(*result);
}

// --- streams ---

Stream::Stream(detail::SocketPtr socket) : socket_(std::move(socket)) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;

Task<Result<size_t>> Stream::read(std::span<char> into, const IoOptions& options) {
  for (;;) {
    const ptrdiff_t got = socket_->try_read(into.data(), into.size());
    if (got >= 0) co_return static_cast<size_t>(got);
    if (got == detail::Socket::kFailed) co_return Error{ErrorCode::kIo, "read: " + socket_->error_text()};
    const Wait::Outcome outcome = co_await socket_->readable(options.timeout, options.token);
    if (outcome != Wait::Outcome::kReady)
      co_return std::move(status_of(outcome, ErrorCode::kRequestTimeout, "read")).error();
  }
}

Task<Status> Stream::write(std::span<const std::string_view> pieces, const IoOptions& options) {
  std::array<iovec, 16> batch;
  for (size_t at = 0; at < pieces.size();) {
    size_t count = 0;
    for (; count < batch.size() && at < pieces.size(); ++at, ++count)
      batch[count] = {const_cast<char*>(pieces[at].data()), pieces[at].size()};
    Status status =
        co_await socket_->write_all(std::span<iovec>(batch.data(), count), options.timeout, options.token);
    if (!status.ok()) co_return status;
  }
  co_return Status();
}

Task<Status> Stream::write(std::string_view piece, const IoOptions& options) {
  iovec one{const_cast<char*>(piece.data()), piece.size()};
  co_return co_await socket_->write_all(std::span<iovec>(&one, 1), options.timeout, options.token);
}

void Stream::shutdown_write() {
  socket_->shutdown_write();
}
void Stream::close() {
  socket_->close();
}
SocketAddress Stream::peer() const {
  return socket_->peer();
}
SocketAddress Stream::local() const {
  return socket_->local();
}
std::string_view Stream::alpn() const {
  return socket_->alpn();
}

Task<Result<Stream>> connect(Loop& loop, std::string host, uint16_t port, const ConnectOptions& options) {
  const TimePoint deadline = loop.now() + options.timeout;
  auto addresses = co_await resolve(loop, host, port, options.timeout, options.token);
  if (!addresses.ok()) co_return std::move(addresses).error();
  auto socket = co_await detail::connect_any(loop, *addresses, std::max(deadline - loop.now(), Duration(1)),
                                             options.token);
  if (!socket.ok()) co_return std::move(socket).error();
  if (options.tls) {
    const std::string& name = options.server_name.empty() ? host : options.server_name;
    Status status = co_await (*socket)->handshake_client(
        *options.tls, name, std::max(deadline - loop.now(), Duration(1)), options.token);
    if (!status.ok()) co_return std::move(status).error();
  }
  co_return Stream(std::move(*socket));
}

// --- listening ---

Listener::Listener(detail::SocketPtr socket) : socket_(std::move(socket)) {}
Listener::Listener(Listener&&) noexcept = default;
Listener& Listener::operator=(Listener&&) noexcept = default;
Listener::~Listener() = default;

Result<Listener> Listener::bind(Loop& loop, const SocketAddress& address, int backlog) {
  auto fd = detail::open_listener(address, backlog, false);
  if (!fd.ok()) return std::move(fd).error();
  return Listener(detail::Socket::adopt(loop, *fd));
}

Task<Result<Stream>> Listener::accept(const IoOptions& options) {
  for (;;) {
    if (!socket_->is_open()) co_return Error{ErrorCode::kIo, "accept: closed"};
    const int fd = ::accept4(socket_->fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      detail::set_stream_options(fd);
      co_return Stream(detail::Socket::adopt(socket_->loop(), fd));
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      co_return Error{ErrorCode::kIo, std::string("accept: ") + std::strerror(errno)};
    const Wait::Outcome outcome = co_await socket_->readable(options.timeout, options.token);
    if (outcome != Wait::Outcome::kReady)
      co_return std::move(status_of(outcome, ErrorCode::kRequestTimeout, "accept")).error();
  }
}

SocketAddress Listener::local() const {
  return socket_->local();
}

}  // namespace penstock::io
