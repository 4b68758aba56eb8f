#pragma once

#include <sys/uio.h>

#include <coroutine>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "io/detail/loop_impl.h"
#include "io/loop.h"
#include "io/net.h"
#include "io/tls.h"

struct ssl_st;

namespace penstock::io::detail {

// A TCP socket of one loop, plain or TLS. I/O is tried first; only when the kernel has nothing (or no room)
// is readiness waited for. Events come by edges (SocketSet): one that finds nobody waiting is remembered in
// maybe_readable(), so a wait is only sound after a try that gave kWouldBlock, or while maybe_readable() is
// false. Who is told: a waiting reader, else the watcher that notices the peer's end while nobody reads.
class QueuedWrite;

class Socket {
 public:
  // Result of a try: bytes moved, or one of these.
  static constexpr ptrdiff_t kWouldBlock = -1;
  static constexpr ptrdiff_t kFailed = -2;  // errno in last_error()

  static SocketPtr adopt(Loop& loop, int fd);

  Loop& loop() { return loop_; }
  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int last_error() const { return last_error_; }
  std::string error_text() const;

  // > 0; 0 at the peer's end; kWouldBlock; kFailed.
  ptrdiff_t try_read(char* into, size_t bytes);
  // Bytes taken (less than all: no room for more); kWouldBlock; kFailed.
  ptrdiff_t try_write(const iovec* pieces, size_t count);
  // False once everything that was announced has been read: waiting is then cheaper than trying.
  bool maybe_readable() const { return maybe_readable_; }

  class Readiness {
   public:
    Readiness(Socket& socket, bool write, Duration timeout, const CancelToken& token)
        : socket_(socket), wait_(socket.loop_), timeout_(timeout), token_(token), write_(write) {}
    bool await_ready() const { return !socket_.is_open() || token_.cancelled(); }
    void await_suspend(std::coroutine_handle<> handle);
    // kReady also when the socket was closed: the next try tells.
    Wait::Outcome await_resume() const {
      if (wait_.outcome() != Wait::Outcome::kPending) return wait_.outcome();
      return token_.cancelled() ? Wait::Outcome::kCancelled : Wait::Outcome::kReady;
    }

   private:
    friend class Socket;
    static void abandoned(void* self);
    Socket& socket_;
    Wait wait_;
    Duration timeout_;
    const CancelToken& token_;
    bool write_;
  };
  // One reader and one writer at a time. `token` must live until the wait ends.
  Readiness readable(Duration timeout, const CancelToken& token) {
    return {*this, tls_read_wants_write_, timeout, token};
  }
  Readiness writable(Duration timeout, const CancelToken& token) {
    return {*this, !tls_write_wants_read_, timeout, token};
  }

  // Runs once, when something comes (or the peer ends) while no reader waits. REQUIRES: it has been
  // called or unwatch()ed before the next watch().
  using Watcher = void (*)(void* context);
  void watch(Watcher watcher, void* context);
  void unwatch() { watcher_ = nullptr; }
  // Runs once, when there may be room again after a write gave kWouldBlock (or took less than all) while
  // nobody waits in writable().
  void watch_room(Watcher watcher, void* context) {
    room_watcher_ = watcher;
    room_context_ = context;
  }
  void unwatch_room() { room_watcher_ = nullptr; }
  // Ends a pending wait for room, as if there were some.
  void wake_writer();

  // Waits that end at once when the socket is closed under them.
  Task<Status> finish_connect(Duration timeout, CancelToken token);
  // `Duration` is for the whole handshake. Exactly one of the contexts.
  Task<Status> handshake_server(TlsServerContext& context, Duration timeout, CancelToken token);
  // `http2`: ALPN offers "h2" and nothing else, whatever the context says.
  Task<Status> handshake_client(TlsClientContext& context, std::string server_name, Duration timeout,
                                CancelToken token, bool http2 = false);
  bool is_tls() const { return ssl_ != nullptr; }
  std::string_view alpn() const;
  std::string client_certificate_subject() const;

  // co_await socket.write_soon(pieces, count): try_write(), together with those of other sockets when the
  // loop is amid a batch of events. The pieces must live until then.
  QueuedWrite write_soon(const iovec* pieces, size_t count);
  // Writes everything; for what one try did not take.
  Task<Status> write_all(std::span<iovec> pieces, Duration timeout, CancelToken token);

  void shutdown_write();
  void close();
  // Closes with a reset: the peer sees an error instead of an end.
  void reset_connection();
  SocketAddress peer() const;
  SocketAddress local() const;

 private:
  friend struct SocketDeleter;
  friend class SocketSet;

  Socket(Loop& loop, int fd);
  ~Socket();
  void on_events(uint32_t events);
  void wake_reader();
  // The watcher's turn for what had come before it watched.
  void check();
  ptrdiff_t tls_result(int result, bool writing);
  Task<Status> handshake(Duration timeout, CancelToken token);

  Loop& loop_;
  int fd_;
  int last_error_ = 0;
  bool maybe_readable_ = true;
  bool ended_ = false;         // the peer has shut down or failed: reading gives its last bytes, then the end
  bool check_queued_ = false;  // SocketSet::check_later()
  bool tls_read_wants_write_ = false;
  bool tls_write_wants_read_ = false;
  bool tls_broken_ = false;                     // no close_notify after a fatal error
  Readiness* waiting_[2] = {nullptr, nullptr};  // read, write
  Watcher watcher_ = nullptr;
  void* watcher_context_ = nullptr;
  Watcher room_watcher_ = nullptr;
  void* room_context_ = nullptr;
  ssl_st* ssl_ = nullptr;
  std::string tls_error_;
};

// The wait of Socket::write_soon(). Lives in the writer's frame; leaves the queue when that is destroyed.
class QueuedWrite {
 public:
  QueuedWrite(Socket& socket, const iovec* pieces, size_t count)
      : set_(impl_of(socket.loop()).sockets), socket_(socket), pieces_(pieces), count_(count) {}
  QueuedWrite(const QueuedWrite&) = delete;
  QueuedWrite& operator=(const QueuedWrite&) = delete;
  ~QueuedWrite() {
    if (handle_) set_.dequeue(*this);
  }
  bool await_ready() {
    if (set_.queues_writes()) return false;
    result_ = socket_.try_write(pieces_, count_);
    return true;
  }
  void await_suspend(std::coroutine_handle<> handle) {
    handle_ = handle;
    set_.enqueue(*this);
  }
  ptrdiff_t await_resume() const { return result_; }

 private:
  friend class SocketSet;
  SocketSet& set_;
  Socket& socket_;
  const iovec* pieces_;
  size_t count_;
  ptrdiff_t result_ = Socket::kWouldBlock;
  std::coroutine_handle<> handle_;  // set while queued
  QueuedWrite* previous_ = nullptr;
  QueuedWrite* next_ = nullptr;
};

inline QueuedWrite Socket::write_soon(const iovec* pieces, size_t count) {
  return {*this, pieces, count};
}

// TCP_NODELAY, SO_KEEPALIVE.
void set_stream_options(int fd);
Result<int> open_listener(const SocketAddress& address, int backlog, bool reuse_port);
// Connects to the first address that answers. The deadline is for all of them.
Task<Result<SocketPtr>> connect_any(Loop& loop, std::span<const SocketAddress> addresses, Duration timeout,
                                    CancelToken token);

}  // namespace penstock::io::detail
