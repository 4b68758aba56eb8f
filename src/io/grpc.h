#pragma once

#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/http.h"
#include "io/http_client.h"
#include "io/http_server.h"
#include "io/loop.h"

// gRPC over HTTP/2 (grpc/doc/PROTOCOL-HTTP2.md): framing, status and trailers, deadlines, gzip of what is
// received; what is sent is never compressed. It knows messages as bytes, not protobuf.
namespace penstock::io {

namespace detail {
class Http2Exchange;
}

enum class GrpcCode : uint8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};
// "OK", "CANCELLED", …
std::string_view grpc_code_name(GrpcCode code);

// How a call ended. (Constructors, so that it is no aggregate: see io/task.h on GCC 12.)
struct GrpcStatus {
  GrpcStatus() {}
  GrpcStatus(GrpcCode c, std::string m = {}) : code(c), message(std::move(m)) {}
  bool ok() const { return code == GrpcCode::kOk; }

  GrpcCode code = GrpcCode::kOk;
  std::string message;  // plain text; percent-encoding on the wire is ours
};
// The one table from our errors to gRPC codes (kPayloadTooLarge and kResourceExhausted are
// RESOURCE_EXHAUSTED, kNotImplemented UNIMPLEMENTED, time-outs DEADLINE_EXCEEDED, kClientClosed and
// kCancelled CANCELLED, …).
GrpcStatus grpc_status_of(const Error& error);

// (A constructor, so that it is no aggregate.)
struct GrpcOptions {
  GrpcOptions() {}
  size_t max_receive_message_bytes = 4UL << 20U;  // also after decompression; beyond: RESOURCE_EXHAUSTED
  size_t max_send_message_bytes = (1UL << 31U) - 1;
};

// The pieces of one message to send; they are concatenated.
using GrpcPieces = std::span<const std::string_view>;

// Takes length-prefixed messages out of a stream of bytes, however it is split. A message that lies whole in
// one piece is a view of that piece; others are assembled in one buffer that grows with the bytes that have
// come, never with the length that was promised. One thread.
class GrpcFrameDecoder {
 public:
  enum class Encoding : uint8_t { kIdentity, kGzip, kUnsupported };

  explicit GrpcFrameDecoder(size_t max_message_bytes, Encoding encoding = Encoding::kIdentity);
  GrpcFrameDecoder(const GrpcFrameDecoder&) = delete;
  GrpcFrameDecoder& operator=(const GrpcFrameDecoder&) = delete;
  ~GrpcFrameDecoder();

  void set_encoding(Encoding encoding) { encoding_ = encoding; }
  // More bytes; they must stay valid until next() has given nothing. REQUIRES: next() gave nothing since the
  // last feed().
  void feed(std::string_view bytes) { rest_ = bytes; }
  // The next message, valid until the next call or the end of the fed bytes; nothing: feed() more. Errors end
  // the stream: kPayloadTooLarge, kInternal (flag byte above 1, compressed without a grpc-encoding, broken
  // gzip), kNotImplemented (compressed with an encoding other than gzip).
  Result<std::optional<std::string_view>> next();
  // next() gives a message or an error without more bytes.
  bool ready() const;
  // Memory of messages, assembled and unpacked.
  size_t held_bytes() const;
  // Nothing of a message is pending: the stream may end here.
  bool at_boundary() const { return rest_.empty() && prefix_size_ == 0 && !assembling_; }

 private:
  struct Inflater;
  Result<std::optional<std::string_view>> give(std::string_view payload);
  Status accept_prefix(const unsigned char* prefix);

  size_t max_message_bytes_;
  std::string_view rest_;
  unsigned char prefix_[5] = {};
  uint8_t prefix_size_ = 0;  // bytes of a prefix that came in an earlier piece
  Encoding encoding_;
  bool compressed_ = false;
  bool assembling_ = false;
  size_t length_ = 0;  // of the message being assembled
  std::string buffer_;
  std::unique_ptr<Inflater> inflater_;
};

// One call on the server's side. Belongs to the exchange's loop; lives while the method runs. One read and
// one write may be pending at a time.
class GrpcServerStream {
 public:
  GrpcServerStream(HttpExchange& exchange, const GrpcOptions& options);
  GrpcServerStream(const GrpcServerStream&) = delete;
  GrpcServerStream& operator=(const GrpcServerStream&) = delete;
  ~GrpcServerStream();

  HttpExchange& exchange() { return exchange_; }
  const RequestHead& request() const { return exchange_.request(); }
  Loop& loop() { return exchange_.loop(); }
  // Fires when the client has gone or reset the stream, when the call's deadline (grpc-timeout) has passed,
  // or when the server shuts down hard.
  CancelToken cancel_token();
  bool deadline_passed() const { return deadline_passed_; }

  using Read = Result<std::optional<std::string_view>>;
  class ReadAwaiter {
   public:
    ReadAwaiter(GrpcServerStream& stream, Duration timeout, CancelToken token)
        : stream_(stream), timeout_(timeout), token_(std::move(token)) {}
    bool await_ready();
    void await_suspend(std::coroutine_handle<> handle);
    Read await_resume();

   private:
    GrpcServerStream& stream_;
    Duration timeout_;
    CancelToken token_;
  };
  // co_await: the next message, contiguous, valid until the next read_message(); nothing: the client has
  // half-closed (again and again). No coroutine is made when the message is already there.
  // kRequestTimeout: none came within `timeout` (zero: no limit); kCancelled also when `token` fires: after
  // both the stream is as before and read_message() may be called again. Final errors: kCancelled or
  // kClientClosed (the client reset the stream or is gone), kRequestTimeout with deadline_passed(),
  // GrpcFrameDecoder's, kInternal (half-closed inside a message).
  ReadAwaiter read_message(Duration timeout = Duration::zero(), CancelToken token = {}) {
    return {*this, timeout, std::move(token)};
  }
  // A message, the half-close or an error is there: read_message() will not wait.
  bool message_ready() const;

  // Queues messages with one write: first a head if it hasn't been sent, the length prefixes are ours. The
  // pieces must live until the task ends; it waits while the client or the connection doesn't take more.
  // Errors: kPayloadTooLarge (max_send_message_bytes; nothing is sent), kCancelled, kClientClosed,
  // kRequestTimeout (write_timeout without progress).
  Task<Status> write_message(GrpcPieces pieces);
  Task<Status> write_messages(std::span<const GrpcPieces> messages);
  // write_messages() where it needn't wait, without a coroutine; nothing is done where it would have to.
  std::optional<Status> write_messages_there(std::span<const GrpcPieces> messages);
  // Last messages, if any, and the end: trailers, or Trailers-Only when nothing was ever sent. Once.
  // An unread rest of the request is refused by the transport.
  Task<Status> finish(GrpcStatus status, std::span<const GrpcPieces> messages = {});
  bool finished() const { return finished_; }
  // Fields that go with the end, besides the status: copied. Before finish().
  void add_trailer(std::string_view name, std::string_view value);
  // Breaks the call off: the client sees a reset.
  void abort() { exchange_.abort(); }

  size_t messages_received() const { return messages_received_; }
  size_t messages_sent() const { return messages_sent_; }

 private:
  friend class ReadAwaiter;
  friend class GrpcRouter;
  struct Pump;
  Pump receive();
  void destroy_pump();
  void arm_deadline(Duration timeout);
  Task<Status> send(GrpcPieces first, std::span<const GrpcPieces> more);
  bool try_next();
  // Reads what has come; true: read_message() needn't wait.
  bool receive_there();
  // Nobody is there to be told anything.
  bool gone() const;
  Read take_result();
  static void on_deadline(void* self);

  HttpExchange& exchange_;
  detail::Http2Exchange* http2_;  // the same, or null for another kind: does without coroutines what it can
  size_t max_send_message_bytes_;
  GrpcFrameDecoder decoder_;
  std::coroutine_handle<> pump_;  // waits for the transport; outlives a read that timed out
  bool pump_done_ = true;
  bool last_piece_seen_ = false;
  bool finished_ = false;
  bool writing_ = false;
  bool deadline_passed_ = false;
  std::optional<Read> result_;  // what the next read_message() gives
  std::optional<Error> failed_;
  Wait wait_;
  struct Deadline;
  std::unique_ptr<Deadline> deadline_;
  std::vector<std::pair<std::string, std::string>> trailers_;
  size_t messages_received_ = 0;
  size_t messages_sent_ = 0;
};

// A method. The status it returns ends the call, unless it called finish() itself. After the deadline an
// unfinished call ends with DEADLINE_EXCEEDED whatever it returns.
using GrpcMethod = std::function<Task<GrpcStatus>(GrpcServerStream& stream)>;
// One message in, one out. `request` is valid until the task ends; `response` is sent when the status is OK.
using GrpcUnaryMethod = std::function<Task<GrpcStatus>(GrpcServerStream& stream, std::string_view request,
                                                       std::string& response)>;

// "/package.Service/Method" -> method. Refuses what is no gRPC call: content types other than
// application/grpc (or with +proto) get 415, or go to the fallback when there is one; other methods than POST
// 405; HTTP/1 505. Unknown paths are UNIMPLEMENTED, grpc-encodings other than identity and gzip too (with
// grpc-accept-encoding), broken grpc-timeouts INTERNAL. `te: trailers` may be missing.
// Filled before the server starts, then read by all loops.
class GrpcRouter final : public HttpHandler {
 public:
  explicit GrpcRouter(GrpcOptions options = {}) : options_(options) {}

  void add(std::string path, GrpcMethod method);
  void add_unary(std::string path, GrpcUnaryMethod method);
  // Serves requests that are no gRPC.
  void set_fallback(std::shared_ptr<HttpHandler> fallback) { fallback_ = std::move(fallback); }

  Task<void> handle(HttpExchange& exchange) override;

 private:
  const GrpcMethod* find(std::string_view path) const;
  GrpcOptions options_;
  std::vector<std::pair<std::string, GrpcMethod>> methods_;
  std::shared_ptr<HttpHandler> fallback_;
};

// --- client ---

// (A constructor, so that it is no aggregate.)
struct GrpcCallOptions {
  GrpcCallOptions() {}
  Duration timeout = std::chrono::seconds(10);  // of the whole call, sent as grpc-timeout; zero: none
  Duration connect_timeout = std::chrono::seconds(5);
  std::span<const HeaderField> metadata;  // must live until the call is open
  size_t max_receive_message_bytes = 4UL << 20U;
  CancelToken token;
};

// A call in both directions, over HTTP/2 whatever the destination says. One task may write while another
// reads; both have to return before it is dropped (cancel() makes them). Dropping it before its end resets
// the stream. The HttpClient must outlive it.
class GrpcClientStream {
 public:
  GrpcClientStream(const GrpcClientStream&) = delete;
  GrpcClientStream& operator=(const GrpcClientStream&) = delete;
  ~GrpcClientStream();

  // Opens the call: the request head is sent. Errors as HttpClient::start().
  static Task<Result<std::unique_ptr<GrpcClientStream>>> open(HttpClient& client, const HttpDestination& to,
                                                              std::string_view path,
                                                              const GrpcCallOptions& options = {});

  // False in the value, or an error: the call is over for writing; read on for its status.
  Task<Result<bool>> write_message(GrpcPieces pieces);
  Task<Result<bool>> half_close();
  // The next message, valid until the next call; nothing: the call has ended, status() says how. Failures of
  // the transport end the call with UNAVAILABLE, CANCELLED or DEADLINE_EXCEEDED.
  Task<std::optional<std::string_view>> read_message();
  const GrpcStatus& status() const;
  // Of the end (or of Trailers-Only), "" when missing.
  std::string_view trailer(std::string_view lower_name) const;
  // Resets the stream; status() becomes CANCELLED unless it had ended.
  void cancel();

 private:
  struct State;
  explicit GrpcClientStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct GrpcReply {
  GrpcReply() {}
  GrpcStatus status;
  std::string message;  // empty unless ok
};
// A whole unary call.
Task<GrpcReply> grpc_unary(HttpClient& client, const HttpDestination& to, std::string_view path,
                           GrpcPieces request, const GrpcCallOptions& options = {});

// --- parts, for tests ---

// Percent-encoding of grpc-message: bytes outside 0x20–0x7E and '%' become %XX; percent_decode() reads it.
std::string grpc_encode_message(std::string_view text);
// At most 8 digits and one of H M S m u n. Nothing when malformed.
std::optional<Duration> parse_grpc_timeout(std::string_view text);
std::string format_grpc_timeout(Duration timeout);

}  // namespace penstock::io
