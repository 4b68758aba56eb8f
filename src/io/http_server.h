#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "io/http.h"
#include "io/loop.h"
#include "io/net.h"
#include "io/tls.h"

namespace penstock::io {

struct HttpServerOptions {
  size_t max_header_bytes = 64 * 1024;                 // request line and fields; beyond: 431
  size_t max_headers = 128;                            // fields; beyond: 431
  size_t max_trailer_bytes = 8 * 1024;                 // beyond: 400
  uint64_t max_body_bytes = 1ULL << 30U;               // any body, however read; beyond: 413
  uint32_t max_connections = 16384;                    // beyond: closed at accept
  uint32_t max_requests_per_connection = 1'000'000;    // then connection: close
  Duration header_timeout = std::chrono::seconds(30);  // first byte of a head to its end; then 408
  Duration idle_timeout = std::chrono::seconds(75);    // between requests; then closed silently
  Duration body_timeout = std::chrono::seconds(60);    // between two receives of a body; then 408
  Duration write_timeout = std::chrono::seconds(60);   // without the client taking a byte
  Duration tls_handshake_timeout = std::chrono::seconds(10);
  Duration linger_timeout = std::chrono::seconds(5);  // reading on so that the client sees our refusal
  bool reuse_port = false;  // one listening socket per loop (many short connections) instead of one acceptor
  // Body and content type of a refusal made by the codec itself (400, 408, 413, 417, 431, 500, 501, 505).
  // Null: a line of text.
  struct ErrorBody {
    std::string content_type;
    std::string body;
  };
  std::function<ErrorBody(int status, std::string_view reason)> error_body;
};

// Serves one exchange. The exchange ends when the task does: an unwritten response becomes a 500, an
// unfinished one breaks the connection. Called on the connection's loop, so by many threads at once.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual Task<void> handle(HttpExchange& exchange) = 0;
};

// HTTP server over a LoopGroup or one Loop. Connections are accepted on one loop and handed to the loop
// with the fewest open connections and streams. HTTP/1.1 and 1.0; ALPN may name more.
class HttpServer {
 public:
  struct Stats {
    uint64_t connections_accepted = 0;
    uint64_t connections_refused = 0;
    uint64_t connections_open = 0;
    uint64_t requests = 0;
    uint64_t bad_requests = 0;  // refused by the codec
  };

  HttpServer(LoopGroup& loops, HttpServerOptions options, std::shared_ptr<HttpHandler> handler);
  HttpServer(Loop& loop, HttpServerOptions options, std::shared_ptr<HttpHandler> handler);
  // Handler from a function: Task<void>(HttpExchange&).
  template <typename F>
  static std::shared_ptr<HttpHandler> handler_of(F function) {
    struct Adapter final : HttpHandler {
      explicit Adapter(F f) : call(std::move(f)) {}
      Task<void> handle(HttpExchange& exchange) override { return call(exchange); }
      F call;
    };
    return std::make_shared<Adapter>(std::move(function));
  }
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // stop(0) when still running; REQUIRES: loops still run, or never did

  // Starts listening; before or while the loops run, from any thread but one listen() at a time. Returns
  // the bound address.
  Result<SocketAddress> listen(const SocketAddress& address, std::shared_ptr<TlsServerContext> tls = nullptr,
                               std::string name = {});
  // Stops listening, closes idle connections, lets running exchanges end (their responses say connection:
  // close) for up to `drain`, then cancels them and closes. Blocks; from outside the loops while they run.
  void stop(Duration drain = Duration::zero());
  // Stops listening and lets keep-alive connections end after their present exchange; does not wait.
  void begin_drain();
  Stats stats() const;

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace penstock::io
