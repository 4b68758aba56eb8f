#pragma once

#include "io/detail/client_pool.h"
#include "io/detail/http1_codec.h"
#include "io/detail/message.h"

namespace penstock::io::detail {

// A client-side HTTP/1 connection: idle in its pool, or busy with one HttpCall.
//
//   busy --response read whole, all sent, keep-alive--> idle --taken--> busy
//     \--anything else--> closed                         \--timeout/peer's end--> closed
class ClientConnection final : public ClientCall, private MessageWriter::Owner {
 public:
  ClientConnection(HttpClient::Impl& client, ClientPool& pool, SocketPtr socket);
  ~ClientConnection();
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;

  // --- life ---
  void take(const HttpCallOptions& options);
  // Composes the head; it leaves with what is sent next.
  Status write_head(const HttpRequest& request);
  // The call has ended: into the pool, or away.
  void release() override;

  // --- the call ---
  Task<Result<HttpCall::Sent>> write(std::span<const std::string_view> pieces, bool end,
                                     std::span<const HeaderField> trailers) override;
  Task<Result<const ResponseHead*>> response() override;
  Task<Result<BodyPiece>> read() override;
  Task<Result<std::span<char>>> read_all(size_t limit) override;
  HeaderFields trailers() const override { return body_.trailers(); }
  std::optional<uint64_t> content_length() const override;
  bool reused() const override { return uses_ > 1; }
  bool failed_stale() const override { return stale_; }
  SocketAddress peer() const override { return peer_; }
  void break_off() override { failed_ = true; }
  // The two halves of write(): nothing but sending, and what its result means to the call.
  Task<Status> send(std::span<const std::string_view> pieces, bool end,
                    std::span<const HeaderField> trailers) {
    return writer_.send(*socket_, pieces, end, trailers, write_timeout_, token_, *this);
  }
  Result<HttpCall::Sent> after_send(Status status);

 private:
  friend class penstock::io::HttpClient;
  friend struct penstock::io::HttpClient::Impl;

  bool interrupted() override;
  void go_idle();
  void leave_idle();
  void on_idle_readable();
  Error failure(ptrdiff_t got, const char* doing);
  // REQUIRES: not kReady.
  Error wait_failure(Wait::Outcome outcome, const char* doing);

  HttpClient::Impl& client_;
  ClientPool& pool_;
  SocketPtr socket_;
  SocketAddress peer_;
  Timer idle_timer_;
  ClientConnection* newer_ = nullptr;
  ClientConnection* older_ = nullptr;

  Inbox inbox_;
  HeadScanner scanner_;
  FieldVector fields_;
  ResponseHead head_;
  MessageFraming framing_;
  BodyReader body_;
  MessageWriter writer_;
  Turn turn_;

  CancelToken token_;
  Duration write_timeout_{};
  Duration first_byte_timeout_{};
  Duration idle_timeout_{};
  uint64_t uses_ = 0;
  TimePoint taken_at_ = kNever;
  bool to_head_ = false;
  bool is_idle_ = false;
  bool head_read_ = false;
  bool anything_received_ = false;
  bool write_failed_ = false;
  bool answered_early_ = false;
  bool failed_ = false;
  bool stale_ = false;
};

}  // namespace penstock::io::detail
