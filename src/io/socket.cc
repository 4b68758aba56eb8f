#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "io/detail/loop_impl.h"
#include "io/detail/socket.h"
#include "io/detail/tls_impl.h"

namespace penstock::io::detail {

// --- SocketSet ---

OwnedFd::OwnedFd(int fd) : fd_(fd) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "an event loop's descriptor");
}

OwnedFd::~OwnedFd() {
  ::close(fd_);
}

SocketSet::SocketSet()
    : set_(::epoll_create1(EPOLL_CLOEXEC)),
      alarm_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
      bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  for (OwnedFd* own : {&alarm_, &bell_}) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.ptr = own;
    if (::epoll_ctl(set_.get(), EPOLL_CTL_ADD, own->get(), &event) != 0)
      throw std::system_error(errno, std::generic_category(), "an event loop's epoll set");
  }
}

int SocketSet::add(int fd, Socket* socket) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = socket;
  return ::epoll_ctl(set_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : errno;
}

bool SocketSet::turn(bool block) {
  std::array<epoll_event, 256> events;
  const int count = ::epoll_wait(set_.get(), events.data(), static_cast<int>(events.size()), block ? -1 : 0);
  bool alarm = false;
  dispatching_ = true;
  for (int i = 0; i < count;) {
    const int end = std::min(count, i + kBatch);
    batching_ = end - i > 1;
    received_ = 0;
    for (; i < end && received_ < kBatchBytes; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.ptr == &alarm_) {
        alarm = true;
      } else if (event.data.ptr != &bell_) {
        static_cast<Socket*>(event.data.ptr)->on_events(event.events);
      }
    }
    if (batching_) finish_batch();
  }
  dispatching_ = false;
  for (Socket* socket : buried_) delete socket;
  buried_.clear();
  return alarm;
}

template <typename T>
void SocketSet::Queue<T>::push(T& wait) {
  wait.previous_ = last;
  wait.next_ = nullptr;
  (last != nullptr ? last->next_ : first) = &wait;
  last = &wait;
}

template <typename T>
void SocketSet::Queue<T>::remove(T& wait) noexcept {
  (wait.previous_ != nullptr ? wait.previous_->next_ : first) = wait.next_;
  (wait.next_ != nullptr ? wait.next_->previous_ : last) = wait.previous_;
}

void SocketSet::enqueue(InStep& wait) {
  steps_[static_cast<size_t>(wait.step_)].push(wait);
}

void SocketSet::dequeue(InStep& wait) noexcept {
  steps_[static_cast<size_t>(wait.step_)].remove(wait);
}

void SocketSet::enqueue(QueuedWrite& write) {
  writes_.push(write);
}

void SocketSet::dequeue(QueuedWrite& write) noexcept {
  writes_.remove(write);
}

void SocketSet::finish_batch() {
  for (Queue<InStep>& step : steps_) {
    ++steps_begun_;
    while (step.first != nullptr) {
      InStep& wait = *step.first;
      step.remove(wait);
      std::exchange(wait.handle_, nullptr).resume();
    }
  }
  // What they go on with is done at once: a stream with more to send would else never let go.
  batching_ = false;
  steps_begun_ = 0;
  for (QueuedWrite* write = writes_.first; write != nullptr; write = write->next_)
    write->result_ = write->socket_.try_write(write->pieces_, write->count_);
  while (writes_.first != nullptr) {
    QueuedWrite& write = *writes_.first;
    writes_.remove(write);
    std::exchange(write.handle_, nullptr).resume();
  }
}

void SocketSet::set_alarm(uint64_t at_ns) {
  // A time of zero would switch it off.
  if (at_ns == 0) at_ns = 1;
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(at_ns / 1'000'000'000U);
  when.it_value.tv_nsec = static_cast<long>(at_ns % 1'000'000'000U);
  ::timerfd_settime(alarm_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

void SocketSet::ring() {
  // Never read: each write is an edge, and the count can't overflow in a process's life.
  const uint64_t one = 1;
  (void)!::write(bell_.get(), &one, sizeof(one));
}

void SocketSet::bury(Socket* socket) {
  if (dispatching_) {
    buried_.push_back(socket);
  } else {
    delete socket;
  }
}

void SocketSet::check_later(Socket* socket) {
  checks_.push_back(socket);
}

void SocketSet::forget_check(Socket* socket) {
  std::replace(checks_.begin(), checks_.end(), socket, static_cast<Socket*>(nullptr));
  std::replace(running_.begin(), running_.end(), socket, static_cast<Socket*>(nullptr));
}

void SocketSet::run_checks() {
  running_.swap(checks_);
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i] != nullptr) running_[i]->check();
  }
  running_.clear();
}

// --- Socket ---

void SocketDeleter::operator()(Socket* socket) const {
  socket->close();
  impl_of(socket->loop_).sockets.bury(socket);
}

SocketPtr Socket::adopt(Loop& loop, int fd) {
  return SocketPtr(new Socket(loop, fd));
}

Socket::Socket(Loop& loop, int fd) : loop_(loop), fd_(fd) {
  const int error = impl_of(loop).sockets.add(fd, this);
  if (error != 0) {
    ::close(fd);
    fd_ = -1;
    last_error_ = error;
  }
}

Socket::~Socket() {
  if (ssl_ != nullptr) SSL_free(ssl_);
}

std::string Socket::error_text() const {
  if (!tls_error_.empty()) return tls_error_;
  return std::strerror(last_error_);
}

void Socket::on_events(uint32_t events) {
  if (!is_open()) return;  // closed earlier in this batch
  constexpr uint32_t kEnd = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
  if ((events & kEnd) != 0) ended_ = true;
  if ((events & (EPOLLIN | kEnd)) != 0) {
    maybe_readable_ = true;
    wake_reader();
    if (!is_open()) return;
  }
  if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) wake_writer();
}

void Socket::wake_reader() {
  if (Readiness* waiter = std::exchange(waiting_[0], nullptr)) {
    waiter->wait_.complete(Wait::Outcome::kReady);
    return;
  }
  if (Watcher watcher = std::exchange(watcher_, nullptr)) watcher(watcher_context_);
}

void Socket::check() {
  check_queued_ = false;
  if (is_open() && maybe_readable_ && waiting_[0] == nullptr) wake_reader();
}

void Socket::Readiness::abandoned(void* self) {
  auto& readiness = *static_cast<Readiness*>(self);
  readiness.socket_.waiting_[readiness.write_ ? 1 : 0] = nullptr;
}

void Socket::Readiness::await_suspend(std::coroutine_handle<> handle) {
  socket_.waiting_[write_ ? 1 : 0] = this;
  wait_.on_abandon(&Readiness::abandoned, this);
  wait_.start(handle, timeout_, token_);
}

void Socket::watch(Watcher watcher, void* context) {
  watcher_ = watcher;
  watcher_context_ = context;
  if (!maybe_readable_ || check_queued_) return;
  check_queued_ = true;
  impl_of(loop_).sockets.check_later(this);
}

void Socket::wake_writer() {
  if (Readiness* waiter = std::exchange(waiting_[1], nullptr)) {
    waiter->wait_.complete(Wait::Outcome::kReady);
    return;
  }
  if (Watcher watcher = std::exchange(room_watcher_, nullptr)) watcher(room_context_);
}

ptrdiff_t Socket::tls_result(int result, bool writing) {
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      maybe_readable_ = false;
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
      maybe_readable_ = static_cast<size_t>(got) == bytes || ended_;
      impl_of(loop_).sockets.note_received(static_cast<size_t>(got));
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
    const ssize_t sent = count == 1 ? ::send(fd_, pieces->iov_base, pieces->iov_len, MSG_NOSIGNAL)
                                    : ::sendmsg(fd_, &message, MSG_NOSIGNAL);
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
                                      CancelToken token, bool http2) {
  const std::shared_ptr<TlsClientContext::Impl::Generation> generation = context.impl().generation();
  if (!generation->ready()) {
    const TimePoint began = loop_.now();
    auto read = [generation] {
      generation->read_system_roots();
      return true;
    };
    auto done = co_await run_blocking(loop_, read, timeout, token);
    if (!done.ok()) {
      Error error = std::move(done).error();
      if (error.code == ErrorCode::kRequestTimeout) error.code = ErrorCode::kGatewayTimeout;
      co_return error.wrap("reading the system's CA certificates");
    }
    if (!is_open()) co_return Error{ErrorCode::kIo, "TLS handshake: closed"};
    if (timeout > Duration::zero()) timeout = std::max(timeout - (loop_.now() - began), Duration(1));
  }
  ssl_ = context.impl().make_ssl(*generation, server_name);
  if (ssl_ == nullptr || SSL_set_fd(ssl_, fd_) != 1) co_return Error{ErrorCode::kIo, take_ssl_error()};
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  if (http2) SSL_set_alpn_protos(ssl_, kHttp2, sizeof(kHttp2));
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
      const unsigned long queued = ERR_peek_error();
      const int reason = ERR_GET_LIB(queued) == ERR_LIB_SSL ? ERR_GET_REASON(queued) : 0;
      const bool gone = error == SSL_ERROR_SYSCALL || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING;
      if (SSL_is_server(ssl_) == 1 && gone) {
        ERR_clear_error();
        co_return Error{ErrorCode::kClientClosed, "TLS handshake: the client closed"};
      }
      if (SSL_is_server(ssl_) == 1 && (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
                                       reason == SSL_R_HTTPS_PROXY_REQUEST)) {
        ERR_clear_error();
        co_return Error{ErrorCode::kIo, "the client speaks plain text, this port TLS"};
      }
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
  room_watcher_ = nullptr;
  if (check_queued_) {
    check_queued_ = false;
    impl_of(loop_).sockets.forget_check(this);
  }
  ::close(std::exchange(fd_, -1));
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
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
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
