#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/detail/http1_codec.h"
#include "io/detail/message.h"
#include "io/detail/socket.h"
#include "io/http_client.h"

namespace penstock::io {

namespace detail {

class ClientConnection;

// Connections of one destination on one loop. Idle ones are used newest first, so that surplus ones age out.
struct ClientPool {
  HttpDestination destination;
  std::string host_field;  // what goes into "host" when the caller gives none
  ClientConnection* newest_idle = nullptr;
  uint32_t idle = 0;
  uint32_t total = 0;  // idle, busy and connecting
  std::vector<SocketAddress> addresses;
  TimePoint resolved_at = kNever;
  size_t next_address = 0;
};

// A client-side HTTP/1 connection: idle in its pool, or busy with one HttpCall.
//
//   busy --response read whole, all sent, keep-alive--> idle --taken--> busy
//     \--anything else--> closed                         \--timeout/peer's end--> closed
class ClientConnection final : private MessageWriter::Interrupt {
 public:
  ClientConnection(HttpClient::Impl& client, ClientPool& pool, SocketPtr socket);
  ~ClientConnection();
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;

  // --- life ---
  void take(const HttpCallOptions& options);
  Task<Status> send_head(const HttpRequest& request);
  // The call has ended: into the pool, or away.
  void release();

  // --- the call ---
  Task<Result<HttpCall::Sent>> write(std::span<const std::string_view> pieces, bool end,
                                     std::span<const HeaderField> trailers);
  Task<Result<const ResponseHead*>> response();
  Task<Result<BodyPiece>> read();
  Task<Result<std::span<char>>> read_all(size_t limit);
  HeaderFields trailers() const { return body_.trailers(); }
  std::optional<uint64_t> content_length() const;
  bool reused() const { return uses_ > 1; }
  bool failed_stale() const { return stale_; }
  SocketAddress peer() const { return peer_; }

 private:
  friend class penstock::io::HttpClient;
  friend struct penstock::io::HttpClient::Impl;

  bool interrupted() override;
  void go_idle();
  void leave_idle();
  void on_idle_readable();
  Error failure(ptrdiff_t got, const char* doing);
  Task<Status> wait_readable(Duration timeout, const char* doing);

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

}  // namespace detail

struct HttpClient::Impl {
  Impl(Loop& l, HttpClientOptions o) : loop(l), options(o) {}

  detail::ClientPool& pool_of(const HttpDestination& destination);
  detail::ClientPool* find(const HttpDestination& destination);
  void sweep();
  void drop_idle(detail::ClientPool& pool);
  Task<Result<detail::ClientConnection*>> connect(detail::ClientPool& pool, const HttpCallOptions& options);

  Loop& loop;
  HttpClientOptions options;
  std::unordered_map<uint64_t, std::vector<std::unique_ptr<detail::ClientPool>>> pools;
  size_t pool_count = 0;
  size_t sweep_at = 256;  // pools without connections are forgotten when there are this many
  Stats stats;
};

}  // namespace penstock::io
