#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/detail/http1_codec.h"
#include "io/detail/http2_core.h"
#include "io/detail/memory.h"
#include "io/http.h"

namespace penstock::io::detail {

// Received header fields: one text and views into it.
class FieldStore {
 public:
  void add(std::string_view name, std::string_view value);
  void clear();
  size_t bytes() const { return bytes_; }  // as SETTINGS_MAX_HEADER_LIST_SIZE counts them
  size_t size() const { return fields_.size(); }
  std::span<const HeaderField> all() const { return fields_; }
  // One field for several of the name, as HTTP/1 wants it for cookies (RFC 9113, 8.2.3).
  void join_cookies();

 private:
  std::string text_;
  FieldVector fields_;
  size_t bytes_ = 0;
};

// Header fields to send, as nghttp2 takes them without copying: names in lower case, values without blanks
// around them, fields that describe an HTTP/1 connection left out.
class FieldBlock {
 public:
  // Room for `fields` and `more` pseudo or other fields of together `more_bytes`; then add() in order.
  void begin(std::span<const HeaderField> fields, size_t more, size_t more_bytes);
  // False for a name or value that HTTP can't carry.
  bool add_all(std::span<const HeaderField> fields, bool keep_te);
  void add(std::string_view name, std::string_view value);
  void clear();
  const nghttp2_nv* data() const { return list_.data(); }
  size_t size() const { return list_.size(); }
  bool has_date() const { return has_date_; }
  std::string_view host() const { return host_; }

 private:
  std::string text_;
  std::vector<nghttp2_nv> list_;
  std::string_view host_;
  bool has_date_ = false;
};

// The bodies of one stream, either end's. Received bytes are copied once, into memory of the stream; its flow
// control window is given back as they are read. Bytes to send are copied into a queue of up to
// Limits::stream_queue_bytes, beyond which the writer waits; large ones are first sent from where they lie.
// Lives until the session has closed the stream and its user has ended.
class Http2Stream {
 public:
  explicit Http2Stream(Loop& loop) : loop_(loop) {}
  Http2Stream(const Http2Stream&) = delete;
  Http2Stream& operator=(const Http2Stream&) = delete;

  int32_t id() const { return id_; }

 protected:
  friend class Http2Core;
  ~Http2Stream() = default;

  // --- life ---
  void attach(Http2Core& core, int32_t id);
  // Out of the core's lists; forgets everything. REQUIRES: nobody waits, or has still to be resumed.
  void detach();
  // Only when the core doesn't hold on to it for the moment.
  bool detachable() const { return !in_ready_ && !in_drained_ && (core_ == nullptr || !core_->in_session()); }

  // --- receiving ---
  // Error of a stream that was reset or lost; of waits that ran out.
  virtual Error gone_error(const char* doing) const = 0;
  virtual ErrorCode timeout_code() const = 0;
  // The peer has said all it will: a writer that waits gives up.
  virtual bool done_early() const { return false; }
  // What read_piece() would give without waiting; nothing: it has to wait.
  std::optional<Result<BodyPiece>> piece_there(uint64_t max_bytes);
  // As HttpExchange says. `max_bytes` bounds the whole body.
  Task<Result<BodyPiece>> read_piece(Duration timeout, CancelToken token, uint64_t max_bytes);
  Task<Result<std::span<char>>> read_whole(size_t limit, uint64_t max_bytes, std::optional<uint64_t> declared,
                                           Duration timeout, CancelToken token,
                                           Duration total_timeout = Duration::zero(),
                                           BodyBudget* budget = nullptr);
  // Nobody reads any more: what has come and what comes is dropped, its window given back.
  void drop_received();
  bool anything_unread() const { return in_given_ != in_end_ || more_end_ != 0; }
  // Until wake_reader(), the deadline, or the token.
  Task<Wait::Outcome> wait_for_news(Duration timeout, CancelToken token);
  // Whoever waits for bytes or the head is resumed, inside this call.
  void wake_reader();

  // --- sending ---
  // Checks against the declared length. Once per piece, before queueing.
  Status account(std::span<const std::string_view> pieces, bool end);
  Status set_trailers(std::span<const HeaderField> trailers);
  // queue() would take them.
  bool takes(std::span<const std::string_view> pieces) const;
  // Everything copied: nothing to wait for.
  bool queue(std::span<const std::string_view> pieces, bool end);
  // For what queue() refused.
  Task<Status> send_waiting(std::span<const std::string_view> pieces, bool end, Duration timeout,
                            CancelToken token);
  void wake_writer();
  nghttp2_data_provider provider();
  uint64_t queued() const { return (out_end_ - out_begin_) + outside_bytes_; }
  // Nothing more will be sent.
  void drop_queue();
  void reset(uint32_t error_code);
  // Bytes or the end are queued, and nothing went for `limit`. Asked at every tick.
  bool stuck(TimePoint now, Duration limit);

  // co_await: until wake_reader() or wake_writer(), whose door it is at, a deadline, or the token.
  class Parked {
   public:
    Parked(Http2Stream& stream, Parked*& door, Duration timeout, const CancelToken& token)
        : wait_(stream.loop_), stream_(stream), door_(door), timeout_(timeout), token_(token) {}
    Parked(const Parked&) = delete;
    Parked& operator=(const Parked&) = delete;
    ~Parked() { leave(); }
    bool await_ready() const { return token_.cancelled(); }
    void await_suspend(std::coroutine_handle<> handle) {
      door_ = this;
      counted_ = true;
      ++stream_.parked_;
      wait_.on_abandon([](void* self) { static_cast<Parked*>(self)->door_ = nullptr; }, this);
      wait_.start(handle, timeout_, token_);
    }
    Wait::Outcome await_resume() {
      leave();
      return wait_.outcome() == Wait::Outcome::kPending ? Wait::Outcome::kCancelled : wait_.outcome();
    }

   private:
    friend class Http2Stream;
    void leave() {
      if (std::exchange(counted_, false)) --stream_.parked_;
    }

    Wait wait_;
    Http2Stream& stream_;
    bool counted_ = false;
    Parked*& door_;
    Duration timeout_;
    const CancelToken& token_;
  };
  // read_piece()'s waiting, after piece_there() gave nothing.
  Parked wait_for_piece(Duration timeout, const CancelToken& token) {
    in_.reset();
    return {*this, reader_, timeout, token};
  }
  // What read_piece() gives when it has waited in vain.
  Error no_piece(Wait::Outcome outcome) const;
  Parked* reader_ = nullptr;
  Parked* writer_ = nullptr;
  uint32_t parked_ = 0;  // those that wait, or have been woken and not resumed yet

  Loop& loop_;
  Http2Core* core_ = nullptr;
  int32_t id_ = 0;

  // receiving
  bool in_ended_ = false;  // END_STREAM has come
  bool closed_ = false;    // in the session
  bool broken_ = false;    // closed before both sides had ended
  bool reset_by_us_ = false;
  uint32_t close_code_ = 0;
  bool unprocessed_ = false;  // the peer said that it has not looked at the stream
  bool gathering_ = false;    // read_whole(): the window is given back as bytes come
  bool no_room_ = false;      // read_whole()'s budget refused: what comes is dropped
  bool dropping_ = false;     // drop_received()
  BodyBudget* budget_ = nullptr;
  uint64_t in_total_ = 0;
  FieldStore trailers_in_;

  // sending
  enum class Out : uint8_t { kNone, kLength, kUnknown };
  Out out_kind_ = Out::kNone;
  uint64_t out_left_ = 0;
  bool out_drop_ = false;      // an answer to HEAD: counted, not sent
  bool out_started_ = false;   // the head was given to the session
  bool out_finished_ = false;  // the end is queued
  bool out_end_sent_ = false;  // and has been given to the socket
  bool out_headers_sent_ = false;
  FieldBlock head_out_;
  FieldBlock trailers_out_;

 private:
  static ssize_t provide(nghttp2_session* session, int32_t stream_id, uint8_t* buffer, size_t length,
                         uint32_t* flags, nghttp2_data_source* source, void* user);
  void receive(const uint8_t* bytes, size_t size);
  void give_back();
  bool has_room_for(size_t total) const;
  bool room_for(size_t size);
  void merge();
  // Moves `bytes` of the queue into the core's gathering. Small ones are copied.
  void take(size_t bytes);
  void copy_outside(uint64_t bytes);
  void grow_out(size_t room);
  void announce();
  // After a flush: memory of what was sent goes back.
  void release_sent();

  Http2Stream* previous_ = nullptr;
  Http2Stream* next_ = nullptr;
  Http2Stream* ready_next_ = nullptr;
  Http2Stream* drained_next_ = nullptr;
  bool in_ready_ = false;
  bool in_drained_ = false;

  // in_[in_begin_, in_given_) was given out by the last read, in_[in_given_, in_end_) not yet; what doesn't
  // fit while something is given out goes to more_.
  Buffer in_;
  size_t in_begin_ = 0;
  size_t in_given_ = 0;
  size_t in_end_ = 0;
  Buffer more_;
  size_t more_end_ = 0;
  size_t unconsumed_ = 0;  // of the windows
  size_t gather_limit_ = 0;

  Buffer out_;
  size_t out_begin_ = 0;
  size_t out_end_ = 0;
  std::span<const std::string_view> outside_;  // the waiting writer's, after what out_ holds
  size_t outside_offset_ = 0;
  uint64_t outside_bytes_ = 0;
  bool out_deferred_ = false;  // the session has to be told when there is more
  bool has_trailers_ = false;
  uint64_t sent_ = 0;
  uint64_t sent_at_check_ = 0;
  TimePoint stuck_since_ = kNever;
};

}  // namespace penstock::io::detail
