#include "io/http_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "io/detail/http1_server.h"
#include "io/detail/http2_server.h"
#include "io/detail/socket.h"

namespace penstock::io {

namespace {

using detail::ServerLoop;

std::atomic<uint64_t> next_connection_id{1};

Task<void> serve_connection(std::unique_ptr<detail::Http1Connection> connection) {
  co_await connection->serve();
  if (!connection->wants_http2()) co_return;
  const std::string received(connection->received());
  const auto http2 = std::make_unique<detail::Http2ServerConnection>(*connection);
  connection.reset();
  co_await http2->serve(received);
}

void start_connection(const std::shared_ptr<HttpServer::Impl>& server, ServerLoop& home, int fd,
                      const std::shared_ptr<HttpServer::Impl::Listening>& listening,
                      const SocketAddress& peer) {
  detail::set_stream_options(fd);
  auto connection = std::make_unique<detail::Http1Connection>(
      server, home, detail::Socket::adopt(home.loop, fd), listening, peer);
  spawn(home.loop, serve_connection(std::move(connection)));
}

Task<void> accept_loop(std::shared_ptr<HttpServer::Impl> server, ServerLoop& home, detail::SocketPtr socket,
                       std::shared_ptr<HttpServer::Impl::Listening> listening, bool spread) {
  const CancelToken stop = home.stop_accepting.token();
  while (!stop.cancelled()) {
    sockaddr_storage storage{};
    socklen_t size = sizeof(storage);
    const int fd =
        ::accept4(socket->fd(), reinterpret_cast<sockaddr*>(&storage), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        const Wait::Outcome outcome = co_await socket->readable(Duration::zero(), stop);
        if (outcome != Wait::Outcome::kReady) break;
        continue;
      }
      // Out of descriptors or memory: others may free some.
      const bool slept = co_await home.loop.sleep(std::chrono::milliseconds(20), stop);
      if (!slept) break;
      continue;
    }
    if (server->open.fetch_add(1, std::memory_order_acq_rel) >= server->options.max_connections) {
      server->open.fetch_sub(1, std::memory_order_acq_rel);
      server->refused.fetch_add(1, std::memory_order_relaxed);
      ::close(fd);
      continue;
    }
    server->accepted.fetch_add(1, std::memory_order_relaxed);
    const SocketAddress peer = SocketAddress::from_native(&storage, size);
    ServerLoop& target = spread ? server->least_loaded() : home;
    target.loop.open_connections().fetch_add(1, std::memory_order_relaxed);
    if (&target == &home) {
      start_connection(server, home, fd, listening, peer);
    } else {
      target.loop.post(
          [server, &target, fd, listening, peer] { start_connection(server, target, fd, listening, peer); });
    }
  }
  socket.reset();
  server->accepting.fetch_sub(1, std::memory_order_acq_rel);
  server->note_change();
}

}  // namespace

ServerLoop& HttpServer::Impl::least_loaded() {
  ServerLoop* best = loops.front().get();
  uint32_t best_load = ~uint32_t{0};
  for (const auto& candidate : loops) {
    const uint32_t load = candidate->loop.open_connections().load(std::memory_order_relaxed) +
                          candidate->loop.open_streams().load(std::memory_order_relaxed);
    if (load < best_load) {
      best_load = load;
      best = candidate.get();
    }
  }
  return *best;
}

void HttpServer::Impl::start_draining(ServerLoop& loop) {
  loop.stop_accepting.cancel();
  loop.stop_idling.cancel();
}

void HttpServer::Impl::force_close(ServerLoop& loop) {
  start_draining(loop);
  for (detail::ServerConnection* at = loop.first; at != nullptr;) {
    detail::ServerConnection* next = at->next_;
    at->force_close();
    at = next;
  }
}

namespace detail {

ServerConnection::ServerConnection(std::shared_ptr<HttpServer::Impl> server, ServerLoop& home,
                                   SocketPtr socket, std::shared_ptr<HttpServer::Impl::Listening> listening,
                                   const SocketAddress& peer)
    : server_(std::move(server)), listening_(std::move(listening)), home_(home), socket_(std::move(socket)) {
  info_.id = next_connection_id.fetch_add(1, std::memory_order_relaxed);
  info_.peer = peer;
  info_.local = socket_->local();
  info_.listener = listening_->name;
  link();
}

ServerConnection::ServerConnection(ServerConnection& from)
    : server_(from.server_),
      listening_(from.listening_),
      home_(from.home_),
      socket_(std::move(from.socket_)),
      info_(std::move(from.info_)) {
  from.counted_ = false;
  link();
}

void ServerConnection::link() {
  next_ = home_.first;
  if (next_ != nullptr) next_->previous_ = this;
  home_.first = this;
}

ServerConnection::~ServerConnection() {
  (previous_ != nullptr ? previous_->next_ : home_.first) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  socket_.reset();
  if (!counted_) return;
  home_.loop.open_connections().fetch_sub(1, std::memory_order_relaxed);
  server_->open.fetch_sub(1, std::memory_order_acq_rel);
  server_->note_change();
}

}  // namespace detail

HttpServer::HttpServer(LoopGroup& loops, HttpServerOptions options, std::shared_ptr<HttpHandler> handler)
    : impl_(std::make_shared<Impl>()) {
  impl_->options = std::move(options);
  impl_->handler = std::move(handler);
  std::vector<Loop*> all;
  for (size_t i = 0; i < loops.size(); ++i) all.push_back(&loops.at(i));
  impl_->add_loops(all);
}

HttpServer::HttpServer(Loop& loop, HttpServerOptions options, std::shared_ptr<HttpHandler> handler)
    : impl_(std::make_shared<Impl>()) {
  impl_->options = std::move(options);
  impl_->handler = std::move(handler);
  Loop* const only = &loop;
  impl_->add_loops({&only, 1});
}

HttpServer::~HttpServer() {
  stop();
}

Result<SocketAddress> HttpServer::listen(const SocketAddress& address, std::shared_ptr<TlsServerContext> tls,
                                         std::string name) {
  auto listening = std::make_shared<Impl::Listening>();
  listening->name = std::move(name);
  listening->tls = std::move(tls);
  const bool per_loop = impl_->options.reuse_port && impl_->loops.size() > 1;
  SocketAddress bound = address;
  std::vector<int> fds;
  for (size_t i = 0; i < (per_loop ? impl_->loops.size() : 1); ++i) {
    auto fd = detail::open_listener(bound, 4096, per_loop);
    if (!fd.ok()) {
      for (const int open : fds) ::close(open);
      return std::move(fd).error();
    }
    fds.push_back(*fd);
    sockaddr_storage storage{};
    socklen_t size = sizeof(storage);
    ::getsockname(*fd, reinterpret_cast<sockaddr*>(&storage), &size);
    bound = SocketAddress::from_native(&storage, size);
  }
  for (size_t i = 0; i < impl_->loops.size(); ++i) {
    ServerLoop& home = *impl_->loops[i];
    const int fd = i < fds.size() ? fds[i] : -1;
    if (fd >= 0) impl_->accepting.fetch_add(1, std::memory_order_acq_rel);
    home.loop.post([impl = impl_, &home, fd, listening, per_loop] {
      if (!home.ready) {
        home.ready = true;
        // The server's parts are kept by its connections; the hook goes when the last of them has gone.
        home.on_shutdown.arm(
            home.loop.shutdown_token(),
            [](void* server) {
              auto& self = *static_cast<Impl*>(server);
              self.draining.store(true, std::memory_order_relaxed);
              Loop* here = Loop::current();
              for (const auto& candidate : self.loops)
                if (&candidate->loop == here) self.force_close(*candidate);
            },
            impl.get());
      }
      if (fd >= 0)
        spawn(home.loop, accept_loop(impl, home, detail::Socket::adopt(home.loop, fd), listening, !per_loop));
    });
  }
  return bound;
}

void HttpServer::begin_drain() {
  impl_->draining.store(true, std::memory_order_relaxed);
  for (const auto& home : impl_->loops)
    home->loop.post([impl = impl_, &home = *home] { impl->start_draining(home); });
}

void HttpServer::stop(Duration drain) {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    if (impl_->stopped) return;
    impl_->stopped = true;
  }
  begin_drain();
  const auto idle = [this] {
    return impl_->open.load(std::memory_order_acquire) == 0 &&
           impl_->accepting.load(std::memory_order_acquire) == 0;
  };
  std::unique_lock<std::mutex> lock(impl_->mutex);
  impl_->changed.wait_for(lock, drain, idle);
  lock.unlock();
  for (const auto& home : impl_->loops) {
    home->loop.post([impl = impl_, &home = *home] {
      home.on_shutdown.disarm();
      impl->force_close(home);
    });
  }
  lock.lock();
  // Handlers end when their token fires; one that doesn't is left to its loop.
  impl_->changed.wait_for(lock, std::chrono::seconds(5), idle);
}

HttpServer::Stats HttpServer::stats() const {
  Stats out;
  out.connections_accepted = impl_->accepted.load(std::memory_order_relaxed);
  out.connections_refused = impl_->refused.load(std::memory_order_relaxed);
  out.connections_open = impl_->open.load(std::memory_order_relaxed);
  for (const auto& home : impl_->loops) {
    out.requests += home->requests.load(std::memory_order_relaxed);
    out.bad_requests += home->bad_requests.load(std::memory_order_relaxed);
    out.open_exchanges +=
        home->open_exchanges.load(std::memory_order_relaxed) + home->streams.load(std::memory_order_relaxed);
    out.http2_queued_bytes += home->http2_backlog.now();
    out.http2_connections += home->http2_connections.load(std::memory_order_relaxed);
    const auto fault = [&](detail::Http2Core::Fault kind) {
      return home->http2_faults[static_cast<size_t>(kind)].load(std::memory_order_relaxed);
    };
    using Fault = detail::Http2Core::Fault;
    out.http2_protocol_errors += fault(Fault::kProtocol);
    out.http2_control_floods += fault(Fault::kControlFlood);
    out.http2_continuation_floods += fault(Fault::kContinuationFlood);
    out.http2_reset_floods += fault(Fault::kResetFlood);
    out.http2_header_timeouts += fault(Fault::kHeaderTimeout);
    out.http2_write_timeouts += fault(Fault::kWriteTimeout);
    out.http2_ping_timeouts += fault(Fault::kPingTimeout);
    out.http2_rebalanced += home->http2_rebalanced.load(std::memory_order_relaxed);
    out.http2_refused_streams += home->http2_refused_streams.load(std::memory_order_relaxed);
    out.http2_early_resets += home->http2_early_resets.load(std::memory_order_relaxed);
    out.http2_stalled_streams += home->http2_stalled_streams.load(std::memory_order_relaxed);
    out.http2_malformed_streams += home->http2_malformed_streams.load(std::memory_order_relaxed);
  }
  return out;
}

}  // namespace penstock::io
