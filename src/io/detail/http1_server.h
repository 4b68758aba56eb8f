#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io/detail/http1_codec.h"
#include "io/detail/message.h"
#include "io/detail/socket.h"
#include "io/http_server.h"

namespace penstock::io {

namespace detail {
class Http1Connection;

// A server's share of one loop. Touched on that loop only, except the counters.
struct ServerLoop {
  explicit ServerLoop(Loop& l) : loop(l) {}
  Loop& loop;
  bool ready = false;  // the shutdown hook is in place
  CancelSource stop_accepting;
  CancelSource stop_idling;  // fires when keep-alive connections should end
  CancelCallback on_shutdown;
  Http1Connection* first = nullptr;
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> bad_requests{0};
};
}  // namespace detail

struct HttpServer::Impl {
  struct Listening {
    std::string name;
    std::shared_ptr<TlsServerContext> tls;
  };

  HttpServerOptions options;
  std::shared_ptr<HttpHandler> handler;
  std::vector<std::unique_ptr<detail::ServerLoop>> loops;
  std::atomic<bool> draining{false};
  std::atomic<uint64_t> accepted{0};
  std::atomic<uint64_t> refused{0};
  std::atomic<uint32_t> open{0};       // connections
  std::atomic<uint32_t> accepting{0};  // accept tasks

  std::mutex mutex;
  std::condition_variable changed;  // open or accepting went down
  bool stopped = false;

  void note_change() {
    const std::lock_guard<std::mutex> lock(mutex);
    changed.notify_all();
  }
  detail::ServerLoop& least_loaded();
  void start_draining(detail::ServerLoop& loop);
  void force_close(detail::ServerLoop& loop);
};

namespace detail {

// A server-side HTTP/1 connection, and the exchange that is running on it.
//
//   idle --bytes--> head --complete--> exchange --done--> idle | close
//     \--end/timeout/drain--> close     \--bad--> refuse --> linger --> close
//
// While the handler waits, the socket's watcher reads what comes (a pipelined request) into the inbox, so
// that the client's end or reset is noticed at once and fires the cancel token.
class Http1Connection final : public HttpExchange {
 public:
  Http1Connection(std::shared_ptr<HttpServer::Impl> server, ServerLoop& home, SocketPtr socket,
                  std::shared_ptr<HttpServer::Impl::Listening> listening, const SocketAddress& peer);
  ~Http1Connection() override;
  Http1Connection(const Http1Connection&) = delete;
  Http1Connection& operator=(const Http1Connection&) = delete;

  Task<void> serve();
  // Cancels the running exchange and closes.
  void force_close();

  Loop& loop() override { return home_.loop; }
  const RequestHead& request() const override { return head_; }
  const ConnectionInfo& connection() const override { return info_; }
  CancelToken cancel_token() override { return cancel_.token(); }
  std::optional<uint64_t> content_length() const override;
  Task<Result<BodyPiece>> read() override;
  Task<Result<std::span<char>>> read_all(size_t limit) override;
  HeaderFields request_trailers() const override { return body_.trailers(); }
  Task<Status> write_informational(int status, std::span<const HeaderField> fields) override;
  Status write_head(int status, std::span<const HeaderField> fields, BodyFraming framing) override;
  bool head_written() const override { return writer_.started(); }
  Task<Status> flush() override;
  using HttpExchange::write;
  Task<Status> write(std::span<const std::string_view> pieces) override;
  Task<Status> finish(std::span<const std::string_view> pieces,
                      std::span<const HeaderField> trailers) override;
  bool finished() const override { return writer_.ended(); }
  void abort() override { aborted_ = true; }
  void close_after() override { close_after_ = true; }

 private:
  friend struct penstock::io::HttpServer::Impl;
  struct Handling;
  enum class Head : uint8_t { kComplete, kClose, kRefuse };

  Task<Head> read_head();
  Head parse_head();
  void begin_exchange();
  Task<bool> end_exchange(bool threw);
  // A response of the codec's own.
  Task<void> refuse(int status);
  // Reads on until the client has seen our answer, so that its upload doesn't turn it into a reset.
  Task<void> linger();
  Task<Status> receive_body(const char* what);
  Task<Status> send_continue();
  Error body_error(BodyReader::Step step, size_t limit);
  void start_watch();
  void on_watch();
  Task<Status> send(std::span<const std::string_view> pieces, bool end,
                    std::span<const HeaderField> trailers);

  std::shared_ptr<HttpServer::Impl> server_;
  std::shared_ptr<HttpServer::Impl::Listening> listening_;
  ServerLoop& home_;
  SocketPtr socket_;
  ConnectionInfo info_;
  Http1Connection* previous_ = nullptr;
  Http1Connection* next_ = nullptr;

  Inbox inbox_;
  HeadScanner scanner_;
  FieldVector fields_;
  RequestHead head_;
  MessageFraming framing_;
  BodyReader body_;
  MessageWriter writer_;
  CancelSource cancel_;
  CancelToken never_;
  uint32_t requests_ = 0;
  int refuse_status_ = 0;
  bool in_exchange_ = false;
  bool watching_ = false;
  bool peer_gone_ = false;
  bool body_failed_ = false;
  bool continue_due_ = false;  // the client waits for 100 before it sends the body
  bool aborted_ = false;
  bool close_after_ = false;
  bool keep_alive_ = true;
};

}  // namespace detail
}  // namespace penstock::io
