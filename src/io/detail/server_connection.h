#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "io/detail/backlog.h"
#include "io/detail/socket.h"
#include "io/http_server.h"

namespace penstock::io {

namespace detail {
class ServerConnection;
class Http2Exchange;

// A server's share of one loop. Touched on that loop only, except the counters.
struct ServerLoop {
  ServerLoop(Loop& l, uint64_t queue_bytes) : loop(l), http2_backlog(queue_bytes) {}
  Loop& loop;
  bool ready = false;  // the shutdown hook is in place
  CancelSource stop_accepting;
  CancelSource stop_idling;  // fires when keep-alive connections should end
  CancelCallback on_shutdown;
  ServerConnection* first = nullptr;
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> bad_requests{0};
  std::atomic<uint64_t> open_exchanges{0};
  std::atomic<uint64_t> http2_connections{0};
  std::array<std::atomic<uint64_t>, 7> http2_faults{};  // by Http2Core::Fault
  std::atomic<uint64_t> http2_rebalanced{0};
  std::atomic<uint64_t> http2_refused_streams{0};
  std::atomic<uint64_t> http2_early_resets{0};
  std::atomic<uint64_t> http2_stalled_streams{0};
  std::atomic<uint64_t> http2_malformed_streams{0};
  Backlog http2_backlog;
  TimePoint unbalanced_since = kNever;
  Http2Exchange* free_exchanges = nullptr;  // recycled
  uint32_t free_exchange_count = 0;
  std::atomic<uint32_t> streams{0};  // of HTTP/2
  ~ServerLoop();
};
}  // namespace detail

struct HttpServer::Impl {
  struct Listening {
    std::string name;
    std::shared_ptr<TlsServerContext> tls;
  };

  HttpServerOptions options;
  std::shared_ptr<HttpHandler> handler;
  std::vector<std::unique_ptr<detail::ServerLoop>> loops;
  std::atomic<bool> draining{false};
  std::atomic<uint64_t> accepted{0};
  std::atomic<uint64_t> refused{0};
  std::atomic<uint32_t> open{0};       // connections
  std::atomic<uint32_t> accepting{0};  // accept tasks

  std::mutex mutex;
  std::condition_variable changed;  // open or accepting went down
  bool stopped = false;

  void add_loops(std::span<Loop* const> all) {
    for (Loop* loop : all)
      loops.push_back(
          std::make_unique<detail::ServerLoop>(*loop, options.http2.total_queue_bytes / all.size()));
  }
  void note_change() {
    const std::lock_guard<std::mutex> lock(mutex);
    changed.notify_all();
  }
  detail::ServerLoop& least_loaded();
  void start_draining(detail::ServerLoop& loop);
  void force_close(detail::ServerLoop& loop);
};

namespace detail {

// What a connection of either protocol version is to its server: counted, and found when the server ends.
// Lives on its loop.
class ServerConnection {
 public:
  ServerConnection(std::shared_ptr<HttpServer::Impl> server, ServerLoop& home, SocketPtr socket,
                   std::shared_ptr<HttpServer::Impl::Listening> listening, const SocketAddress& peer);
  // The same connection under another protocol; `from` is left without a socket.
  explicit ServerConnection(ServerConnection& from);
  ServerConnection(const ServerConnection&) = delete;
  ServerConnection& operator=(const ServerConnection&) = delete;
  virtual ~ServerConnection();

  // Cancels what is running and closes. Doesn't destroy.
  virtual void force_close() = 0;

 protected:
  friend struct penstock::io::HttpServer::Impl;
  std::shared_ptr<HttpServer::Impl> server_;
  std::shared_ptr<HttpServer::Impl::Listening> listening_;
  ServerLoop& home_;
  SocketPtr socket_;  // null once handed on
  ConnectionInfo info_;

 private:
  void link();
  bool counted_ = true;
  ServerConnection* previous_ = nullptr;
  ServerConnection* next_ = nullptr;
};

}  // namespace detail
}  // namespace penstock::io
