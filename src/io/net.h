#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/loop.h"
#include "io/tls.h"

namespace penstock::io {

// An IPv4 or IPv6 address and port.
class SocketAddress {
 public:
  SocketAddress() = default;
  // "127.0.0.1:80", "[::1]:80", ":80" and "[::]:80" (every address, both families). No host names.
  static Result<SocketAddress> parse(std::string_view text);
  // `ip` without brackets; nothing when it is no literal address.
  static std::optional<SocketAddress> from_ip(std::string_view ip, uint16_t port);
  static SocketAddress from_native(const void* sockaddr, size_t bytes);

  std::string ip() const;
  uint16_t port() const;
  bool is_v6() const;
  // "127.0.0.1:80", "[::1]:80".
  std::string to_string() const;

  const void* native() const { return storage_.data(); }
  size_t native_bytes() const { return bytes_; }
  friend bool operator==(const SocketAddress& a, const SocketAddress& b) {
    return a.bytes_ == b.bytes_ && a.storage_ == b.storage_;
  }

 private:
  alignas(8) std::array<char, 28> storage_{};  // sockaddr_in or sockaddr_in6
  uint32_t bytes_ = 0;
};

// "host:80", "[::1]:80", "host" with `default_port`. The host comes back without brackets.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
Result<HostPort> parse_host_port(std::string_view text, uint16_t default_port = 0);
// "host:80" or "[v6]:80".
std::string join_host_port(std::string_view host, uint16_t port);

// Literal addresses answer at once; names go to the system's resolver off the loop.
Task<Result<std::vector<SocketAddress>>> resolve(Loop& loop, std::string host, uint16_t port,
                                                 Duration timeout, CancelToken token = {});

// (Constructors keep it from being an aggregate: GCC 12 destroys aggregate temporaries of a co_await
// expression twice.)
struct IoOptions {
  IoOptions() {}
  explicit IoOptions(Duration t, CancelToken c = {}) : timeout(t), token(std::move(c)) {}

  Duration timeout = Duration::zero();  // without progress; zero: none. Gives kRequestTimeout
  CancelToken token;
};

namespace detail {
class Socket;
struct SocketDeleter {
  void operator()(Socket* socket) const;
};
using SocketPtr = std::unique_ptr<Socket, SocketDeleter>;
}  // namespace detail

// A TCP connection, plain or TLS, of one loop. One reader and one writer at a time.
class Stream {
 public:
  explicit Stream(detail::SocketPtr socket);
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();  // closes

  // At least one byte, or 0 at the peer's end.
  Task<Result<size_t>> read(std::span<char> into, const IoOptions& options = {});
  // All of it; the kernel's buffer is the only one.
  Task<Status> write(std::span<const std::string_view> pieces, const IoOptions& options = {});
  Task<Status> write(std::string_view piece, const IoOptions& options = {});
  void shutdown_write();
  void close();
  SocketAddress peer() const;
  SocketAddress local() const;
  // Empty without TLS or ALPN.
  std::string_view alpn() const;

 private:
  detail::SocketPtr socket_;
};

struct ConnectOptions {
  ConnectOptions() {}

  Duration timeout = std::chrono::seconds(5);  // resolver, TCP and TLS together
  std::shared_ptr<TlsClientContext> tls;       // null: plain
  std::string server_name;                     // for SNI and verification; empty: the host
  CancelToken token;
};

// Tries each address of the name in turn. kGatewayTimeout at the deadline, kIo for everything else.
Task<Result<Stream>> connect(Loop& loop, std::string host, uint16_t port, const ConnectOptions& options = {});

// A listening socket of one loop.
class Listener {
 public:
  // Port 0: the system chooses. SO_REUSEADDR is set.
  static Result<Listener> bind(Loop& loop, const SocketAddress& address, int backlog = 4096);
  Listener(Listener&&) noexcept;
  Listener& operator=(Listener&&) noexcept;
  ~Listener();

  Task<Result<Stream>> accept(const IoOptions& options = {});
  SocketAddress local() const;

 private:
  explicit Listener(detail::SocketPtr socket);
  detail::SocketPtr socket_;
};

}  // namespace penstock::io
