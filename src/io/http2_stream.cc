#include "io/detail/http2_stream.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/strings.h"

namespace penstock::io::detail {

namespace {

constexpr size_t kQueuedByCopy = 16 * 1024;  // a write of up to this is copied without a try to send it
constexpr size_t kTextKept = 4096;           // of a recycled stream's texts
constexpr size_t kFieldsKept = 64;

}  // namespace

// --- FieldStore ---

void FieldStore::add(std::string_view name, std::string_view value) {
  bytes_ += name.size() + value.size() + 32;
  const size_t needed = text_.size() + name.size() + value.size();
  if (needed > text_.capacity()) {
    const char* before = text_.data();
    text_.reserve(std::max<size_t>({needed, text_.capacity() * 2, 512}));
    for (HeaderField& field : fields_) {
      field.name = {text_.data() + (field.name.data() - before), field.name.size()};
      field.value = {text_.data() + (field.value.data() - before), field.value.size()};
    }
  }
  const size_t at = text_.size();
  text_.append(name);
  text_.append(value);
  fields_.push_back({{text_.data() + at, name.size()}, {text_.data() + at + name.size(), value.size()}});
}

void FieldStore::clear() {
  if (text_.capacity() > kTextKept) text_ = std::string();
  if (fields_.capacity() > kFieldsKept) fields_ = FieldVector();
  text_.clear();
  fields_.clear();
  bytes_ = 0;
}

void FieldStore::join_cookies() {
  size_t count = 0;
  for (const HeaderField& field : fields_) count += field.name == "cookie" ? 1 : 0;
  if (count < 2) return;
  std::string joined;
  for (const HeaderField& field : fields_) {
    if (field.name != "cookie") continue;
    if (!joined.empty()) joined += "; ";
    joined.append(field.value);
  }
  fields_.erase(std::remove_if(fields_.begin(), fields_.end(),
                               [](const HeaderField& field) { return field.name == "cookie"; }),
                fields_.end());
  add("cookie", joined);
}

// --- FieldBlock ---

void FieldBlock::begin(std::span<const HeaderField> fields, size_t more, size_t more_bytes) {
  clear();
  size_t bytes = more_bytes;
  for (const HeaderField& field : fields) bytes += field.name.size() + field.value.size();
  text_.reserve(bytes);
  list_.reserve(fields.size() + more);
}

void FieldBlock::add(std::string_view name, std::string_view value) {
  const size_t at = text_.size();
  text_.append(name);
  text_.append(value);
  auto* text = reinterpret_cast<uint8_t*>(text_.data()) + at;
  list_.push_back({text, text + name.size(), name.size(), value.size(),
                   NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE});
}

bool FieldBlock::add_all(std::span<const HeaderField> fields, bool keep_te) {
  for (const HeaderField& field : fields) {
    if (!is_token(field.name) || !is_field_text(field.value)) return false;
    if (is_connection_field(field.name) &&
        !(keep_te && field.name.size() == 2 && ascii_iequals(trim(field.value), "trailers")))
      continue;
    add(field.name, trim(field.value));
    nghttp2_nv& added = list_.back();
    for (size_t i = 0; i < added.namelen; ++i) {
      uint8_t& c = added.name[i];
      if (c >= 'A' && c <= 'Z') c = static_cast<uint8_t>(c | 0x20U);
    }
    if (added.namelen == 4) {
      const std::string_view name(reinterpret_cast<const char*>(added.name), 4);
      if (name == "date") has_date_ = true;
      if (name == "host") {
        host_ = {reinterpret_cast<const char*>(added.value), added.valuelen};
        list_.pop_back();  // goes as :authority, or nowhere
      }
    }
  }
  return true;
}

void FieldBlock::clear() {
  if (text_.capacity() > kTextKept) text_ = std::string();
  if (list_.capacity() > kFieldsKept) list_ = {};
  text_.clear();
  list_.clear();
  host_ = {};
  has_date_ = false;
}

// --- waiting ---

void Http2Stream::wake_reader() {
  if (Parked* parked = std::exchange(reader_, nullptr)) parked->wait_.complete(Wait::Outcome::kReady);
}

void Http2Stream::wake_writer() {
  if (Parked* parked = std::exchange(writer_, nullptr)) parked->wait_.complete_later(Wait::Outcome::kReady);
}

// --- life ---

void Http2Stream::attach(Http2Core& core, int32_t id) {
  core_ = &core;
  id_ = id;
  previous_ = nullptr;
  next_ = core.streams_;
  if (next_ != nullptr) next_->previous_ = this;
  core.streams_ = this;
  ++core.stream_count_;
}

void Http2Stream::detach() {
  assert(parked_ == 0);
  drop_queue();
  if (core_->recent_ == this) core_->recent_ = nullptr;
  if (core_->reading_headers_ == this) core_->reading_headers_ = nullptr;
  core_->consume(id_, std::exchange(unconsumed_, 0), !closed_);
  (previous_ != nullptr ? previous_->next_ : core_->streams_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  previous_ = next_ = nullptr;
  --core_->stream_count_;
  core_ = nullptr;
  id_ = 0;
  in_.reset();
  more_.reset();
  out_.reset();
  in_begin_ = in_given_ = in_end_ = more_end_ = 0;
  in_total_ = 0;
  close_code_ = 0;
  in_ended_ = closed_ = broken_ = reset_by_us_ = unprocessed_ = gathering_ = no_room_ = dropping_ = false;
  trailers_in_.clear();
  out_kind_ = Out::kNone;
  out_left_ = 0;
  out_drop_ = out_started_ = out_finished_ = out_end_sent_ = out_headers_sent_ = false;
  out_deferred_ = has_trailers_ = false;
  head_out_.clear();
  trailers_out_.clear();
  sent_ = sent_at_check_ = 0;
  stuck_since_ = kNever;
}

void Http2Stream::reset(uint32_t error_code) {
  if (closed_ || reset_by_us_ || core_ == nullptr || core_->lost()) return;
  reset_by_us_ = true;
  nghttp2_submit_rst_stream(core_->session(), NGHTTP2_FLAG_NONE, id_, error_code);
  core_->mark_dirty();
}

// --- receiving ---

void Http2Stream::receive(const uint8_t* bytes, size_t size) {
  in_total_ += size;
  if (dropping_) {
    core_->consume(id_, size, !closed_);
    return;
  }
  unconsumed_ += size;
  if (gathering_ && !room_for(size)) {
    give_back();
    core_->push_ready(*this);
    return;
  }
  const auto append = [&](Buffer& buffer, size_t& end, size_t keep) {
    if (end + size > buffer.capacity()) {
      Buffer larger(std::max(end + size, buffer.capacity() * 2));
      if (end != keep) std::memcpy(larger.data() + keep, buffer.data() + keep, end - keep);
      buffer = std::move(larger);
    }
    std::memcpy(buffer.data() + end, bytes, size);
    end += size;
  };
  if (more_end_ != 0) {
    append(more_, more_end_, 0);
  } else if (in_begin_ == in_given_ || in_end_ + size <= in_.capacity()) {
    append(in_, in_end_, in_begin_);
  } else {
    append(more_, more_end_, 0);
  }
  if (gathering_) {
    give_back();
    // One wake-up for the whole body; its limit is checked by then.
    if (in_end_ - in_begin_ <= gather_limit_) return;
  }
  core_->push_ready(*this);
}

// While read_whole() has a budget: whether the bytes may take the memory that they need.
bool Http2Stream::room_for(size_t size) {
  if (budget_ == nullptr || no_room_) return !no_room_;
  const size_t held =
      in_end_ + size <= in_.capacity() ? in_.capacity() : std::max(in_end_ + size, in_.capacity() * 2);
  no_room_ = !budget_->hold(held);
  return !no_room_;
}

void Http2Stream::drop_received() {
  dropping_ = true;
  in_.reset();
  more_.reset();
  in_begin_ = in_given_ = in_end_ = more_end_ = 0;
  give_back();
}

void Http2Stream::give_back() {
  core_->consume(id_, std::exchange(unconsumed_, 0), !closed_);
}

std::optional<Result<BodyPiece>> Http2Stream::piece_there(uint64_t max_bytes) {
  const size_t read = in_given_ - in_begin_;
  if (read != 0) {
    const size_t due = std::min(read, unconsumed_);  // read_whole() gives back at once
    unconsumed_ -= due;
    in_begin_ = in_given_;
    core_->consume(id_, due, !closed_);
  }
  if (in_given_ == in_end_) {
    in_begin_ = in_given_ = in_end_ = 0;
    if (more_end_ != 0) {
      in_ = std::move(more_);
      more_.reset();
      in_end_ = std::exchange(more_end_, 0);
    }
  }
  if (in_total_ > max_bytes)
    return Error{ErrorCode::kPayloadTooLarge,
                 "the body is larger than the limit of " + std::to_string(max_bytes) + " bytes"};
  if (in_given_ != in_end_) {
    const std::string_view data(in_.data() + in_given_, in_end_ - in_given_);
    in_given_ = in_end_;
    return BodyPiece{data, in_ended_ && more_end_ == 0};
  }
  if (in_ended_) return BodyPiece{{}, true};
  if (closed_ || reset_by_us_) return gone_error("body");
  return std::nullopt;
}

Error Http2Stream::no_piece(Wait::Outcome outcome) const {
  return std::move(status_of(outcome, timeout_code(), "waiting for more of the body")).error();
}

Task<Result<BodyPiece>> Http2Stream::read_piece(Duration timeout, CancelToken token, uint64_t max_bytes) {
  for (;;) {
    if (std::optional<Result<BodyPiece>> piece = piece_there(max_bytes)) co_return std::move(*piece);
    const Wait::Outcome outcome = co_await wait_for_piece(timeout, token);
    if (outcome != Wait::Outcome::kReady) co_return no_piece(outcome);
  }
}

Task<Wait::Outcome> Http2Stream::wait_for_news(Duration timeout, CancelToken token) {
  Parked parked(*this, reader_, timeout, token);
  const Wait::Outcome outcome = co_await parked;
  co_return outcome;
}

void Http2Stream::merge() {
  const size_t unread = in_end_ - in_given_;
  if (more_end_ == 0 && in_given_ == 0) return;
  Buffer whole(std::max<size_t>(unread + more_end_, 1));
  if (unread != 0) std::memcpy(whole.data(), in_.data() + in_given_, unread);
  if (more_end_ != 0) std::memcpy(whole.data() + unread, more_.data(), more_end_);
  in_ = std::move(whole);
  in_begin_ = in_given_ = 0;
  in_end_ = unread + more_end_;
  more_.reset();
  more_end_ = 0;
}

Task<Result<std::span<char>>> Http2Stream::read_whole(size_t limit, uint64_t max_bytes,
                                                      std::optional<uint64_t> declared, Duration timeout,
                                                      CancelToken token, Duration total_timeout,
                                                      BodyBudget* budget) {
  // However this ends, what comes after it is bounded by the window again.
  struct Gathering {
    explicit Gathering(Http2Stream& s) : stream(s) {}
    ~Gathering() {
      stream.budget_ = nullptr;
      stream.gathering_ = false;
    }
    Http2Stream& stream;
  };
  const Gathering gathering(*this);
  budget_ = budget;
  no_room_ = false;
  const auto no_room = [&] { return Error{ErrorCode::kResourceExhausted, "there is no room for the body"}; };
  const auto effective = static_cast<size_t>(std::min<uint64_t>(limit, max_bytes));
  const auto too_large = [&] {
    return Error{ErrorCode::kPayloadTooLarge,
                 "the body is larger than the limit of " + std::to_string(effective) + " bytes"};
  };
  merge();
  if (in_end_ > effective || (declared && !in_ended_ && *declared > effective + (in_total_ - in_end_)))
    co_return too_large();
  if (budget_ != nullptr && in_end_ != 0 && !budget_->hold(in_.capacity())) co_return no_room();
  if (budget_ == nullptr && !in_ended_ && declared && in_.capacity() < *declared) {
    Buffer whole(static_cast<size_t>(*declared));
    if (in_end_ != 0) std::memcpy(whole.data(), in_.data(), in_end_);
    in_ = std::move(whole);
  }
  gathering_ = true;
  gather_limit_ = effective;
  give_back();
  TimePoint deadline = kNever;
  while (!in_ended_) {
    if (closed_ || reset_by_us_) co_return gone_error("body");
    const uint64_t before = in_total_;
    Duration patience = timeout;
    if (total_timeout > Duration::zero()) {
      const TimePoint now = loop_.now();
      if (deadline == kNever) deadline = now + total_timeout;
      if (now >= deadline)
        co_return std::move(status_of(Wait::Outcome::kTimedOut, timeout_code(), "waiting for the body"))
            .error();
      if (patience <= Duration::zero() || deadline - now < patience) patience = deadline - now;
    }
    Parked parked(*this, reader_, patience, token);
    const Wait::Outcome outcome = co_await parked;
    if (no_room_) co_return no_room();
    if (in_end_ > effective) co_return too_large();
    if (outcome == Wait::Outcome::kReady || (outcome == Wait::Outcome::kTimedOut && in_total_ != before))
      continue;
    co_return std::move(status_of(outcome, timeout_code(), "waiting for the body")).error();
  }
  if (no_room_) co_return no_room();
  if (in_end_ > effective) co_return too_large();
  if (!in_) in_ = Buffer(1);
  // Stays where it is until the stream ends: nothing comes after it.
  in_begin_ = in_given_ = in_end_;
  co_return std::span<char>(in_.data(), in_end_);
}

// --- sending ---

Status Http2Stream::account(std::span<const std::string_view> pieces, bool end) {
  uint64_t total = 0;
  for (const std::string_view piece : pieces) total += piece.size();
  if (out_finished_) return Error{ErrorCode::kInternal, "a message was written to after its end"};
  if (out_kind_ == Out::kLength) {
    if (total > out_left_) return Error{ErrorCode::kInternal, "a body is longer than its content-length"};
    out_left_ -= total;
    if (end && out_left_ != 0 && !out_drop_)
      return Error{ErrorCode::kInternal, "a body is shorter than its content-length"};
  } else if (out_kind_ == Out::kNone && total != 0 && !out_drop_) {
    return Error{ErrorCode::kInternal, "a body was written to a message that has none"};
  }
  return {};
}

Status Http2Stream::set_trailers(std::span<const HeaderField> trailers) {
  if (trailers.empty()) return {};
  trailers_out_.begin(trailers, 0, 0);
  if (!trailers_out_.add_all(trailers, false))
    return Error{ErrorCode::kInternal, "a trailer field has an invalid name or value"};
  has_trailers_ = trailers_out_.size() != 0;
  return {};
}

void Http2Stream::grow_out(size_t room) {
  if (out_.capacity() - out_end_ >= room && out_) return;
  const size_t held = out_end_ - out_begin_;
  if (out_ && out_.capacity() - held >= room && out_begin_ >= out_.capacity() / 2) {
    if (held != 0) std::memmove(out_.data(), out_.data() + out_begin_, held);
  } else {
    Buffer larger(std::max(held + room, out_.capacity() * 2));
    if (held != 0) std::memcpy(larger.data(), out_.data() + out_begin_, held);
    out_ = std::move(larger);
  }
  out_begin_ = 0;
  out_end_ = held;
}

bool Http2Stream::has_room_for(size_t total) const {
  return total == 0 || (total <= kQueuedByCopy && queued() + total <= core_->limits().stream_queue_bytes &&
                        core_->queue_has_room(total));
}

bool Http2Stream::takes(std::span<const std::string_view> pieces) const {
  size_t total = 0;
  for (const std::string_view piece : pieces) total += piece.size();
  return has_room_for(total);
}

bool Http2Stream::queue(std::span<const std::string_view> pieces, bool end) {
  size_t total = 0;
  for (const std::string_view piece : pieces) total += piece.size();
  if (!has_room_for(total)) return false;
  if (total != 0) {
    grow_out(total);
    for (const std::string_view piece : pieces) {
      if (piece.empty()) continue;
      std::memcpy(out_.data() + out_end_, piece.data(), piece.size());
      out_end_ += piece.size();
    }
    core_->add_queued(total);
  }
  if (end) out_finished_ = true;
  announce();
  return true;
}

void Http2Stream::announce() {
  if (out_deferred_ && (queued() != 0 || out_finished_)) {
    out_deferred_ = false;
    core_->resume(id_);
  }
  core_->mark_dirty();
}

void Http2Stream::copy_outside(uint64_t bytes) {
  auto left = static_cast<size_t>(bytes);
  grow_out(left);
  core_->add_queued(left);
  outside_bytes_ -= left;
  while (left != 0) {
    const std::string_view front = outside_.front().substr(outside_offset_);
    const size_t size = std::min(left, front.size());
    if (size != 0) std::memcpy(out_.data() + out_end_, front.data(), size);
    out_end_ += size;
    left -= size;
    outside_offset_ += size;
    if (size == front.size()) {
      outside_ = outside_.subspan(1);
      outside_offset_ = 0;
    }
  }
}

Task<Status> Http2Stream::send_waiting(std::span<const std::string_view> pieces, bool end, Duration timeout,
                                       CancelToken token) {
  // The pieces are the caller's: nothing refers to them once this has ended, however it does.
  struct Guard {
    explicit Guard(Http2Stream& s) : stream(s) {}
    ~Guard() {
      if (stream.outside_bytes_ == 0) return;
      stream.drop_queue();
      stream.reset(NGHTTP2_INTERNAL_ERROR);
    }
    Http2Stream& stream;
  };
  const Guard guard(*this);
  outside_ = pieces;
  outside_offset_ = 0;
  for (const std::string_view piece : pieces) outside_bytes_ += piece.size();
  if (end) out_finished_ = true;
  announce();
  core_->flush_now();
  for (;;) {
    if (outside_bytes_ == 0 && out_end_sent_) co_return Status();
    if (closed_ || reset_by_us_ || done_early()) co_return gone_error("write");
    const size_t held = out_end_ - out_begin_;
    const Http2Core::Limits& limits = core_->limits();
    const size_t room = held < limits.stream_queue_bytes ? limits.stream_queue_bytes - held : 0;
    if (outside_bytes_ == 0) co_return Status();
    if (outside_bytes_ <= room && core_->queue_has_room(outside_bytes_)) {
      copy_outside(outside_bytes_);
      co_return Status();
    }
    const uint64_t before = sent_;
    Parked parked(*this, writer_, timeout, token);
    const Wait::Outcome outcome = co_await parked;
    if (outcome == Wait::Outcome::kReady || (outcome == Wait::Outcome::kTimedOut && sent_ != before))
      continue;
    co_return status_of(outcome, timeout_code(), "write");
  }
}

void Http2Stream::drop_queue() {
  if (core_ != nullptr) core_->remove_queued(out_end_ - out_begin_);
  out_begin_ = out_end_ = 0;
  outside_ = {};
  outside_offset_ = 0;
  outside_bytes_ = 0;
}

nghttp2_data_provider Http2Stream::provider() {
  nghttp2_data_provider provider{};
  provider.source.ptr = this;
  provider.read_callback = &Http2Stream::provide;
  return provider;
}

ssize_t Http2Stream::provide(nghttp2_session* session, int32_t stream_id, uint8_t*, size_t length,
                             uint32_t* flags, nghttp2_data_source* source, void*) {
  auto& self = *static_cast<Http2Stream*>(source->ptr);
  const uint64_t queued = self.queued();
  if (queued == 0 && !self.out_finished_) {
    self.out_deferred_ = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  const auto size = static_cast<size_t>(std::min<uint64_t>(length, queued));
  *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
  if (size == queued && self.out_finished_) {
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (self.has_trailers_) {
      *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
      nghttp2_submit_trailer(session, stream_id, self.trailers_out_.data(), self.trailers_out_.size());
    }
  }
  return static_cast<ssize_t>(size);
}

void Http2Stream::take(size_t bytes) {
  sent_ += bytes;
  const size_t own = std::min(bytes, out_end_ - out_begin_);
  if (own != 0) {
    Http2Core::gather_bytes(out_.data() + out_begin_, own);
    out_begin_ += own;
    bytes -= own;
    core_->remove_queued(own);
  }
  while (bytes != 0 && !outside_.empty()) {
    const std::string_view front = outside_.front().substr(outside_offset_);
    const size_t size = std::min(bytes, front.size());
    if (size != 0) Http2Core::gather_bytes(front.data(), size);
    bytes -= size;
    outside_bytes_ -= size;
    outside_offset_ += size;
    if (size == front.size()) {
      outside_ = outside_.subspan(1);
      outside_offset_ = 0;
    }
  }
  // The queue was dropped after its bytes were promised: the frame is filled up, and the reset follows it.
  static constexpr char kNothing[2048] = {};
  while (bytes != 0) {
    const size_t size = std::min(bytes, sizeof(kNothing) - 1);
    Http2Core::gather_bytes(kNothing, size);
    bytes -= size;
  }
  if (writer_ != nullptr || queued() == 0) core_->push_drained(*this);
}

void Http2Stream::release_sent() {
  if (out_begin_ != out_end_) return;
  out_begin_ = out_end_ = 0;
  out_.reset();
}

bool Http2Stream::stuck(TimePoint now, Duration limit) {
  // (A request without a body that waits for its turn is not stuck.)
  const bool waits = queued() != 0 || (out_headers_sent_ && out_finished_ && !out_end_sent_);
  if (!waits || closed_ || sent_ != sent_at_check_ || limit <= Duration::zero() || writer_ != nullptr) {
    sent_at_check_ = sent_;
    stuck_since_ = kNever;
    return false;
  }
  if (stuck_since_ == kNever) stuck_since_ = now;
  return now - stuck_since_ >= limit;
}

}  // namespace penstock::io::detail
