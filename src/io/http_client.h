#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/http.h"
#include "io/loop.h"
#include "io/tls.h"

namespace penstock::io {

// Where a request goes; also the key of the connection pool.
struct HttpDestination {
  HttpDestination() {}
  HttpDestination(std::string h, uint16_t p, std::shared_ptr<TlsClientContext> t = nullptr,
                  std::string name = {}, bool over_http2 = false)
      : host(std::move(h)), port(p), tls(std::move(t)), server_name(std::move(name)), http2(over_http2) {}

  std::string host;  // name or literal address, no brackets
  uint16_t port = 80;
  std::shared_ptr<TlsClientContext> tls;  // null: plain
  std::string server_name;                // SNI and verification; empty: host
  // Calls share connections and run at the same time. Plain: with prior knowledge; TLS: by ALPN, and a peer
  // that doesn't choose "h2" is an error.
  bool http2 = false;
};

// "http://host:port/path?query"; https needs a context from the caller.
struct HttpUrl {
  bool https = false;
  std::string host;
  uint16_t port = 80;
  std::string target;  // "/path?query", at least "/"
};
Result<HttpUrl> parse_url(std::string_view url);

struct HttpClientOptions {
  Duration idle_timeout = std::chrono::seconds(4);  // of a pooled connection; vLLM closes after 5 s
  uint32_t max_idle_per_destination = 256;
  uint32_t max_connections_per_destination = 8192;
  size_t max_header_bytes = 64 * 1024;
  size_t max_headers = 256;
  Duration resolve_ttl = std::chrono::seconds(5);  // names are asked again after this
  // HTTP/2: another connection is opened when each has this many calls (or what the peer allows, when that is
  // less), up to the bound; then calls pile up, and beyond what the peer allows wait for their turn.
  uint32_t http2_calls_per_connection = 100;
  uint32_t http2_connections_per_destination = 8;
  uint32_t http2_stream_window_bytes = 256 * 1024;      // of a response body not yet read
  uint32_t http2_connection_window_bytes = 64U << 20U;  // the same of all calls together
  uint64_t http2_total_queue_bytes = 64U << 20U;        // of request bodies that no peer has taken yet
  // Silence after which a peer with calls is asked whether it is there (zero: never), and how long it may
  // take to say anything. A connection that fails this is closed with its calls. One that sends nothing but
  // its answers is asked again after twice and four times the silence, then each time after
  // `http2_ping_rest`: gRPC servers hang up on a client that asks more often than they like (zero: they may
  // be asked each time).
  Duration http2_ping_interval = std::chrono::seconds(10);
  Duration http2_ping_rest = std::chrono::minutes(5);
  Duration http2_ping_timeout = std::chrono::seconds(5);
};

struct HttpRequest {
  std::string_view method = "GET";
  std::string_view target = "/";
  std::span<const HeaderField> fields;  // host is added when missing; framing fields are left out
  BodyFraming framing;
  // Sent with the head in one system call. With framing none it must be empty; with of_length it may be all
  // of the body or its beginning.
  std::span<const std::string_view> body;
  // With the whole body given: the message is complete, finish() is not needed.
  bool complete = true;
};

// (A constructor, so that it is no aggregate: see IoOptions.)
struct HttpCallOptions {
  HttpCallOptions() {}

  Duration connect_timeout = std::chrono::seconds(5);  // resolver, TCP, TLS; gives kGatewayTimeout
  Duration write_timeout = std::chrono::seconds(60);   // without the peer taking a byte
  Duration first_byte_timeout = Duration::zero();      // request sent to response head; zero: none
  Duration idle_timeout = Duration::zero();            // between two receives of the response body
  // HTTP/1: never one from the pool. HTTP/2: one that was opened after the call began, by whichever call, or
  // the least loaded one when the destination has as many as it may.
  bool fresh_connection = false;
  CancelToken token;  // reaches every wait of the call
};

namespace detail {
class ClientCall;
class ClientConnection;
}  // namespace detail

// One request and its response. Move-only; destroying it before the response has been read to its end closes
// the connection at once (HTTP/2: resets the stream with CANCEL), otherwise the connection returns to the
// pool. The HttpClient must outlive it. One of its tasks at a time: send the body first, then read the
// answer; over HTTP/2 one task may write while another reads.
class HttpCall {
 public:
  HttpCall() = default;
  explicit HttpCall(detail::ClientCall* call) : call_(call) {}
  HttpCall(HttpCall&& other) noexcept : call_(std::exchange(other.call_, nullptr)) {}
  HttpCall& operator=(HttpCall&& other) noexcept;
  ~HttpCall() { close(); }

  explicit operator bool() const { return call_ != nullptr; }
  // The connection had served a request before.
  bool reused() const;
  // After an error: the connection was reused and gave no byte of an answer, so the peer has closed it while
  // it was idle, and the request may be sent once more on a fresh one (if its body can be). HTTP/2: also when
  // the peer says that it has not looked at the request (GOAWAY, REFUSED_STREAM).
  bool failed_stale() const;
  SocketAddress peer() const;

  enum class Sent : uint8_t {
    kAll,
    kAnswered,  // the peer answers before it has taken the body: stop sending, read the response
  };
  // More of a streamed request body, with back-pressure.
  Task<Result<Sent>> write(std::span<const std::string_view> pieces);
  Task<Result<Sent>> finish(std::span<const std::string_view> pieces = {},
                            std::span<const HeaderField> trailers = {});

  // The final response's head; 1xx are skipped. Valid until the call ends. Errors: kBadGateway (reset,
  // closed, malformed), kGatewayTimeout (first_byte_timeout), kCancelled.
  Task<Result<const ResponseHead*>> response();
  // The next piece: all that one receive gave, chunk framing taken out. Errors as above; a body that breaks
  // off is kBadGateway. REQUIRES: response() gave a head.
  Task<Result<BodyPiece>> read();
  // The rest of the body as one piece of memory with kBodyPadding readable bytes after it; valid until the
  // call ends. More than `limit`: kPayloadTooLarge.
  Task<Result<std::span<char>>> read_all(size_t limit);
  HeaderFields trailers() const;
  // The declared length; nothing when chunked or delimited by closing.
  std::optional<uint64_t> content_length() const;

  // Gives the call up without ending it: HTTP/2 resets the stream, and those who wait in the call are resumed
  // with an error on the loop's next turn. HTTP/1: the connection will not be used again. What has been
  // received stays valid.
  void break_off();
  // Ends the call: pools the connection when the response was read whole, closes it otherwise. REQUIRES: no
  // task is inside one of the call's functions; where one task writes while another reads, break_off() makes
  // both return.
  void close();

 private:
  detail::ClientCall* call_ = nullptr;
};

// HTTP/1.1 and HTTP/2 client of one loop with keep-alive pools, one per destination.
class HttpClient {
 public:
  struct Stats {
    uint64_t connections_opened = 0;
    uint64_t connections_reused = 0;
    uint64_t connections_idle = 0;
    uint64_t connections_busy = 0;
    uint64_t idle_closed_by_peer = 0;
  };

  explicit HttpClient(Loop& loop, HttpClientOptions options = {});
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  // REQUIRES: on the loop's thread (or the loop doesn't run); no calls left.
  ~HttpClient();

  // Takes a pooled connection or makes one, and sends head and given body. The request's views need to live
  // only until this returns. Errors: kGatewayTimeout (connect), kBadGateway (refused, unresolved, TLS),
  // kResourceExhausted (max_connections_per_destination), kCancelled.
  // A send that fails is no error here: the answer may have been sent before; response() tells.
  Task<Result<HttpCall>> start(const HttpDestination& destination, const HttpRequest& request,
                               const HttpCallOptions& options = {});

  // A whole small exchange: scrapes, health checks, the command line.
  struct Simple {
    Simple() {}
    int status = 0;
    std::string content_type;
    std::string body;
  };
  Task<Result<Simple>> fetch(const HttpDestination& destination, const HttpRequest& request,
                             const HttpCallOptions& options, Duration total_timeout, size_t body_limit);

  Loop& loop();
  Stats stats() const;
  // Closes idle connections of one destination (an endpoint that went away), or of all.
  void drop_idle(const HttpDestination& destination);
  void drop_idle();

  struct Impl;

 private:
  friend class detail::ClientConnection;
  std::unique_ptr<Impl> impl_;
};

// For command-line tools: runs a loop of its own on this thread until the answer is there.
Result<HttpClient::Simple> http_request_blocking(std::string_view method, std::string_view url,
                                                 std::string_view body = {},
                                                 std::span<const HeaderField> fields = {},
                                                 Duration timeout = std::chrono::seconds(10),
                                                 std::shared_ptr<TlsClientContext> tls = nullptr,
                                                 size_t body_limit = 64UL << 20U);

}  // namespace penstock::io
