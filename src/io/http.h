#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "io/loop.h"
#include "io/net.h"

namespace penstock::io {

// A header or trailer field. Names that were received are in lower case; names to send go out as given.
// Views: whoever hands one out says how long it lives.
struct HeaderField {
  std::string_view name;
  std::string_view value;  // without blanks around it
};

// Fields in the order received. Looking up is a scan: tens of fields, compared by length first.
class HeaderFields {
 public:
  HeaderFields() = default;
  HeaderFields(std::span<const HeaderField> fields) : fields_(fields) {}

  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }
  size_t size() const { return fields_.size(); }
  bool empty() const { return fields_.empty(); }
  const HeaderField& operator[](size_t i) const { return fields_[i]; }
  std::span<const HeaderField> all() const { return fields_; }

  // The first field of that (lower-case) name, or nothing.
  std::optional<std::string_view> find(std::string_view lower_name) const {
    for (const HeaderField& field : fields_)
      if (field.name == lower_name) return field.value;
    return std::nullopt;
  }
  // find(), or "".
  std::string_view get(std::string_view lower_name) const {
    return find(lower_name).value_or(std::string_view{});
  }
  bool has(std::string_view lower_name) const { return find(lower_name).has_value(); }

 private:
  std::span<const HeaderField> fields_;
};

// True when a comma-separated list names the token, ASCII case aside.
bool list_has_token(std::string_view list, std::string_view lower_token);

enum class HttpVersion : uint8_t { kHttp10, kHttp11, kHttp2 };

// A request as received. All views live until the exchange ends.
struct RequestHead {
  std::string_view method;     // as sent: "POST"
  std::string_view target;     // origin form: "/v1/models?x=y", "*", or "host:port" for CONNECT
  std::string_view path;       // target up to '?'
  std::string_view query;      // after '?', may be empty
  std::string_view authority;  // of an absolute target, else of the host field; may be empty in HTTP/1.0
  HttpVersion version = HttpVersion::kHttp11;
  HeaderFields fields;
};

// A response as received by the client. All views live until the call ends.
struct ResponseHead {
  int status = 0;
  std::string_view reason;
  HttpVersion version = HttpVersion::kHttp11;
  HeaderFields fields;
};

// How a body that we send is delimited. The codec writes content-length or transfer-encoding from this
// and from nothing else; such fields among the given ones, and connection, keep-alive, upgrade, te and
// proxy-connection, are left out.
struct BodyFraming {
  enum class Kind : uint8_t { kNone, kLength, kChunked };
  Kind kind = Kind::kNone;
  uint64_t length = 0;

  static constexpr BodyFraming none() { return {}; }
  // Exactly this many bytes must follow; finishing with fewer or writing more breaks the connection.
  static constexpr BodyFraming of_length(uint64_t n) { return {Kind::kLength, n}; }
  // Unknown length. Towards HTTP/1.0 clients it is delimited by closing.
  static constexpr BodyFraming chunked() { return {Kind::kChunked, 0}; }
};

// A part of a body. The view lives until the next read on the same message or the message's end.
struct BodyPiece {
  std::string_view data;  // empty only when `last`
  bool last = false;      // nothing follows; trailers, if any, are complete
};

// A whole body in one piece of memory, followed by at least kBodyPadding readable bytes (of any value).
inline constexpr size_t kBodyPadding = 64;

struct ConnectionInfo {
  uint64_t id = 0;  // unique in the process
  SocketAddress peer;
  SocketAddress local;
  bool tls = false;
  std::string alpn;                      // empty without TLS
  std::string client_certificate_names;  // subject of a verified client certificate, else empty
  std::string listener;                  // HttpServer::listen()'s name
};

// Tasks start when awaited: what a call's arguments refer to must live until then (awaiting a call where it
// is made is always right; keeping its Task for later is not, with temporaries).

// Asked for every piece of memory that a body which is read whole is about to take.
class BodyBudget {
 public:
  // `bytes`: what the body will hold in all from now on; also called when it holds less again. False: there
  // is no room, what was held before stays.
  virtual bool hold(uint64_t bytes) = 0;

 protected:
  ~BodyBudget() = default;
};

// One request and its response, on the server's side, whatever the protocol version. Belongs to its
// connection's loop; lives while the handler runs. One read and one write may be pending at a time.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual Loop& loop() = 0;
  virtual const RequestHead& request() const = 0;
  virtual const ConnectionInfo& connection() const = 0;
  // Fires as soon as the client has gone (closed, half-closed after its request, reset), when the server
  // shuts down hard, or a write failed. Noticed with no read pending, too. HTTP/2: when the stream was reset,
  // or the connection lost, before both sides had ended; what came before stays readable.
  virtual CancelToken cancel_token() = 0;
  // HTTP/2: the exchange ended with its connection, not by itself.
  virtual bool connection_lost() const { return false; }

  // --- request body ---
  // The declared length; nothing when chunked. 0 when there is no body.
  virtual std::optional<uint64_t> content_length() const = 0;
  // The next piece: all that one receive gave. After `last`, an empty last piece again. Errors: kBadRequest
  // (framing), kRequestTimeout, kPayloadTooLarge (HttpServerOptions::max_body_bytes), kClientClosed,
  // kCancelled.
  virtual Task<Result<BodyPiece>> read() = 0;
  // The whole body, copied at most once; valid until the exchange ends, kBodyPadding bytes readable after
  // it. Larger than `limit`: kPayloadTooLarge, naming the limit, without reading on. Longer under way than
  // HttpServerOptions::body_total_timeout: kRequestTimeout.
  virtual Task<Result<std::span<char>>> read_all(size_t limit) = 0;
  // read_all() whose memory is accounted for: it grows with what has arrived (at most 64 KiB or 8 times of
  // it, and nothing before the first byte), whatever length is declared; kResourceExhausted when the budget
  // refuses. The budget must live until the task ends; what is held at the end is held until the exchange
  // ends. A codec that bounds what it receives in other ways may ask once, when the body is there: so does
  // this.
  virtual Task<Result<std::span<char>>> read_all_within(size_t limit, BodyBudget& budget);
  // Complete once the last piece was read.
  virtual HeaderFields request_trailers() const = 0;

  // --- response ---
  // An informational response (100 is sent by itself when the body is first read).
  virtual Task<Status> write_informational(int status, std::span<const HeaderField> fields) = 0;
  // Queues the head; it leaves with the first body bytes, flush() or finish(), so that one system call
  // carries both. Once per exchange. Fields are copied. Names and values that would break the framing
  // (line ends, NUL) give kInternal.
  virtual Status write_head(int status, std::span<const HeaderField> fields, BodyFraming framing) = 0;
  virtual bool head_written() const = 0;
  virtual Task<Status> flush() = 0;
  // Sends all pieces with one system call where the socket takes them, and waits while it doesn't
  // (HttpServerOptions::write_timeout without progress gives kRequestTimeout). Chunk framing is ours.
  // To a HEAD request the bytes are counted and dropped. HTTP/2: taken at once while the stream has less
  // than Http2ServerOptions::stream_queue_bytes waiting, and sent with what the connection's other streams
  // say in the same turn of the loop.
  virtual Task<Status> write(std::span<const std::string_view> pieces) = 0;
  // Last bytes and the end in one system call. Trailers only with chunked framing.
  virtual Task<Status> finish(std::span<const std::string_view> pieces = {},
                              std::span<const HeaderField> trailers = {}) = 0;
  virtual bool finished() const = 0;
  // Breaks the response off so that the client notices: closes without an end (HTTP/2: resets the stream
  // with INTERNAL_ERROR, at once).
  virtual void abort() = 0;
  // The connection is closed after this exchange (HTTP/1: "connection: close"; HTTP/2: GOAWAY, and the end
  // with the streams that are open).
  virtual void close_after() = 0;

  // A short response in one call.
  Task<Status> respond(int status, std::string_view content_type, std::string_view body,
                       std::span<const HeaderField> more_fields = {});
  Task<Status> write(std::string_view piece);
};

// "OK", "Not Found", …; "Unknown" for others.
std::string_view reason_phrase(int status);

}  // namespace penstock::io
