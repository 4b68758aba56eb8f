#pragma once

#include <nghttp2/nghttp2.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/detail/backlog.h"
#include "io/detail/loop_impl.h"
#include "io/detail/memory.h"
#include "io/detail/socket.h"
#include "io/http.h"
#include "io/http_server.h"

namespace penstock::io::detail {

class Http2Stream;

// What both ends of an HTTP/2 connection share: the nghttp2 session, its socket, and when bytes move.
//
//   Reading: the socket's watcher reads into memory of the thread and feeds the session; its callbacks only
//   note what came (header fields, body bytes) in the streams and put those on the ready list. After that,
//   outside the session, every ready stream is told once: handlers run there, so none runs inside nghttp2.
//   Writing: handlers only queue. A session with something to send is flushed once at the end of the loop's
//   turn (large bodies: at once), all streams' frames gathered into one system call; body bytes of some size
//   go from where they lie. What the socket doesn't take is copied into pending_ and sent when there is room.
//
//   open --drain(): GOAWAY--> draining --last stream ended--> ending --GOAWAY sent, peer read it--> closed
//      \--protocol error, abuse: GOAWAY with a reason--------^                                       ^
//       \--socket lost, no progress------------------------------------------------------------------|
//
// Owned by its connection; lives on the loop's thread.
class Http2Core {
 public:
  struct Limits {
    uint32_t max_concurrent_streams = 0;  // of the peer's; 0: not announced
    uint32_t stream_window = 256 * 1024;
    uint32_t connection_window = 1024 * 1024;
    uint32_t max_frame_bytes = 16384;
    uint32_t max_header_bytes = 64 * 1024;  // announced, and enforced by whoever stores the fields
    size_t stream_queue_bytes = 256 * 1024;
    size_t connection_queue_bytes = 16UL << 20U;
    Backlog* backlog = nullptr;  // what the connection's queues are part of; may be null
    uint32_t control_burst = 10'000;
    uint32_t control_per_second = 1'000;
    Duration write_timeout{};
    Duration header_timeout{};
    Duration linger_timeout{};
    Duration ping_interval{};
    Duration ping_timeout{};
    // Not zero: the peer may hang up on who asks often. A gRPC server does, with "too_many_pings", on the
    // fourth PING within five minutes between which it sent neither headers nor data (grpc/doc/keepalive.md:
    // two strikes at its defaults). PINGs go only while there are streams, and while nothing comes but their
    // answers the second waits for twice the silence, the third for four times, all others for this.
    Duration ping_rest{};
    Duration tick = std::chrono::seconds(1);
  };
  // Why a connection ended before its time.
  enum class Fault : uint8_t {
    kProtocol,      // nghttp2 found a violation
    kControlFlood,  // PING, SETTINGS, empty and other frames without use
    kContinuationFlood,
    kResetFlood,
    kHeaderTimeout,
    kWriteTimeout,  // the socket took nothing
    kPingTimeout,
  };

  struct Kind {
    bool server = false;
    bool remember =
        false;  // ended streams, as many as may be open: late frames on them are told from wrong ones
    bool any_authority = false;  // Http2ServerOptions::any_authority
  };
  Http2Core(Loop& loop, SocketPtr socket, Kind kind);
  Http2Core(const Http2Core&) = delete;
  Http2Core& operator=(const Http2Core&) = delete;
  virtual ~Http2Core();

  Loop& loop() { return loop_; }
  nghttp2_session* session() const { return session_; }
  const Limits& limits() const { return limits_; }
  bool lost() const { return lost_; }
  const std::string& lost_why() const { return lost_why_; }
  TimePoint last_received() const { return last_received_; }
  // The socket is closed.
  bool closed() const { return !socket_->is_open(); }
  bool is_tls() const { return socket_->is_tls(); }

  // Something was submitted to the session.
  void mark_dirty() {
    if (!lost_) end_of_turn_.request();
  }
  // Sends what may be sent, now where that is possible (not inside the session's callbacks), else at the end
  // of the turn.
  void flush_now();
  void push_ready(Http2Stream& stream);
  // The stream has sent something, or could.
  void push_drained(Http2Stream& stream);
  void consume(int32_t stream_id, size_t bytes, bool stream_open);
  void resume(int32_t stream_id);

  // Bytes that streams copied into their outgoing queues.
  bool queue_has_room(uint64_t more) const {
    return queued_bytes_ + more <= limits_.connection_queue_bytes &&
           (limits_.backlog == nullptr || limits_.backlog->has_room(more));
  }
  void add_queued(uint64_t more) {
    queued_bytes_ += more;
    if (limits_.backlog != nullptr) limits_.backlog->add(more);
  }
  void remove_queued(uint64_t less) {
    queued_bytes_ -= less;
    if (limits_.backlog != nullptr) limits_.backlog->remove(less);
  }
  bool in_session() const { return inside_ || flushing_; }

 protected:
  // Starts the session: settings, windows, timer, reading. `received` has come already.
  void begin(const Limits& limits, std::string_view received);
  // GOAWAY in two steps, so that no request on its way is lost; then the connection ends with its streams.
  void drain();
  bool draining() const { return draining_; }
  // GOAWAY with a reason, and the end once it is sent.
  void give_up(Fault fault, uint32_t error_code);
  // Closes the socket; every stream learns it.
  void lose(std::string why);
  // The open stream of that id, or nullptr.
  Http2Stream* find(int32_t stream_id);
  // Out of the lists of what is to be told: the core itself goes.
  static void forget(Http2Stream& stream);
  SocketAddress peer_address() const { return socket_->peer(); }

  // --- hooks; none may destroy the core but on_gone() ---
  // A header block begins: the stream it belongs to, or nullptr to leave its fields unread.
  virtual Http2Stream* on_headers_begin(const nghttp2_frame& frame) = 0;
  // 0, or NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE to reset the stream.
  virtual int on_header(Http2Stream& stream, const nghttp2_frame& frame, std::string_view name,
                        std::string_view value) = 0;
  virtual void on_headers_end(Http2Stream& stream, const nghttp2_frame& frame) = 0;
  // The stream is closed in the session, cleanly or not; already noted in it.
  virtual void on_closed(Http2Stream& stream, uint32_t error_code, bool reset_by_peer) = 0;
  // The session reset a stream by itself: the peer broke a rule on it.
  virtual void on_reset_sent(int32_t stream_id, uint32_t error_code) = 0;
  virtual void on_goaway(int32_t last_stream_id, uint32_t error_code) = 0;
  virtual void on_settings() {}
  // Outside the session, once after what came or went has been noted.
  virtual void on_ready(Http2Stream& stream) = 0;
  virtual void on_fault(Fault fault) = 0;
  // Every Limits::tick.
  virtual void on_tick(TimePoint now) = 0;
  // A stream whose window stayed shut for Limits::write_timeout; it is reset after this.
  virtual void on_stuck(Http2Stream& stream) = 0;
  // The connection is lost; its streams have been told. May run inside any of the above.
  virtual void on_lost() = 0;

  TimePoint last_received_ = kNever;
  Http2Stream* streams_ = nullptr;  // open in the session, or still in use by a handler or call
  uint32_t stream_count_ = 0;

 private:
  friend class Http2Stream;
  struct Callbacks;
  static constexpr size_t kMaxPieces = 192;
  static constexpr size_t kRoundBytes = 512 * 1024;  // gathered for one system call

  void on_readable();
  void watch();
  void receive(std::string_view bytes);
  void run_ready();
  void run_drained();
  void turn_end();
  void flush();
  bool flush_pending();
  void wait_for_room();
  void keep_rest(size_t sent);
  void forget_pending();
  static void gather_bytes(const char* bytes, size_t size);
  void check_end();
  void end_streams(std::string why);
  void close_stream(Http2Stream& stream, uint32_t error_code, bool by_peer);
  void last_goaway();
  void ping_answered();
  void act_on_fault();
  void tick();
  // False when the peer has sent too many frames that move nothing.
  bool spend(uint32_t frame_type, uint32_t bytes);
  SocketPtr socket_;
  Loop& loop_;
  nghttp2_session* session_ = nullptr;
  Limits limits_;
  TurnEnd end_of_turn_;
  Timer timer_;

  Buffer pending_;
  size_t pending_begin_ = 0;
  size_t pending_end_ = 0;
  uint64_t queued_bytes_ = 0;  // of all streams
  TimePoint blocked_since_ = kNever;

  Http2Stream* ready_first_ = nullptr;
  Http2Stream* ready_last_ = nullptr;
  Http2Stream* drained_ = nullptr;
  Http2Stream* recent_ = nullptr;  // of the last body bytes
  Http2Stream* reading_headers_ = nullptr;

  int64_t control_left_ = 0;
  TimePoint headers_since_ = kNever;
  TimePoint draining_since_ = kNever;
  TimePoint lingering_since_ = kNever;
  TimePoint ping_sent_ = kNever;
  Duration ping_after_{};  // of silence
  TimePoint ticked_at_ = kNever;
  int32_t newest_ = -1;       // stream that the peer has opened
  int32_t skipped_from_ = 0;  // streams that it left out before that one: closed for good
  int32_t skipped_to_ = -1;
  int32_t peer_reset_ = 0;  // stream of the RST_STREAM being handled
  bool is_server_;
  bool checks_fields_;     // which nghttp2 else does
  bool inside_ = false;    // the session is being fed
  bool flushing_ = false;  // the session is being asked for frames
  bool draining_ = false;
  bool last_goaway_ = false;  // the second step of drain()
  bool failed_ = false;       // a GOAWAY with an error is queued or sent
  bool fault_counted_ = false;
  std::optional<uint32_t> fault_;   // error code to give up with
  bool lost_ = false;               // the session is over; the socket may linger
  bool paused_ = false;             // not reading: the peer doesn't read either
  bool header_block_open_ = false;  // a header block has begun and not ended
  std::string lost_why_;
};

}  // namespace penstock::io::detail
