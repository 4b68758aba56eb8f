#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "io/detail/client_pool.h"
#include "io/detail/http2_core.h"
#include "io/detail/http2_stream.h"

namespace penstock::io::detail {

class Http2ClientConnection;

// One call over HTTP/2. Recycled by its client, once released and closed in the session.
class Http2Call final : public ClientCall, public Http2Stream {
 public:
  explicit Http2Call(Loop& loop) : Http2Stream(loop) {}

  Task<Result<HttpCall::Sent>> write(std::span<const std::string_view> pieces, bool end,
                                     std::span<const HeaderField> trailers) override;
  Task<Result<const ResponseHead*>> response() override;
  Task<Result<BodyPiece>> read() override;
  Task<Result<std::span<char>>> read_all(size_t limit) override;
  HeaderFields trailers() const override { return HeaderFields(trailers_in_.all()); }
  std::optional<uint64_t> content_length() const override { return content_length_; }
  bool reused() const override { return reused_; }
  bool failed_stale() const override;
  SocketAddress peer() const override { return peer_; }
  void break_off() override;
  void release() override;

 private:
  friend class Http2ClientConnection;
  friend struct penstock::io::HttpClient::Impl;

  Error gone_error(const char* doing) const override;
  ErrorCode timeout_code() const override { return ErrorCode::kGatewayTimeout; }
  bool done_early() const override { return in_ended_; }
  // False when the final head is malformed; interim ones are dropped.
  bool complete_head();
  void recycle();

  Http2ClientConnection* connection_ = nullptr;
  Http2Call* pool_next_ = nullptr;
  SocketAddress peer_;
  CancelToken token_;
  Duration write_timeout_{};
  Duration first_byte_timeout_{};
  Duration idle_timeout_{};
  TimePoint started_at_ = kNever;
  FieldStore fields_;
  ResponseHead head_;
  std::optional<uint64_t> content_length_;
  uint32_t informational_ = 0;
  bool to_head_ = false;
  bool reused_ = false;
  bool head_read_ = false;
  bool released_ = false;
  bool too_large_ = false;
};

// A client's HTTP/2 connection: in its pool while it takes calls, with its client's lost ones when it is
// over.
class Http2ClientConnection final : public Http2Core {
 public:
  Http2ClientConnection(HttpClient::Impl& client, ClientPool& pool, SocketPtr socket);
  ~Http2ClientConnection() override;

  void begin();
  // Queues the request's head. kInternal for what HTTP can't carry.
  Result<Http2Call*> open(const HttpRequest& request, const HttpCallOptions& options);
  uint32_t calls() const { return stream_count_; }
  // How many calls it should have before another connection is opened; how many the peer takes.
  uint32_t wanted_calls() const;
  void close_if_idle();
  Http2ClientConnection* next_in_pool() const { return next_; }

 private:
  friend class Http2Call;
  friend struct penstock::io::HttpClient::Impl;
  Http2Stream* on_headers_begin(const nghttp2_frame& frame) override;
  int on_header(Http2Stream& stream, const nghttp2_frame& frame, std::string_view name,
                std::string_view value) override;
  void on_headers_end(Http2Stream& stream, const nghttp2_frame& frame) override;
  void on_closed(Http2Stream& stream, uint32_t error_code, bool reset_by_peer) override;
  void on_reset_sent(int32_t, uint32_t) override {}
  void on_goaway(int32_t last_stream_id, uint32_t error_code) override;
  void on_ready(Http2Stream& stream) override;
  void on_fault(Fault) override {}
  void on_tick(TimePoint now) override;
  void on_stuck(Http2Stream&) override {}
  void on_lost() override;

  void retire(Http2Call& call);
  // Takes no more calls.
  void leave_pool();

  HttpClient::Impl& client_;
  ClientPool& pool_;
  SocketAddress peer_;
  Http2ClientConnection* next_ = nullptr;
  bool in_pool_ = false;
  bool ended_by_us_ = false;
  uint64_t opened_calls_ = 0;
  TimePoint idle_since_ = kNever;
};

}  // namespace penstock::io::detail
