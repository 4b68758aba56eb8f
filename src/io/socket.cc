#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "io/detail/loop_impl.h"
#include "io/detail/socket.h"
#include "io/detail/tls_impl.h"

namespace penstock::io::detail {

// The handler of one Asio wait. Holds a reference to the socket; its operation lives in the socket's slot.
struct SocketWaitHandler {
  template <typename T>
  struct SlotAllocator {
    using value_type = T;
    explicit SlotAllocator(Socket::Slot* s) : slot(s) {}
    template <typename U>
    SlotAllocator(const SlotAllocator<U>& other) : slot(other.slot) {}
    T* allocate(size_t n) {
      if (!slot->used && n * sizeof(T) <= sizeof(slot->bytes)) {
        slot->used = true;
        return reinterpret_cast<T*>(slot->bytes);
      }
      return static_cast<T*>(::operator new(n * sizeof(T)));
    }
    void deallocate(T* p, size_t) {
      if (reinterpret_cast<char*>(p) == slot->bytes) {
        slot->used = false;
      } else {
        ::operator delete(p);
      }
    }
    template <typename U>
    bool operator==(const SlotAllocator<U>& other) const {
      return slot == other.slot;
    }
    Socket::Slot* slot;
  };
  using allocator_type = SlotAllocator<char>;
  allocator_type get_allocator() const { return allocator_type(&socket->slots_[write ? 1 : 0]); }

  SocketWaitHandler(Socket* s, bool w) : socket(s), write(w) { ++socket->references_; }
  SocketWaitHandler(const SocketWaitHandler& other) : socket(other.socket), write(other.write) {
    ++socket->references_;
  }
  SocketWaitHandler& operator=(const SocketWaitHandler&) = delete;
  ~SocketWaitHandler() { socket->unref(); }
  void operator()(const boost::system::error_code& error) const {
    if (!error) {
      socket->on_ready(write);
    } else {
      socket->armed_[write ? 1 : 0] = false;
    }
  }

  Socket* socket;
  bool write;
};

void SocketDeleter::operator()(Socket* socket) const {
  socket->close();
  socket->unref();
}

SocketPtr Socket::adopt(Loop& loop, int fd) {
  return SocketPtr(new Socket(loop, fd));
}

Socket::Socket(Loop& loop, int fd) : loop_(loop), descriptor_(impl_of(loop).context.get_executor()), fd_(fd) {
  boost::system::error_code error;
  descriptor_.assign(fd, error);
  if (error) {
    ::close(fd);
    fd_ = -1;
    last_error_ = error.value();
  }
}

Socket::~Socket() {
  if (ssl_ != nullptr) SSL_free(ssl_);
}

void Socket::unref() {
  if (--references_ == 0) delete this;
}

std::string Socket::error_text() const {
  if (!tls_error_.empty()) return tls_error_;
  return std::strerror(last_error_);
}

void Socket::arm(bool write) {
  const int direction = write ? 1 : 0;
  if (armed_[direction] || !is_open()) return;
  armed_[direction] = true;
  descriptor_.async_wait(write ? Descriptor::wait_write : Descriptor::wait_read,
                         SocketWaitHandler(this, write));
}

void Socket::on_ready(bool write) {
  const int direction = write ? 1 : 0;
  armed_[direction] = false;
  if (!is_open()) return;
  if (!write) maybe_readable_ = true;
  if (Readiness* waiter = std::exchange(waiting_[direction], nullptr)) {
    waiter->wait_.complete(Wait::Outcome::kReady);
    return;
  }
  if (!write && watcher_ != nullptr) watcher_(watcher_context_);
}

void Socket::Readiness::abandoned(void* self) {
  auto& readiness = *static_cast<Readiness*>(self);
  readiness.socket_.waiting_[readiness.write_ ? 1 : 0] = nullptr;
}

void Socket::Readiness::await_suspend(std::coroutine_handle<> handle) {
  socket_.waiting_[write_ ? 1 : 0] = this;
  wait_.on_abandon(&Readiness::abandoned, this);
  wait_.start(handle, timeout_, token_);
  socket_.arm(write_);
}

void Socket::watch(Watcher watcher, void* context) {
  watcher_ = watcher;
  watcher_context_ = context;
  arm(false);
}

void Socket::wake_writer() {
  if (Readiness* waiter = std::exchange(waiting_[1], nullptr)) waiter->wait_.complete(Wait::Outcome::kReady);
}

ptrdiff_t Socket::tls_result(int result, bool writing) {
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      (writing ? tls_write_wants_read_ : tls_read_wants_write_) = writing;
      return kWouldBlock;
    case SSL_ERROR_WANT_WRITE:
      (writing ? tls_write_wants_read_ : tls_read_wants_write_) = !writing;
      return kWouldBlock;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    case SSL_ERROR_SYSCALL:
      last_error_ = errno != 0 ? errno : ECONNRESET;
      tls_broken_ = true;
      return kFailed;
    default:
      tls_error_ = take_ssl_error();
      last_error_ = EPROTO;
      tls_broken_ = true;
      return kFailed;
  }
}

ptrdiff_t Socket::try_read(char* into, size_t bytes) {
  if (!is_open()) {
    last_error_ = ECONNABORTED;
    return kFailed;
  }
  if (ssl_ != nullptr) {
    ERR_clear_error();
    errno = 0;
    const int got = SSL_read(ssl_, into, static_cast<int>(std::min<size_t>(bytes, 1U << 30U)));
    if (got > 0) {
      tls_read_wants_write_ = false;
      return got;
    }
    return tls_result(got, false);
  }
  for (;;) {
    const ssize_t got = ::recv(fd_, into, bytes, 0);
    if (got >= 0) {
      maybe_readable_ = static_cast<size_t>(got) == bytes || got == 0;
      return got;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      maybe_readable_ = false;
      return kWouldBlock;
    }
    last_error_ = errno;
    return kFailed;
  }
}

ptrdiff_t Socket::try_write(const iovec* pieces, size_t count) {
  if (!is_open()) {
    last_error_ = ECONNABORTED;
    return kFailed;
  }
  if (ssl_ != nullptr) {
    // One record of up to 16 KiB from as many pieces as fit it.
    constexpr size_t kRecord = 16 * 1024;
    thread_local char scratch[kRecord];
    size_t total = 0;
    size_t index = 0;
    size_t offset = 0;
    while (index < count) {
      const char* record = nullptr;
      size_t size = 0;
      size_t next = index;
      size_t next_offset = offset;
      if (pieces[index].iov_len - offset >= kRecord) {
        record = static_cast<const char*>(pieces[index].iov_base) + offset;
        size = kRecord;
        next_offset += size;
      } else {
        while (next < count && size < kRecord) {
          const size_t take = std::min(pieces[next].iov_len - next_offset, kRecord - size);
          if (take != 0)
            std::memcpy(scratch + size, static_cast<const char*>(pieces[next].iov_base) + next_offset, take);
          size += take;
          next_offset += take;
          if (next_offset == pieces[next].iov_len) {
            ++next;
            next_offset = 0;
          }
        }
        record = scratch;
      }
      if (next < count && next_offset == pieces[next].iov_len) {
        ++next;
        next_offset = 0;
      }
      if (size == 0) break;
      ERR_clear_error();
      errno = 0;
      const int sent = SSL_write(ssl_, record, static_cast<int>(size));
      if (sent <= 0) {
        const ptrdiff_t result = tls_result(sent, true);
        if (result == 0) {
          last_error_ = EPIPE;
          return kFailed;
        }
        return total != 0 && result == kWouldBlock ? static_cast<ptrdiff_t>(total) : result;
      }
      tls_write_wants_read_ = false;
      total += static_cast<size_t>(sent);
      if (static_cast<size_t>(sent) < size) return static_cast<ptrdiff_t>(total);
      index = next;
      offset = next_offset;
    }
    return static_cast<ptrdiff_t>(total);
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces);
  message.msg_iovlen = count;
  for (;;) {
    const ssize_t sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return kWouldBlock;
    last_error_ = errno;
    return kFailed;
  }
}

Task<Status> Socket::write_all(std::span<iovec> pieces, Duration timeout, CancelToken token) {
  while (!pieces.empty()) {
    if (pieces.front().iov_len == 0) {
      pieces = pieces.subspan(1);
      continue;
    }
    ptrdiff_t sent = try_write(pieces.data(), std::min<size_t>(pieces.size(), IOV_MAX));
    if (sent == kFailed) co_return Error{ErrorCode::kIo, "write: " + error_text()};
    if (sent == kWouldBlock) {
      const Wait::Outcome outcome = co_await writable(timeout, token);
      if (outcome != Wait::Outcome::kReady) co_return status_of(outcome, ErrorCode::kRequestTimeout, "write");
      continue;
    }
    while (sent > 0) {
      iovec& front = pieces.front();
      const size_t take = std::min(front.iov_len, static_cast<size_t>(sent));
      front.iov_base = static_cast<char*>(front.iov_base) + take;
      front.iov_len -= take;
      sent -= static_cast<ptrdiff_t>(take);
      if (front.iov_len == 0) pieces = pieces.subspan(1);
    }
  }
  co_return Status();
}

Task<Status> Socket::finish_connect(Duration timeout, CancelToken token) {
  const Wait::Outcome outcome = co_await writable(timeout, token);
  if (outcome != Wait::Outcome::kReady) co_return status_of(outcome, ErrorCode::kGatewayTimeout, "connect");
  int error = 0;
  socklen_t size = sizeof(error);
  if (!is_open()) co_return Error{ErrorCode::kIo, "connect: closed"};
  ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) co_return Error{ErrorCode::kIo, std::string("connect: ") + std::strerror(error)};
  co_return Status();
}

Task<Status> Socket::handshake_server(TlsServerContext& context, Duration timeout, CancelToken token) {
  ssl_ = context.impl().make_ssl();
  if (ssl_ == nullptr || SSL_set_fd(ssl_, fd_) != 1) co_return Error{ErrorCode::kIo, take_ssl_error()};
  SSL_set_accept_state(ssl_);
  co_return co_await handshake(timeout, std::move(token));
}

Task<Status> Socket::handshake_client(TlsClientContext& context, std::string server_name, Duration timeout,
                                      CancelToken token) {
  ssl_ = context.impl().make_ssl(server_name);
  if (ssl_ == nullptr || SSL_set_fd(ssl_, fd_) != 1) co_return Error{ErrorCode::kIo, take_ssl_error()};
  SSL_set_connect_state(ssl_);
  co_return co_await handshake(timeout, std::move(token));
}

Task<Status> Socket::handshake(Duration timeout, CancelToken token) {
  const TimePoint deadline = loop_.now() + timeout;
  for (;;) {
    if (!is_open()) co_return Error{ErrorCode::kIo, "TLS handshake: closed"};
    ERR_clear_error();
    errno = 0;
    const int result = SSL_do_handshake(ssl_);
    if (result == 1) co_return Status();
    const int error = SSL_get_error(ssl_, result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
      tls_broken_ = true;
      std::string text;
      if (const long verified = SSL_get_verify_result(ssl_); verified != X509_V_OK) {
        text = X509_verify_cert_error_string(verified);
        ERR_clear_error();
      } else if (error == SSL_ERROR_SYSCALL) {
        text = errno != 0 ? std::strerror(errno) : "the peer closed";
      } else {
        text = take_ssl_error();
      }
      co_return Error{ErrorCode::kIo, "TLS handshake: " + text};
    }
    const Duration left = timeout > Duration::zero() ? deadline - loop_.now() : Duration::zero();
    if (timeout > Duration::zero() && left <= Duration::zero())
      co_return Error{ErrorCode::kGatewayTimeout, "TLS handshake: timed out"};
    Readiness readiness(*this, error == SSL_ERROR_WANT_WRITE, left, token);
    const Wait::Outcome outcome = co_await readiness;
    if (outcome != Wait::Outcome::kReady)
      co_return status_of(outcome, ErrorCode::kGatewayTimeout, "TLS handshake");
  }
}

std::string_view Socket::alpn() const {
  if (ssl_ == nullptr) return {};
  const unsigned char* name = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl_, &name, &size);
  return {reinterpret_cast<const char*>(name), size};
}

std::string Socket::client_certificate_subject() const {
  if (ssl_ == nullptr) return {};
  X509* certificate = SSL_get0_peer_certificate(ssl_);
  if (certificate == nullptr || SSL_get_verify_result(ssl_) != X509_V_OK) return {};
  char text[512];
  X509_NAME_oneline(X509_get_subject_name(certificate), text, sizeof(text));
  return text;
}

void Socket::shutdown_write() {
  if (!is_open()) return;
  if (ssl_ != nullptr && !tls_broken_ && SSL_is_init_finished(ssl_)) {
    ERR_clear_error();
    SSL_shutdown(ssl_);
    ERR_clear_error();
  }
  ::shutdown(fd_, SHUT_WR);
}

void Socket::close() {
  if (!is_open()) return;
  if (ssl_ != nullptr && !tls_broken_ && SSL_is_init_finished(ssl_)) {
    ERR_clear_error();
    SSL_shutdown(ssl_);
    ERR_clear_error();
  }
  watcher_ = nullptr;
  fd_ = -1;
  boost::system::error_code ignored;
  descriptor_.close(ignored);
  for (Readiness*& waiter : waiting_)
    if (waiter != nullptr) std::exchange(waiter, nullptr)->wait_.complete_later(Wait::Outcome::kReady);
}

void Socket::reset_connection() {
  if (!is_open()) return;
  const linger now{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  tls_broken_ = true;
  close();
}

SocketAddress Socket::peer() const {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (!is_open() || ::getpeername(fd_, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return {};
  return SocketAddress::from_native(&storage, size);
}

SocketAddress Socket::local() const {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (!is_open() || ::getsockname(fd_, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return {};
  return SocketAddress::from_native(&storage, size);
}

void set_stream_options(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Result<int> open_listener(const SocketAddress& address, int backlog, bool reuse_port) {
  const int family = address.is_v6() ? AF_INET6 : AF_INET;
  const int fd = ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const auto fail = [&](const char* doing) {
    Error error{ErrorCode::kIo, std::string(doing) + " " + address.to_string() + ": " + std::strerror(errno)};
    if (fd >= 0) ::close(fd);
    return error;
  };
  if (fd < 0) return fail("socket for");
  const int on = 1;
  const int off = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (reuse_port) ::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
  if (family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (::bind(fd, static_cast<const sockaddr*>(address.native()),
             static_cast<socklen_t>(address.native_bytes())) != 0)
    return fail("can't listen on");
  if (::listen(fd, backlog) != 0) return fail("can't listen on");
  return fd;
}

Task<Result<SocketPtr>> connect_any(Loop& loop, std::span<const SocketAddress> addresses, Duration timeout,
                                    CancelToken token) {
  const TimePoint deadline = loop.now() + timeout;
  Error last{ErrorCode::kIo, "connect: no address"};
  for (size_t i = 0; i < addresses.size(); ++i) {
    const SocketAddress& address = addresses[i];
    Duration share = Duration::zero();
    if (timeout > Duration::zero()) {
      share = (deadline - loop.now()) / static_cast<int64_t>(addresses.size() - i);
      if (share <= Duration::zero())
        co_return Error{ErrorCode::kGatewayTimeout, "connect to " + address.to_string() + ": timed out"};
    }
    const int fd =
        ::socket(address.is_v6() ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) co_return Error{ErrorCode::kIo, std::string("socket: ") + std::strerror(errno)};
    set_stream_options(fd);
    const int on = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    const int connected = ::connect(fd, static_cast<const sockaddr*>(address.native()),
                                    static_cast<socklen_t>(address.native_bytes()));
    if (connected != 0 && errno != EINPROGRESS) {
      last = Error{ErrorCode::kIo, "connect to " + address.to_string() + ": " + std::strerror(errno)};
      ::close(fd);
      continue;
    }
    SocketPtr socket = Socket::adopt(loop, fd);
    if (connected == 0) co_return std::move(socket);
    Status status = co_await socket->finish_connect(share, token);
    if (status.ok()) co_return std::move(socket);
    last = status.error();
    last.message += " (" + address.to_string() + ")";
    if (last.code == ErrorCode::kCancelled) break;
  }
  co_return last;
}

}  // namespace penstock::io::detail
