#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/detail/backlog.h"
#include "io/detail/loop_impl.h"
#include "io/detail/socket.h"
#include "io/http_client.h"

namespace penstock::io {

namespace detail {

class ClientConnection;
class Http2Call;
class Http2ClientConnection;

// What an HttpCall is made of, in either protocol version; see there.
class ClientCall {
 public:
  virtual Task<Result<HttpCall::Sent>> write(std::span<const std::string_view> pieces, bool end,
                                             std::span<const HeaderField> trailers) = 0;
  virtual Task<Result<const ResponseHead*>> response() = 0;
  virtual Task<Result<BodyPiece>> read() = 0;
  virtual Task<Result<std::span<char>>> read_all(size_t limit) = 0;
  virtual HeaderFields trailers() const = 0;
  virtual std::optional<uint64_t> content_length() const = 0;
  virtual bool reused() const = 0;
  virtual bool failed_stale() const = 0;
  virtual SocketAddress peer() const = 0;
  virtual void break_off() = 0;
  // The call has ended. May destroy this.
  virtual void release() = 0;

 protected:
  ~ClientCall() = default;
};

// How soon after a request a reused connection must fail to be one that the peer had closed before.
inline constexpr Duration kStaleWindow = std::chrono::milliseconds(250);
// 1xx responses in front of a final one.
inline constexpr uint32_t kMaxInformational = 16;

// Connections of one destination on one loop. Idle ones are used newest first, so that surplus ones age out.
struct ClientPool {
  explicit ClientPool(Loop& loop) : http2_connected(loop) {}

  HttpDestination destination;
  std::string host_field;  // what goes into "host" when the caller gives none
  ClientConnection* newest_idle = nullptr;
  uint32_t idle = 0;
  uint32_t total = 0;    // idle, busy and connecting
  uint32_t waiting = 0;  // calls that wait for http2_connected
  std::vector<SocketAddress> addresses;
  TimePoint resolved_at = kNever;
  size_t next_address = 0;
  Http2ClientConnection* http2 = nullptr;  // those that take calls
  uint32_t http2_count = 0;
  bool http2_connecting = false;
  Event http2_connected;  // the attempt has ended, either way
  std::optional<Error> http2_failure;
};

}  // namespace detail

struct HttpClient::Impl {
  Impl(Loop& l, HttpClientOptions o)
      : loop(l),
        options(o),
        http2_backlog(o.http2_total_queue_bytes),
        reaper(l, [](void* self) { static_cast<Impl*>(self)->reap(); }, this) {}

  detail::ClientPool& pool_of(const HttpDestination& destination);
  detail::ClientPool* find(const HttpDestination& destination);
  void sweep();
  void drop_idle(detail::ClientPool& pool);
  Task<Result<detail::SocketPtr>> connect(detail::ClientPool& pool, const HttpCallOptions& options);
  Task<Result<HttpCall>> start_http2(detail::ClientPool& pool, const HttpRequest& request,
                                     const HttpCallOptions& options);
  // Connections that are over are destroyed at the end of the loop's turn.
  void reap();
  void end_http2();

  Loop& loop;
  HttpClientOptions options;
  std::unordered_map<uint64_t, std::vector<std::unique_ptr<detail::ClientPool>>> pools;
  size_t pool_count = 0;
  size_t sweep_at = 256;  // pools without connections are forgotten when there are this many
  Stats stats;
  detail::Backlog http2_backlog;
  detail::Http2ClientConnection* over = nullptr;  // lost, with calls that have not been released
  detail::TurnEnd reaper;
  detail::Http2Call* free_calls = nullptr;  // recycled
  uint32_t free_call_count = 0;
};

}  // namespace penstock::io
