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

// HTTP/2's own limits. A connection that breaks one of them for good is told why (GOAWAY) and closed.
struct Http2ServerOptions {
  bool enabled = true;  // off: the preface is answered 505
  // Of one connection; more are refused (REFUSED_STREAM), or end it when the client knew.
  uint32_t max_concurrent_streams = 1024;
  uint32_t stream_window_bytes = 256 * 1024;     // of a request body not yet read by its handler
  uint32_t connection_window_bytes = 8U << 20U;  // the same of all streams together; at least 65,535
  uint32_t max_frame_bytes = 16384;              // 16,384 to 16,777,215
  // For servers that neither pass requests on nor choose by :authority, as gRPC's: takes one that is no host,
  // such as the cluster's name that Envoy sends unless told otherwise ("outbound|9002||…"). Fields are still
  // checked one by one; what nghttp2 checks of whole messages (pseudo-header fields once, content-length)
  // isn't.
  bool any_authority = false;
  size_t stream_queue_bytes = 256 * 1024;       // of a response, taken by write() without waiting
  size_t connection_queue_bytes = 16UL << 20U;  // the same of all streams together
  // The same of all connections together, an equal share for each loop. Beyond: write() waits until its bytes
  // are taken by the socket, and each connection keeps up to 512 KiB that its socket didn't take.
  uint64_t total_queue_bytes = 256UL << 20U;
  // Streams that the client resets before anything was written for them, or makes us reset. Others, as Envoy
  // ends every ext-proc stream after our answer, are not counted.
  uint32_t reset_burst = 1000;
  uint32_t resets_per_second = 100;
  // Frames that move nothing: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, RST_STREAM, empty DATA. Each HEADERS
  // and DATA frame with content, either way, earns 16 of them.
  uint32_t control_burst = 10'000;
  uint32_t control_per_second = 1'000;
  Duration ping_interval = Duration::zero();  // silence after which the client is asked; zero: never
  Duration ping_timeout = std::chrono::seconds(20);
  Duration max_connection_age = Duration::zero();  // then GOAWAY, and the end with its streams; zero: none
  // A loop with more than `rebalance_factor` times the streams of the least loaded one for `rebalance_after`
  // asks one of its HTTP/2 connections to come again (GOAWAY). Zero: never.
  double rebalance_factor = 2.0;
  uint32_t rebalance_streams = 64;  // at least so many more
  Duration rebalance_after = std::chrono::seconds(10);
};

struct HttpServerOptions {
  size_t max_header_bytes = 64 * 1024;                    // request line and fields; beyond: 431
  size_t max_headers = 128;                               // fields; beyond: 431
  size_t max_trailer_bytes = 8 * 1024;                    // beyond: 400
  uint64_t max_body_bytes = 1ULL << 30U;                  // any body, however read; beyond: 413
  uint32_t max_connections = 16384;                       // beyond: closed at accept
  uint32_t max_requests_per_connection = 1'000'000;       // HTTP/1; then connection: close
  Duration header_timeout = std::chrono::seconds(30);     // first byte of a head to its end; then 408
  Duration idle_timeout = std::chrono::seconds(75);       // between requests; then closed silently
  Duration body_timeout = std::chrono::seconds(60);       // between two receives of a body; then 408
  Duration body_total_timeout = std::chrono::minutes(5);  // all of a body that is read whole; then 408
  Duration write_timeout = std::chrono::seconds(60);      // without the client taking a byte
  Duration tls_handshake_timeout = std::chrono::seconds(10);
  Duration linger_timeout = std::chrono::seconds(5);  // reading on so that the client sees our refusal
  Http2ServerOptions http2;
  bool reuse_port = false;  // one listening socket per loop (many short connections) instead of one acceptor
  // Body and content type of a refusal made by the codec itself (400, 408, 413, 417, 431, 500, 501, 505).
  // Null: a line of text.
  struct ErrorBody {
    std::string content_type;
    std::string body;
  };
  std::function<ErrorBody(int status, std::string_view reason)> error_body;
  // A connection came to nothing: its client speaks TLS on a listener without, or none on one with it, or the
  // two found no common ground (versions, certificates). Not for one that merely went away. Called on the
  // connection's loop, so by many threads at once. Null: nobody is told.
  std::function<void(const ConnectionInfo& connection, std::string_view reason)> on_bad_start;
};

// Serves one exchange. The exchange ends when the task does: an unwritten response becomes a 500, an
// unfinished one breaks the connection. Called on the connection's loop, so by many threads at once.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual Task<void> handle(HttpExchange& exchange) = 0;
};

// HTTP server over a LoopGroup or one Loop. Connections are accepted on one loop and handed to the loop
// with the fewest open connections and streams. HTTP/1.1 and 1.0; HTTP/2 where ALPN has chosen "h2" or the
// client begins with its preface.
class HttpServer {
 public:
  struct Stats {
    uint64_t connections_accepted = 0;
    uint64_t connections_refused = 0;
    uint64_t connections_open = 0;
    uint64_t requests = 0;
    uint64_t bad_requests = 0;  // refused by the codec
    uint64_t open_exchanges = 0;
    // HTTP/2 connections that were broken off, by reason; and streams.
    uint64_t http2_queued_bytes = 0;  // now: of responses, for clients that don't take them yet
    uint64_t http2_connections = 0;   // accepted
    uint64_t http2_protocol_errors = 0;
    uint64_t http2_control_floods = 0;
    uint64_t http2_continuation_floods = 0;
    uint64_t http2_reset_floods = 0;
    uint64_t http2_header_timeouts = 0;
    uint64_t http2_write_timeouts = 0;
    uint64_t http2_ping_timeouts = 0;
    uint64_t http2_rebalanced = 0;         // asked to come again
    uint64_t http2_refused_streams = 0;    // too many at once
    uint64_t http2_early_resets = 0;       // streams reset by the client before anything was written
    uint64_t http2_stalled_streams = 0;    // reset: the client's window stayed shut
    uint64_t http2_malformed_streams = 0;  // reset: a rule broken on that stream only
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
