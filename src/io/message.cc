#include "io/detail/message.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace penstock::io::detail {

// --- Inbox ---

void Inbox::compact() {
  if (begin == 0) return;
  const size_t bytes = pending();
  if (bytes != 0) std::memmove(data(), data() + begin, bytes);
  begin = 0;
  end = bytes;
}

bool Inbox::grow(size_t limit) {
  if (buffer.capacity() >= limit) return false;
  Buffer larger(std::min(limit, buffer.capacity() * 2 + kBodyPadding));
  if (end != 0) std::memcpy(larger.data(), data(), end);
  buffer = std::move(larger);
  return true;
}

// --- BodyReader ---

namespace {
constexpr size_t kLeastRoom = 8 * 1024;   // less room than this in the inbox: use another buffer
constexpr size_t kLargeBody = 32 * 1024;  // more than this to come: receive in large pieces
constexpr size_t kLargePiece = 256 * 1024 - kBodyPadding;
constexpr size_t kStreamPiece = 64 * 1024 - kBodyPadding;
// What a body on a budget may hold: this at once, then so many times what has arrived.
constexpr size_t kFirstRoom = 64 * 1024;
constexpr size_t kRoomFactor = 8;
}  // namespace

void BodyReader::start(const MessageFraming& framing, Inbox& inbox, uint64_t max_bytes,
                       size_t max_trailer_bytes) {
  reset();
  kind_ = framing.kind;
  left_ = framing.length;
  finished_ = kind_ == MessageFraming::Kind::kNone;
  max_bytes_ = max_bytes;
  max_trailer_bytes_ = max_trailer_bytes;
  inbox_ = &inbox;
  floor_ = inbox.begin;
}

void BodyReader::reset() {
  if (kind_ == MessageFraming::Kind::kChunked) chunks_.reset();
  kind_ = MessageFraming::Kind::kNone;
  finished_ = true;
  overran_ = false;
  left_ = given_ = 0;
  large_.reset();
  large_begin_ = large_end_ = 0;
  whole_.reset();
  whole_size_ = whole_room_ = whole_total_ = 0;
  budget_ = nullptr;
  whole_in_place_ = {};
}

BodyReader::Step BodyReader::next(BodyPiece& piece) {
  piece = BodyPiece{{}, finished_};
  if (finished_) return Step::kPiece;
  if (kind_ == MessageFraming::Kind::kLength && left_ > max_bytes_ - std::min(given_, max_bytes_))
    return Step::kTooLarge;
  const bool in_large = large_begin_ != large_end_;
  char* data = in_large ? large_.data() + large_begin_ : inbox_->data() + inbox_->begin;
  const size_t size = in_large ? large_end_ - large_begin_ : inbox_->pending();
  if (size == 0) return Step::kNeedMore;
  size_t consumed = size;
  switch (kind_) {
    case MessageFraming::Kind::kLength:
      consumed = static_cast<size_t>(std::min<uint64_t>(size, left_));
      left_ -= consumed;
      finished_ = left_ == 0;
      piece.data = std::string_view(data, consumed);
      break;
    case MessageFraming::Kind::kChunked: {
      const ChunkDecoder::Step step = chunks_.decode(data, size, max_trailer_bytes_);
      if (step.error) return Step::kMalformed;
      consumed = step.consumed;
      finished_ = step.done;
      piece.data = step.payload;
      break;
    }
    case MessageFraming::Kind::kUntilClose:
    case MessageFraming::Kind::kNone:
      piece.data = std::string_view(data, size);
      break;
  }
  (in_large ? large_begin_ : inbox_->begin) += consumed;
  given_ += piece.data.size();
  if (given_ > max_bytes_) return Step::kTooLarge;
  piece.last = finished_;
  if (finished_ && large_begin_ != large_end_) overran_ = true;
  return piece.data.empty() && !finished_ ? Step::kNeedMore : Step::kPiece;
}

ptrdiff_t BodyReader::receive(Socket& socket) {
  const bool large_body = kind_ == MessageFraming::Kind::kLength && left_ > kLargeBody;
  if (!large_body && !large_) {
    inbox_->begin = inbox_->end = floor_;
    if (inbox_->room() >= kLeastRoom) {
      const ptrdiff_t got = socket.try_read(inbox_->data() + inbox_->end, inbox_->room());
      if (got > 0) inbox_->end += static_cast<size_t>(got);
      return got;
    }
  }
  if (!large_)
    large_ = Buffer(large_body ? static_cast<size_t>(std::min<uint64_t>(left_, kLargePiece)) : kStreamPiece);
  size_t want = large_.capacity();
  if (kind_ == MessageFraming::Kind::kLength) want = static_cast<size_t>(std::min<uint64_t>(want, left_));
  large_begin_ = large_end_ = 0;
  const ptrdiff_t got = socket.try_read(large_.data(), want);
  if (got > 0) large_end_ = static_cast<size_t>(got);
  return got;
}

bool BodyReader::end_of_stream() {
  if (kind_ != MessageFraming::Kind::kUntilClose) return false;
  finished_ = true;
  return true;
}

bool BodyReader::reserve_whole(size_t bytes) {
  if (bytes <= whole_room_) return true;
  size_t room = bytes;
  if (kind_ != MessageFraming::Kind::kLength) {
    room = std::max(bytes, 2 * whole_room_);
  } else if (budget_ != nullptr) {
    // Not more than was declared, and not all of it on the strength of a declaration.
    room = std::min(whole_total_, std::max(kFirstRoom, kRoomFactor * bytes));
  } else {
    room = whole_total_;
  }
  if (!hold(room + large_.capacity())) return false;
  whole_room_ = room;
  if (whole_ && whole_.capacity() >= room) return true;
  Buffer larger(room);
  if (whole_size_ != 0) std::memcpy(larger.data(), whole_.data(), whole_size_);
  whole_ = std::move(larger);
  return true;
}

BodyReader::Step BodyReader::begin_whole(size_t limit, BodyBudget* budget) {
  if (finished_) return Step::kPiece;
  budget_ = budget;
  if (kind_ == MessageFraming::Kind::kLength) {
    if (left_ > limit || left_ > max_bytes_) return Step::kTooLarge;
    const auto total = static_cast<size_t>(left_);
    whole_total_ = total;
    if (large_begin_ == large_end_ && inbox_->pending() >= total) {
      if (!hold(total)) return Step::kNoRoom;
      whole_in_place_ = std::span<char>(inbox_->data() + inbox_->begin, total);
      inbox_->begin += total;
      left_ = 0;
      given_ += total;
      finished_ = true;
      return Step::kPiece;
    }
  }
  return check_whole(limit);
}

BodyReader::Step BodyReader::check_whole(size_t limit) {
  BodyPiece piece;
  while (!finished_) {
    const Step step = next(piece);
    if (step == Step::kNeedMore || step == Step::kMalformed || step == Step::kTooLarge) return step;
    if (whole_size_ + piece.data.size() > limit) return Step::kTooLarge;
    if (!piece.data.empty()) {
      if (!reserve_whole(whole_size_ + piece.data.size())) return Step::kNoRoom;
      std::memcpy(whole_.data() + whole_size_, piece.data.data(), piece.data.size());
      whole_size_ += piece.data.size();
    }
  }
  return Step::kPiece;
}

ptrdiff_t BodyReader::receive_whole(Socket& socket) {
  if (kind_ != MessageFraming::Kind::kLength) {
    if (!large_ && !hold(whole_room_ + kStreamPiece)) return kNoMemory;
    return receive(socket);
  }
  if (whole_size_ == whole_room_ && !reserve_whole(whole_size_ + 1)) return kNoMemory;
  const size_t want = std::min(static_cast<size_t>(left_), whole_room_ - whole_size_);
  const ptrdiff_t got = socket.try_read(whole_.data() + whole_size_, want);
  if (got > 0) {
    whole_size_ += static_cast<size_t>(got);
    given_ += static_cast<size_t>(got);
    left_ -= static_cast<uint64_t>(got);
    finished_ = left_ == 0;
  }
  return got;
}

void BodyReader::rest_whole() {
  if (budget_ == nullptr || whole_size_ != 0) return;
  whole_.reset();
  whole_room_ = 0;
  if (large_begin_ == large_end_) large_.reset();
  (void)hold(large_.capacity());
}

std::span<char> BodyReader::take_whole() {
  if (!whole_in_place_.empty()) return whole_in_place_;
  if (!whole_) whole_ = Buffer(1);
  if (large_ && large_begin_ == large_end_) {
    large_.reset();
    (void)hold(whole_room_);
  }
  return {whole_.data(), whole_size_};
}

// --- MessageWriter ---

namespace {
constexpr size_t kKept = 4096;  // bytes of a message's memory that its connection keeps
}

void MessageWriter::start(Kind kind, uint64_t length, bool drop_body) {
  kind_ = kind;
  left_ = length;
  drop_body_ = drop_body;
  started_ = true;
}

void MessageWriter::reset() {
  if (out_.capacity() > kKept) out_ = std::string();
  out_.clear();
  kind_ = Kind::kNone;
  drop_body_ = started_ = ended_ = anything_sent_ = false;
  left_ = 0;
}

Status MessageWriter::note(std::span<const std::string_view> pieces, bool end) {
  uint64_t total = 0;
  for (const std::string_view piece : pieces) total += piece.size();
  if (!started_) return Error{ErrorCode::kInternal, "a body without a head"};
  if (ended_) return Error{ErrorCode::kInternal, "a message was written to after its end"};
  if (kind_ == Kind::kLength) {
    if (total > left_) return Error{ErrorCode::kInternal, "a body is longer than its content-length"};
    left_ -= total;
    if (end && left_ != 0 && !drop_body_)
      return Error{ErrorCode::kInternal, "a body is shorter than its content-length"};
  } else if (kind_ == Kind::kNone && total != 0 && !drop_body_) {
    return Error{ErrorCode::kInternal, "a body was written to a message that has none"};
  }
  if (end) ended_ = true;
  return {};
}

Task<Status> MessageWriter::send(Socket& socket, std::span<const std::string_view> pieces, bool end,
                                 std::span<const HeaderField> trailers, Duration timeout, CancelToken token,
                                 Owner& owner) {
  constexpr size_t kBatch = 60;
  // One short piece costs the kernel less than several, by more than it costs us to put them together.
  constexpr size_t kJoined = 2048;
  const auto failed = [&owner](Error error) {
    owner.send_failed(error);
    return error;
  };
  Status status = note(pieces, end);
  if (!status.ok()) co_return failed(std::move(status).error());
  if (drop_body_) pieces = {};

  std::array<iovec, kBatch + 2> vectors;
  do {
    const size_t batch = std::min(pieces.size(), kBatch);
    size_t bytes = 0;
    for (size_t i = 0; i < batch; ++i) bytes += pieces[i].size();
    const bool last = batch == pieces.size();
    const bool chunk = kind_ == Kind::kChunked && bytes != 0;
    if (chunk) append_chunk_size(out_, bytes);
    std::string_view tail = chunk ? "\r\n" : "";
    if (last && end && kind_ == Kind::kChunked && !drop_body_) {
      tail = chunk ? "\r\n0\r\n\r\n" : "0\r\n\r\n";
      if (!trailers.empty()) {
        bool unused = false;
        tail_ = chunk ? "\r\n0\r\n" : "0\r\n";
        if (!append_fields(tail_, trailers, unused, unused))
          co_return failed(Error{ErrorCode::kInternal, "a trailer field has an invalid name or value"});
        tail_ += "\r\n";
        tail = tail_;
      }
    }
    size_t count = 0;
    size_t wanted = out_.size() + bytes + tail.size();
    if (wanted <= kJoined) {
      out_.reserve(wanted);
      for (size_t i = 0; i < batch; ++i) out_ += pieces[i];
      out_ += tail;
      tail = {};
    }
    if (!out_.empty()) vectors[count++] = {out_.data(), out_.size()};
    for (size_t i = 0; i < batch && wanted > kJoined; ++i)
      if (!pieces[i].empty()) vectors[count++] = {const_cast<char*>(pieces[i].data()), pieces[i].size()};
    if (!tail.empty()) vectors[count++] = {const_cast<char*>(tail.data()), tail.size()};
    pieces = pieces.subspan(batch);
    if (count == 0) break;

    const ptrdiff_t sent = co_await socket.write_soon(vectors.data(), count);
    if (sent == Socket::kFailed) co_return failed(Error{ErrorCode::kIo, "write: " + socket.error_text()});
    if (sent > 0) anything_sent_ = true;
    if (sent < 0 || static_cast<size_t>(sent) < wanted) {
      std::span<iovec> rest(vectors.data(), count);
      size_t skip = sent > 0 ? static_cast<size_t>(sent) : 0;
      while (skip >= rest.front().iov_len) {
        skip -= rest.front().iov_len;
        rest = rest.subspan(1);
      }
      rest.front().iov_base = static_cast<char*>(rest.front().iov_base) + skip;
      rest.front().iov_len -= skip;
      status = co_await send_rest(socket, rest, timeout, token, owner);
      if (!status.ok()) co_return failed(std::move(status).error());
    }
    out_.clear();
  } while (!pieces.empty());
  co_return Status();
}

Task<Status> MessageWriter::send_rest(Socket& socket, std::span<iovec> rest, Duration timeout,
                                      const CancelToken& token, Owner& owner) {
  Turn turn;
  while (!rest.empty()) {
    ptrdiff_t sent = socket.try_write(rest.data(), rest.size());
    if (sent == Socket::kFailed) co_return Error{ErrorCode::kIo, "write: " + socket.error_text()};
    if (sent == Socket::kWouldBlock) {
      if (owner.interrupted()) co_return Error{ErrorCode::kCancelled, "write: the peer has answered"};
      const Wait::Outcome outcome = co_await socket.writable(timeout, token);
      if (outcome != Wait::Outcome::kReady) co_return status_of(outcome, ErrorCode::kRequestTimeout, "write");
      turn.restart();
      continue;
    }
    anything_sent_ = true;
    const bool owes_turn = turn.spend(static_cast<size_t>(sent));
    while (sent > 0) {
      iovec& front = rest.front();
      const size_t take = std::min(front.iov_len, static_cast<size_t>(sent));
      front.iov_base = static_cast<char*>(front.iov_base) + take;
      front.iov_len -= take;
      sent -= static_cast<ptrdiff_t>(take);
      if (front.iov_len == 0) rest = rest.subspan(1);
    }
    if (owes_turn && !rest.empty()) co_await socket.loop().yield();
  }
  co_return Status();
}

}  // namespace penstock::io::detail
