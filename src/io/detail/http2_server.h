#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "io/detail/http2_core.h"
#include "io/detail/http2_stream.h"
#include "io/detail/server_connection.h"
#include "io/http_server.h"

namespace penstock::io::detail {

class Http2ServerConnection;

// One stream of a server's HTTP/2 connection. Recycled by its loop.
//
//   head --complete--> ready --> running --handler ends--> done --closed in the session--> recycled
//     \--too large, CONNECT: answered by us----------------^
class Http2Exchange final : public HttpExchange, public Http2Stream {
 public:
  explicit Http2Exchange(Loop& loop) : Http2Stream(loop) {}

  Loop& loop() override { return loop_; }
  const RequestHead& request() const override { return head_; }
  const ConnectionInfo& connection() const override;
  CancelToken cancel_token() override { return cancel_.token(); }
  bool connection_lost() const override;
  std::optional<uint64_t> content_length() const override { return content_length_; }
  Task<Result<BodyPiece>> read() override;
  // What read() would give without waiting; nothing: it has to wait.
  std::optional<Result<BodyPiece>> read_there();
  // co_await: until read_there() may give something; read()'s error where it would wait no longer.
  auto read_later() { return wait_for_piece(read_timeout(), never()); }
  Error read_error(Wait::Outcome outcome) const { return no_piece(outcome); }
  // What write() or finish() would give without waiting; nothing is done where they would have to wait.
  std::optional<Status> send_there(std::span<const std::string_view> pieces, bool end,
                                   std::span<const HeaderField> trailers);
  // The client, or we, have ended the stream: nothing that is written would leave.
  bool gone() const { return closed_ || reset_by_us_; }
  Task<Result<std::span<char>>> read_all(size_t limit) override;
  Task<Result<std::span<char>>> read_all_within(size_t limit, BodyBudget& budget) override;
  HeaderFields request_trailers() const override { return HeaderFields(trailers_in_.all()); }
  Task<Status> write_informational(int status, std::span<const HeaderField> fields) override;
  Status write_head(int status, std::span<const HeaderField> fields, BodyFraming framing) override;
  bool head_written() const override { return head_written_; }
  Task<Status> flush() override { return send({}, false, {}); }
  using HttpExchange::write;
  Task<Status> write(std::span<const std::string_view> pieces) override { return send(pieces, false, {}); }
  Task<Status> finish(std::span<const std::string_view> pieces,
                      std::span<const HeaderField> trailers) override {
    return send(pieces, true, trailers);
  }
  bool finished() const override { return out_finished_; }
  void abort() override;
  void close_after() override { close_after_ = true; }

 private:
  friend class Http2ServerConnection;
  friend struct penstock::io::detail::ServerLoop;
  enum class State : uint8_t { kHead, kReady, kRunning, kDone };

  Error gone_error(const char* doing) const override;
  ErrorCode timeout_code() const override { return ErrorCode::kRequestTimeout; }
  const HttpServerOptions& options() const;
  Duration read_timeout() const;
  static const CancelToken& never();
  // 0, or the status of our refusal.
  int complete_head();
  void send_continue();
  Task<Status> send(std::span<const std::string_view> pieces, bool end,
                    std::span<const HeaderField> trailers);
  // All of send() but the waiting; nothing: `pieces` are for send_waiting().
  std::optional<Status> send_now(std::span<const std::string_view>& pieces, bool end,
                                 std::span<const HeaderField> trailers);
  // A whole short response, queued.
  void answer(int status);
  void recycle();

  Http2ServerConnection* connection_ = nullptr;
  Http2Exchange* pool_next_ = nullptr;
  State state_ = State::kHead;
  FieldStore fields_;
  size_t field_bytes_ = 0;
  RequestHead head_;
  std::optional<uint64_t> content_length_;
  CancelSource cancel_;
  bool too_large_ = false;
  bool bodiless_ = false;  // the head was the end
  bool continue_due_ = false;
  bool head_written_ = false;
  bool close_after_ = false;
};

class Http2ServerConnection final : public ServerConnection, public Http2Core {
 public:
  explicit Http2ServerConnection(ServerConnection& from);
  ~Http2ServerConnection() override;

  // Ends when the connection has ended and no handler runs any more.
  Task<void> serve(std::string_view received);
  void force_close() override;

 private:
  friend class Http2Exchange;
  Http2Stream* on_headers_begin(const nghttp2_frame& frame) override;
  int on_header(Http2Stream& stream, const nghttp2_frame& frame, std::string_view name,
                std::string_view value) override;
  void on_headers_end(Http2Stream& stream, const nghttp2_frame& frame) override;
  void on_closed(Http2Stream& stream, uint32_t error_code, bool reset_by_peer) override;
  void on_reset_sent(int32_t stream_id, uint32_t error_code) override;
  void on_goaway(int32_t, uint32_t) override {}
  void on_ready(Http2Stream& stream) override;
  void on_fault(Fault fault) override;
  void on_tick(TimePoint now) override;
  void on_stuck(Http2Stream& stream) override;
  void on_lost() override;

  void start(Http2Exchange& exchange);
  Task<void> run(Http2Exchange& exchange);
  void ended(Http2Exchange& exchange, bool threw);
  // What is left of a stream whose handler has ended.
  void settle(Http2Exchange& exchange);
  void release(Http2Exchange& exchange);
  void count_reset();
  void rebalance(TimePoint now);

  CancelCallback on_stop_;
  Event gone_;
  int64_t resets_left_;
  double reset_credit_ = 0;
  uint64_t requests_ = 0;
  TimePoint idle_since_ = kNever;
  TimePoint opened_at_;
  TimePoint reset_refilled_at_;
};

}  // namespace penstock::io::detail
