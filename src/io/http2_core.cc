#include "io/detail/http2_core.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include "io/detail/http2_stream.h"

namespace penstock::io::detail {

namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kReadBudget = 4 * kReadBytes;  // of one connection in one turn of the loop
constexpr size_t kCopyBelow = 2048;             // body bytes in pieces below this are gathered by copying
constexpr size_t kFrameBytes = 16384;           // nghttp2's largest DATA frame
constexpr size_t kFrameHeader = 9;
// Of one DATA frame: at most so many pieces are referred to, and copied bytes before, between and after those
// are one piece each.
constexpr size_t kPiecesOfFrame = 2 * (kFrameBytes / kCopyBelow) + 1;
constexpr size_t kQueueWhilePaused = 1000;  // frames queued for a peer that takes none: we stop reading
constexpr Duration kGoawayRoundTrip = std::chrono::seconds(1);
constexpr Duration kGracefulLinger = std::chrono::seconds(1);
constexpr int64_t kControlPerUsefulFrame = 16;

char* read_memory() {
  thread_local Buffer buffer(kReadBytes);
  return buffer.data();
}

// nghttp2's small allocations come from the frame lists; the size in front tells which.
struct Allocation {
  size_t bytes;
  size_t unused;  // keeps what follows aligned
};
void* session_malloc(size_t bytes, void*) {
  auto* block = static_cast<Allocation*>(allocate_frame(bytes + sizeof(Allocation)));
  block->bytes = bytes;
  return block + 1;
}
void session_free(void* memory, void*) {
  if (memory == nullptr) return;
  Allocation* block = static_cast<Allocation*>(memory) - 1;
  free_frame(block, block->bytes + sizeof(Allocation));
}
void* session_calloc(size_t count, size_t bytes, void*) {
  if (bytes != 0 && count > SIZE_MAX / bytes) return nullptr;
  void* memory = session_malloc(count * bytes, nullptr);
  std::memset(memory, 0, count * bytes);
  return memory;
}
void* session_realloc(void* memory, size_t bytes, void*) {
  if (memory == nullptr) return session_malloc(bytes, nullptr);
  const size_t before = (static_cast<Allocation*>(memory) - 1)->bytes;
  void* larger = session_malloc(bytes, nullptr);
  std::memcpy(larger, memory, std::min(before, bytes));
  session_free(memory, nullptr);
  return larger;
}

// Frames gathered for one system call. Used inside flush() only, which runs nobody else's code.
struct Gather {
  char bytes[64 * 1024];
  iovec pieces[192];
  size_t count = 0;
  size_t used = 0;
  size_t total = 0;
  bool full = false;

  void reset() {
    count = used = total = 0;
    full = false;
  }
  void copy(const void* from, size_t size) {
    if (size == 0) return;
    assert(size <= sizeof(bytes) - used);
    char* to = bytes + used;
    std::memcpy(to, from, size);
    used += size;
    total += size;
    if (count != 0) {
      iovec& last = pieces[count - 1];
      if (static_cast<char*>(last.iov_base) + last.iov_len == to) {
        last.iov_len += size;
        return;
      }
    }
    assert(count < std::size(pieces));
    pieces[count++] = {to, size};
  }
  void refer(const char* from, size_t size) {
    assert(count < std::size(pieces));
    pieces[count++] = {const_cast<char*>(from), size};
    total += size;
  }
};
Gather& gathering() {
  thread_local Buffer memory(sizeof(Gather));
  thread_local Gather* gather = new (memory.data()) Gather();
  return *gather;
}

}  // namespace

struct Http2Core::Callbacks {
  static Http2Core& core(void* user) { return *static_cast<Http2Core*>(user); }

  static int verdict(const Http2Core& self) {
    return self.fault_ ? static_cast<int>(NGHTTP2_ERR_CALLBACK_FAILURE) : 0;
  }

  static int begin_frame(nghttp2_session*, const nghttp2_frame_hd* hd, void* user) {
    Http2Core& self = core(user);
    if (hd->type != NGHTTP2_CONTINUATION) self.header_block_open_ = false;
    if (!self.spend(hd->type, static_cast<uint32_t>(hd->length)))
      self.give_up(Fault::kControlFlood, NGHTTP2_ENHANCE_YOUR_CALM);
    if (hd->type == NGHTTP2_HEADERS && self.is_server_ && hd->stream_id >= self.skipped_from_ &&
        hd->stream_id <= self.skipped_to_)
      self.give_up(Fault::kProtocol, NGHTTP2_PROTOCOL_ERROR);
    return verdict(self);
  }

  static int begin_headers(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    Http2Core& self = core(user);
    self.header_block_open_ = true;
    if (frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
      if (frame->hd.stream_id > self.newest_ + 2) {
        self.skipped_from_ = self.newest_ + 1;
        self.skipped_to_ = frame->hd.stream_id - 1;
      }
      self.newest_ = frame->hd.stream_id;
    }
    self.reading_headers_ = self.on_headers_begin(*frame);
    return 0;
  }

  static int header(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name, size_t name_size,
                    const uint8_t* value, size_t value_size, uint8_t, void* user) {
    Http2Core& self = core(user);
    if (self.reading_headers_ == nullptr) return 0;
    // Where nghttp2 does not.
    if (self.checks_fields_ && !is_field(name, name_size, value, value_size)) {
      self.header_block_open_ = false;
      return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    const int result =
        self.on_header(*self.reading_headers_, *frame, {reinterpret_cast<const char*>(name), name_size},
                       {reinterpret_cast<const char*>(value), value_size});
    if (result != 0) self.header_block_open_ = false;
    return result;
  }

  // RFC 9113, §8.2.1: a lower-case name, a value without control characters; :authority may be anything else.
  static bool is_field(const uint8_t* name, size_t name_size, const uint8_t* value, size_t value_size) {
    return nghttp2_check_header_name(name, name_size) != 0 &&
           nghttp2_check_header_value_rfc9113(value, value_size) != 0;
  }

  // nghttp2 would drop such a field; a message with one is malformed.
  static int invalid_header(nghttp2_session*, const nghttp2_frame*, const uint8_t*, size_t, const uint8_t*,
                            size_t, uint8_t, void* user) {
    core(user).header_block_open_ = false;
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  }

  static int frame_received(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    Http2Core& self = core(user);
    switch (frame->hd.type) {
      case NGHTTP2_HEADERS: {
        self.header_block_open_ = false;
        Http2Stream* stream = std::exchange(self.reading_headers_, nullptr);
        if (stream == nullptr) break;
        if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) stream->in_ended_ = true;
        self.on_headers_end(*stream, *frame);
        break;
      }
      case NGHTTP2_DATA:
        if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
          if (Http2Stream* stream = self.find(frame->hd.stream_id)) {
            stream->in_ended_ = true;
            self.push_ready(*stream);
          }
        }
        break;
      case NGHTTP2_RST_STREAM:
        self.peer_reset_ = frame->hd.stream_id;
        break;
      case NGHTTP2_SETTINGS:
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) == 0) self.on_settings();
        break;
      case NGHTTP2_PING:
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0) self.ping_answered();
        break;
      case NGHTTP2_GOAWAY:
        self.on_goaway(frame->goaway.last_stream_id, frame->goaway.error_code);
        break;
      default:
        break;
    }
    return verdict(self);
  }

  static int data_chunk(nghttp2_session*, uint8_t, int32_t stream_id, const uint8_t* data, size_t size,
                        void* user) {
    Http2Core& self = core(user);
    if (Http2Stream* stream = self.find(stream_id)) {
      stream->receive(data, size);
    } else {
      self.consume(stream_id, size, true);
    }
    return 0;
  }

  static int stream_closed(nghttp2_session*, int32_t stream_id, uint32_t error_code, void* user) {
    Http2Core& self = core(user);
    const bool by_peer = std::exchange(self.peer_reset_, 0) == stream_id;
    if (Http2Stream* stream = self.find(stream_id)) self.close_stream(*stream, error_code, by_peer);
    return self.inside_ ? verdict(self) : 0;
  }

  static int frame_sent(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    Http2Core& self = core(user);
    switch (frame->hd.type) {
      case NGHTTP2_DATA:
        self.control_left_ =
            std::min<int64_t>(self.control_left_ + kControlPerUsefulFrame, self.limits_.control_burst);
        [[fallthrough]];
      case NGHTTP2_HEADERS:
        if (frame->hd.type == NGHTTP2_HEADERS || (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
          Http2Stream* stream = self.find(frame->hd.stream_id);
          if (stream == nullptr) break;
          if (frame->hd.type == NGHTTP2_HEADERS) stream->out_headers_sent_ = true;
          if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
            stream->out_end_sent_ = true;
            self.push_drained(*stream);
          }
        }
        break;
      case NGHTTP2_RST_STREAM:
        if (Http2Stream* stream = self.find(frame->hd.stream_id); stream == nullptr || !stream->reset_by_us_)
          self.on_reset_sent(frame->hd.stream_id, frame->rst_stream.error_code);
        break;
      case NGHTTP2_GOAWAY:
        if (frame->goaway.error_code != NGHTTP2_NO_ERROR) {
          self.failed_ = true;
          if (!self.fault_counted_) {
            self.fault_counted_ = true;
            self.on_fault(Fault::kProtocol);
          }
        }
        break;
      default:
        break;
    }
    return 0;
  }

  static ssize_t send(nghttp2_session*, const uint8_t* data, size_t size, int, void*) {
    Gather& gather = gathering();
    const size_t take = std::min(size, sizeof(gather.bytes) - gather.used);
    if (take == 0 || gather.count + 1 >= kMaxPieces || gather.total >= kRoundBytes) {
      gather.full = true;
      return NGHTTP2_ERR_WOULDBLOCK;
    }
    gather.copy(data, take);
    return static_cast<ssize_t>(take);
  }

  static int send_data(nghttp2_session*, nghttp2_frame* frame, const uint8_t* head, size_t size,
                       nghttp2_data_source* source, void*) {
    Gather& gather = gathering();
    if (sizeof(gather.bytes) - gather.used < kFrameHeader + kFrameBytes ||
        gather.count + kPiecesOfFrame > kMaxPieces || gather.total >= kRoundBytes) {
      gather.full = true;
      return NGHTTP2_ERR_WOULDBLOCK;
    }
    (void)frame;  // we never pad
    gather.copy(head, kFrameHeader);
    static_cast<Http2Stream*>(source->ptr)->take(size);
    return 0;
  }

  static const nghttp2_session_callbacks* get() {
    static const nghttp2_session_callbacks* const callbacks = [] {
      nghttp2_session_callbacks* made = nullptr;
      if (nghttp2_session_callbacks_new(&made) != 0) throw std::bad_alloc();
      nghttp2_session_callbacks_set_on_begin_frame_callback(made, begin_frame);
      nghttp2_session_callbacks_set_on_begin_headers_callback(made, begin_headers);
      nghttp2_session_callbacks_set_on_header_callback(made, header);
      nghttp2_session_callbacks_set_on_invalid_header_callback(made, invalid_header);
      nghttp2_session_callbacks_set_on_frame_recv_callback(made, frame_received);
      nghttp2_session_callbacks_set_on_data_chunk_recv_callback(made, data_chunk);
      nghttp2_session_callbacks_set_on_stream_close_callback(made, stream_closed);
      nghttp2_session_callbacks_set_on_frame_send_callback(made, frame_sent);
      nghttp2_session_callbacks_set_send_callback(made, send);
      nghttp2_session_callbacks_set_send_data_callback(made, send_data);
      return made;
    }();
    return callbacks;
  }

  static const nghttp2_option* options(const Kind& kind) {
    const auto make = [](bool remember, bool any_authority) {
      nghttp2_option* made = nullptr;
      if (nghttp2_option_new(&made) != 0) throw std::bad_alloc();
      nghttp2_option_set_no_closed_streams(made, remember ? 0 : 1);
      nghttp2_option_set_no_http_messaging(made, any_authority ? 1 : 0);
      nghttp2_option_set_no_auto_window_update(made, 1);
      // Ours to judge (Http2Core::on_closed): whoever ends a stream after our answer does nothing wrong.
      nghttp2_option_set_stream_reset_rate_limit(made, uint64_t{1} << 62U, uint64_t{1} << 32U);
      nghttp2_option_set_max_continuations(made, 8);
      // Limits::control_burst comes first.
      nghttp2_option_set_max_outbound_ack(made, 20'000);
      return made;
    };
    static const std::array<const nghttp2_option*, 4> all{make(false, false), make(true, false),
                                                          make(false, true), make(true, true)};
    return all[(kind.remember ? 1U : 0U) + (kind.any_authority ? 2U : 0U)];
  }
};

Http2Core::Http2Core(Loop& loop, SocketPtr socket, Kind kind)
    : socket_(std::move(socket)),
      loop_(loop),
      end_of_turn_(
          loop, [](void* self) { static_cast<Http2Core*>(self)->turn_end(); }, this),
      timer_(loop),
      is_server_(kind.server),
      checks_fields_(kind.any_authority) {
  static_assert(kMaxPieces == std::extent_v<decltype(Gather::pieces)>);
  nghttp2_mem memory{nullptr, session_malloc, session_free, session_calloc, session_realloc};
  const int made =
      kind.server
          ? nghttp2_session_server_new3(&session_, Callbacks::get(), this, Callbacks::options(kind), &memory)
          : nghttp2_session_client_new3(&session_, Callbacks::get(), this, Callbacks::options(kind), &memory);
  if (made != 0) throw std::bad_alloc();
}

Http2Core::~Http2Core() {
  forget_pending();
  nghttp2_session_del(session_);
}

void Http2Core::begin(const Limits& limits, std::string_view received) {
  limits_ = limits;
  control_left_ = limits.control_burst;
  ticked_at_ = last_received_ = loop_.now();
  ping_after_ = limits.ping_interval;
  std::array<nghttp2_settings_entry, 5> settings;
  size_t count = 0;
  if (!is_server_) settings[count++] = {NGHTTP2_SETTINGS_ENABLE_PUSH, 0};
  if (is_server_ && limits.max_concurrent_streams != 0)
    settings[count++] = {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams};
  if (limits.stream_window != NGHTTP2_INITIAL_WINDOW_SIZE)
    settings[count++] = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, limits.stream_window};
  if (limits.max_frame_bytes > 16384)
    settings[count++] = {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, std::min(limits.max_frame_bytes, 16777215U)};
  settings[count++] = {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, limits.max_header_bytes};
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), count);
  nghttp2_session_set_local_window_size(
      session_, NGHTTP2_FLAG_NONE, 0,
      static_cast<int32_t>(std::clamp<uint32_t>(limits.connection_window, 65535U, 0x7fffffffU)));
  timer_.arm_coarse(limits_.tick, [](void* self) { static_cast<Http2Core*>(self)->tick(); }, this);
  mark_dirty();
  if (!received.empty()) receive(received);
  watch();
}

// --- reading ---

void Http2Core::watch() {
  if (!socket_->is_open() || paused_) return;
  socket_->watch([](void* self) { static_cast<Http2Core*>(self)->on_readable(); }, this);
}

void Http2Core::on_readable() {
  size_t budget = kReadBudget;
  while (socket_->is_open() && budget != 0) {
    if (!lost_ && pending_begin_ != pending_end_ &&
        nghttp2_session_get_outbound_queue_size(session_) > kQueueWhilePaused) {
      paused_ = true;
      return;
    }
    const ptrdiff_t got =
        socket_->maybe_readable() ? socket_->try_read(read_memory(), kReadBytes) : Socket::kWouldBlock;
    if (got == Socket::kWouldBlock) break;
    if (got <= 0) {
      lose(got == 0 ? "the peer closed the connection" : socket_->error_text());
      return;
    }
    last_received_ = loop_.now();
    if (!lost_) receive({read_memory(), static_cast<size_t>(got)});
    budget -= std::min(budget, static_cast<size_t>(got));
  }
  watch();
}

void Http2Core::receive(std::string_view bytes) {
  inside_ = true;
  const ssize_t result =
      nghttp2_session_mem_recv(session_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  inside_ = false;
  if (result < 0) {
    if (!fault_) {
      switch (result) {
        case NGHTTP2_ERR_FLOODED:
          give_up(Fault::kControlFlood, NGHTTP2_ENHANCE_YOUR_CALM);
          break;
        case NGHTTP2_ERR_TOO_MANY_CONTINUATIONS:
          give_up(Fault::kContinuationFlood, NGHTTP2_ENHANCE_YOUR_CALM);
          break;
        default:
          give_up(Fault::kProtocol, NGHTTP2_PROTOCOL_ERROR);
          break;
      }
    }
  }
  act_on_fault();
  run_ready();
  if (!lost_) mark_dirty();
}

bool Http2Core::spend(uint32_t frame_type, uint32_t bytes) {
  const bool useful = frame_type == NGHTTP2_HEADERS || (frame_type == NGHTTP2_DATA && bytes != 0);
  if (useful) {
    ping_after_ = limits_.ping_interval;
    control_left_ = std::min<int64_t>(control_left_ + kControlPerUsefulFrame, limits_.control_burst);
    return true;
  }
  return --control_left_ >= 0;
}

Http2Stream* Http2Core::find(int32_t stream_id) {
  if (recent_ != nullptr && recent_->id_ == stream_id) return recent_;
  auto* stream = static_cast<Http2Stream*>(nghttp2_session_get_stream_user_data(session_, stream_id));
  if (stream != nullptr) recent_ = stream;
  return stream;
}

void Http2Core::close_stream(Http2Stream& stream, uint32_t error_code, bool by_peer) {
  if (recent_ == &stream) recent_ = nullptr;
  if (reading_headers_ == &stream) reading_headers_ = nullptr;
  stream.closed_ = true;
  stream.broken_ = !stream.in_ended_ || !stream.out_end_sent_;
  stream.close_code_ = error_code;
  on_closed(stream, error_code, by_peer);
  push_ready(stream);
}

void Http2Core::push_ready(Http2Stream& stream) {
  if (stream.in_ready_) return;
  stream.in_ready_ = true;
  stream.ready_next_ = nullptr;
  (ready_last_ != nullptr ? ready_last_->ready_next_ : ready_first_) = &stream;
  ready_last_ = &stream;
  if (!inside_) end_of_turn_.request();
}

void Http2Core::run_ready() {
  // Those that become ready while these run have their turn at its end.
  Http2Stream* const last = ready_last_;
  while (ready_first_ != nullptr) {
    Http2Stream& stream = *ready_first_;
    const bool was_last = &stream == last;
    ready_first_ = stream.ready_next_;
    if (ready_first_ == nullptr) ready_last_ = nullptr;
    stream.ready_next_ = nullptr;
    stream.in_ready_ = false;
    on_ready(stream);
    if (was_last) break;
  }
  if (ready_first_ != nullptr) end_of_turn_.request();
}

void Http2Core::consume(int32_t stream_id, size_t bytes, bool stream_open) {
  if (lost_ || bytes == 0) return;
  if (stream_open) {
    nghttp2_session_consume(session_, stream_id, bytes);
  } else {
    nghttp2_session_consume_connection(session_, bytes);
  }
  if (nghttp2_session_want_write(session_) != 0) mark_dirty();
}

// --- writing ---

void Http2Core::resume(int32_t stream_id) {
  if (lost_) return;
  nghttp2_session_resume_data(session_, stream_id);
}

void Http2Core::forget(Http2Stream& stream) {
  stream.in_ready_ = stream.in_drained_ = false;
}

void Http2Core::push_drained(Http2Stream& stream) {
  if (stream.in_drained_) return;
  stream.in_drained_ = true;
  stream.drained_next_ = drained_;
  drained_ = &stream;
  if (!flushing_) end_of_turn_.request();
}

void Http2Core::run_drained() {
  while (Http2Stream* stream = drained_) {
    drained_ = stream->drained_next_;
    stream->drained_next_ = nullptr;
    stream->in_drained_ = false;
    stream->release_sent();
    stream->wake_writer();
    on_ready(*stream);
  }
}

void Http2Core::turn_end() {
  constexpr int kRounds = 4;
  for (int round = 0; round < kRounds; ++round) {
    flush();
    if (drained_ == nullptr && ready_first_ == nullptr) {
      end_of_turn_.cancel();
      return;
    }
    run_drained();
    run_ready();
  }
  end_of_turn_.request();
}

void Http2Core::flush_now() {
  if (inside_ || flushing_) {
    mark_dirty();
    return;
  }
  flush();
  if (drained_ != nullptr) end_of_turn_.request();
}

bool Http2Core::flush_pending() {
  while (pending_begin_ != pending_end_) {
    const iovec rest{pending_.data() + pending_begin_, pending_end_ - pending_begin_};
    const ptrdiff_t sent = socket_->try_write(&rest, 1);
    if (sent == Socket::kFailed) {
      lose(socket_->error_text());
      return false;
    }
    if (sent > 0) {
      pending_begin_ += static_cast<size_t>(sent);
      if (limits_.backlog != nullptr) limits_.backlog->remove(static_cast<size_t>(sent));
      blocked_since_ = kNever;
      continue;
    }
    wait_for_room();
    return false;
  }
  forget_pending();
  blocked_since_ = kNever;
  if (paused_) {
    paused_ = false;
    watch();
  }
  return true;
}

void Http2Core::wait_for_room() {
  socket_->watch_room([](void* self) { static_cast<Http2Core*>(self)->mark_dirty(); }, this);
}

void Http2Core::keep_rest(size_t sent) {
  const Gather& gather = gathering();
  pending_ = Buffer(gather.total - sent);
  pending_begin_ = pending_end_ = 0;
  for (size_t i = 0; i < gather.count; ++i) {
    const iovec& piece = gather.pieces[i];
    const size_t skip = std::min(sent, piece.iov_len);
    sent -= skip;
    const size_t size = piece.iov_len - skip;
    if (size == 0) continue;
    std::memcpy(pending_.data() + pending_end_, static_cast<const char*>(piece.iov_base) + skip, size);
    pending_end_ += size;
  }
  if (limits_.backlog != nullptr) limits_.backlog->add(pending_end_);
  wait_for_room();
}

void Http2Core::forget_pending() {
  if (limits_.backlog != nullptr) limits_.backlog->remove(pending_end_ - pending_begin_);
  pending_.reset();
  pending_begin_ = pending_end_ = 0;
}

void Http2Core::flush() {
  if (lost_ || flushing_ || inside_ || !flush_pending()) return;
  Gather& gather = gathering();
  for (;;) {
    gather.reset();
    flushing_ = true;
    const int result = nghttp2_session_send(session_);
    flushing_ = false;
    if (gather.count != 0) {
      const ptrdiff_t sent = socket_->try_write(gather.pieces, gather.count);
      if (sent == Socket::kFailed) {
        lose(socket_->error_text());
        return;
      }
      const size_t taken = sent > 0 ? static_cast<size_t>(sent) : 0;
      if (taken < gather.total) {
        keep_rest(taken);
        break;
      }
    }
    if (result != 0) {
      lose(nghttp2_strerror(result));
      return;
    }
    if (!gather.full) break;
  }
  act_on_fault();
  check_end();
}

void Http2Core::gather_bytes(const char* bytes, size_t size) {
  if (size < kCopyBelow) {
    gathering().copy(bytes, size);
  } else {
    gathering().refer(bytes, size);
  }
}

// --- ends ---

void Http2Core::drain() {
  if (draining_ || lost_ || failed_) return;
  draining_ = true;
  draining_since_ = loop_.now();
  nghttp2_submit_shutdown_notice(session_);
  nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr);
  mark_dirty();
}

void Http2Core::last_goaway() {
  if (last_goaway_ || lost_) return;
  last_goaway_ = true;
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_),
                        NGHTTP2_NO_ERROR, nullptr, 0);
  mark_dirty();
}

void Http2Core::ping_answered() {
  ping_sent_ = kNever;
  if (draining_) last_goaway();
}

void Http2Core::give_up(Fault fault, uint32_t error_code) {
  if (fault_ || lost_ || failed_) return;
  fault_ = error_code;
  fault_counted_ = true;
  on_fault(fault);
  if (!inside_ && !flushing_) act_on_fault();
}

void Http2Core::act_on_fault() {
  if (!fault_ || failed_ || lost_) return;
  failed_ = true;
  nghttp2_session_terminate_session(session_, *fault_);
  mark_dirty();
}

void Http2Core::check_end() {
  if (lost_ || pending_begin_ != pending_end_ || nghttp2_session_want_read(session_) != 0 ||
      nghttp2_session_want_write(session_) != 0)
    return;
  if (!is_server_) {
    lose("the connection was ended with GOAWAY");
    return;
  }
  // Our last word is out. What the client still sends is read past, so that it doesn't destroy that word on
  // its way.
  lingering_since_ = loop_.now();
  end_streams("the connection was ended with GOAWAY");
  socket_->shutdown_write();
  watch();
}

void Http2Core::end_streams(std::string why) {
  lost_ = true;
  if (lost_why_.empty()) lost_why_ = std::move(why);
  recent_ = reading_headers_ = nullptr;
  for (Http2Stream* stream = streams_; stream != nullptr; stream = stream->next_) {
    if (!stream->closed_) close_stream(*stream, NGHTTP2_NO_ERROR, false);
    push_ready(*stream);
    push_drained(*stream);
  }
  end_of_turn_.request();
}

void Http2Core::lose(std::string why) {
  if (!socket_->is_open()) return;
  timer_.disarm();
  socket_->unwatch();
  socket_->unwatch_room();
  socket_->close();
  forget_pending();
  if (!lost_) end_streams(std::move(why));
  on_lost();
}

void Http2Core::tick() {
  const TimePoint now = loop_.now();
  const double seconds = std::chrono::duration<double>(now - ticked_at_).count();
  ticked_at_ = now;
  control_left_ = std::min<int64_t>(
      control_left_ + static_cast<int64_t>(limits_.control_per_second * seconds), limits_.control_burst);
  const auto over = [now](TimePoint& since, bool holds, Duration limit) {
    if (!holds || limit <= Duration::zero()) {
      since = kNever;
      return false;
    }
    if (since == kNever) since = now;
    return now - since >= limit;
  };
  if (lost_) {
    const Duration limit =
        failed_ ? limits_.linger_timeout : std::min(limits_.linger_timeout, kGracefulLinger);
    if (now - lingering_since_ >= limit) {
      lose("");
      return;
    }
  } else {
    if (over(blocked_since_, pending_begin_ != pending_end_, limits_.write_timeout)) {
      on_fault(Fault::kWriteTimeout);
      lose("the peer took nothing for too long");
      return;
    }
    if (over(headers_since_, header_block_open_, limits_.header_timeout))
      give_up(Fault::kHeaderTimeout, NGHTTP2_ENHANCE_YOUR_CALM);
    if (draining_ && now - draining_since_ >= kGoawayRoundTrip) last_goaway();
    // Anything is an answer; the next silence has a PING of its own.
    if (ping_sent_ != kNever && last_received_ >= ping_sent_) ping_sent_ = kNever;
    if (ping_sent_ != kNever && now - ping_sent_ >= limits_.ping_timeout &&
        limits_.ping_timeout > Duration::zero()) {
      on_fault(Fault::kPingTimeout);
      lose("no answer to a PING");
      return;
    }
    const bool sparing = limits_.ping_rest > Duration::zero();
    if (limits_.ping_interval > Duration::zero() && ping_sent_ == kNever &&
        now - last_received_ >= ping_after_ && (!sparing || stream_count_ != 0)) {
      ping_sent_ = now;
      if (sparing)
        ping_after_ = ping_after_ < 4 * limits_.ping_interval ? ping_after_ * 2
                                                              : std::max(ping_after_, limits_.ping_rest);
      nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr);
      mark_dirty();
    }
    for (Http2Stream* stream = streams_; stream != nullptr; stream = stream->next_) {
      if (!stream->stuck(now, limits_.write_timeout)) continue;
      on_stuck(*stream);
      stream->reset(NGHTTP2_CANCEL);
    }
    on_tick(now);
  }
  if (socket_->is_open())
    timer_.arm_coarse(limits_.tick, [](void* self) { static_cast<Http2Core*>(self)->tick(); }, this);
}

}  // namespace penstock::io::detail
