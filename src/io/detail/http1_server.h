#pragma once

#include <memory>

#include "io/detail/http1_codec.h"
#include "io/detail/message.h"
#include "io/detail/server_connection.h"
#include "io/detail/socket.h"
#include "io/http_server.h"

namespace penstock::io::detail {

// A server-side HTTP/1 connection, and the exchange that is running on it.
//
//   idle --bytes--> head --complete--> exchange --done--> idle | close
//     \--end/timeout/drain--> close     \--bad--> refuse --> linger --> close
//
// While the handler waits, the socket's watcher reads what comes (a pipelined request) into the inbox, so
// that the client's end or reset is noticed at once and fires the cancel token.
class Http1Connection final : public ServerConnection, public HttpExchange, private MessageWriter::Owner {
 public:
  Http1Connection(std::shared_ptr<HttpServer::Impl> server, ServerLoop& home, SocketPtr socket,
                  std::shared_ptr<HttpServer::Impl::Listening> listening, const SocketAddress& peer);

  // Ends with the connection, or when the client turns out to speak HTTP/2.
  Task<void> serve();
  bool wants_http2() const { return wants_http2_; }
  std::string_view received() const { return {inbox_.data() + inbox_.begin, inbox_.pending()}; }
  void force_close() override;

  Loop& loop() override { return home_.loop; }
  const RequestHead& request() const override { return head_; }
  const ConnectionInfo& connection() const override { return info_; }
  CancelToken cancel_token() override { return cancel_.token(); }
  std::optional<uint64_t> content_length() const override;
  Task<Result<BodyPiece>> read() override;
  Task<Result<std::span<char>>> read_all(size_t limit) override { return read_whole(limit, nullptr); }
  Task<Result<std::span<char>>> read_all_within(size_t limit, BodyBudget& budget) override {
    return read_whole(limit, &budget);
  }
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
  struct Handling;
  enum class Head : uint8_t { kComplete, kClose, kRefuse, kHttp2 };

  Task<Head> read_head();
  Head parse_head();
  bool begins_http2() const;
  bool begins_tls() const;
  void report_bad_start(std::string_view reason) const;
  void begin_exchange();
  Task<bool> end_exchange(bool threw);
  // A response of the codec's own.
  Task<void> refuse(int status);
  // Reads on until the client has seen our answer, so that its upload doesn't turn it into a reset.
  Task<void> linger();
  Task<Result<std::span<char>>> read_whole(size_t limit, BodyBudget* budget);
  Task<Status> receive_body(const char* what);
  Task<Status> send_continue();
  Error body_error(BodyReader::Step step, size_t limit);
  void start_watch();
  void on_watch();
  Task<Status> send(std::span<const std::string_view> pieces, bool end,
                    std::span<const HeaderField> trailers);
  void send_failed(Error& error) override;

  Inbox inbox_;
  HeadScanner scanner_;
  FieldVector fields_;
  RequestHead head_;
  MessageFraming framing_;
  BodyReader body_;
  MessageWriter writer_;
  Turn turn_;
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
  bool wants_http2_ = false;
};

}  // namespace penstock::io::detail
