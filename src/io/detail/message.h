#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "io/detail/http1_codec.h"
#include "io/detail/memory.h"
#include "io/detail/socket.h"
#include "io/http.h"

namespace penstock::io::detail {

// Bytes received on a connection. data[0, begin) is consumed (the head in use lies there, with views into
// it), data[begin, end) is not.
struct Inbox {
  static constexpr size_t kBytes = 32 * 1024 - kBodyPadding;

  Buffer buffer;
  size_t begin = 0;
  size_t end = 0;

  char* data() const { return buffer.data(); }
  size_t pending() const { return end - begin; }
  size_t room() const { return buffer.capacity() - end; }
  // Nothing of the consumed part is in use any more: what is pending moves to the front.
  void compact();
  void release() {
    buffer.reset();
    begin = end = 0;
  }
  // More room for a head that doesn't fit, up to about `limit`; false when there is none. Moves the bytes.
  bool grow(size_t limit);
};

// The body of a received message: takes the framing out of what an Inbox holds and the socket gives.
// Small bodies are used where they lie; a body of known large size is received in pieces of up to 256 KiB,
// or, for read_all, straight into its final memory.
class BodyReader {
 public:
  enum class Step : uint8_t { kPiece, kNeedMore, kMalformed, kTooLarge, kNoRoom };

  // `inbox` holds the bytes after the head; it must stay in place until the message ends.
  void start(const MessageFraming& framing, Inbox& inbox, uint64_t max_bytes, size_t max_trailer_bytes);
  void reset();

  // The next piece of what is there. Invalidates the piece before.
  Step next(BodyPiece& piece);
  // One try to receive after kNeedMore; Socket's results.
  ptrdiff_t receive(Socket& socket);
  // The peer has ended: fine (kPiece) for bodies delimited by closing only.
  bool end_of_stream();

  // All of the body has been given out.
  bool finished() const { return finished_; }
  // All of it has been received, though perhaps not yet read.
  bool received() const {
    return finished_ || (kind_ == MessageFraming::Kind::kLength && inbox_->pending() >= left_ &&
                         large_begin_ == large_end_);
  }
  uint64_t left() const { return left_; }
  MessageFraming::Kind kind() const { return kind_; }
  // Bytes of the next message were dropped: the connection can't go on.
  bool overran() const { return overran_; }
  HeaderFields trailers() const { return chunks_.trailers(); }

  // read_all in steps: begin_whole() says whether the body is there already; else receive_whole() and
  // check_whole() until it is, and take_whole(). Before waiting: rest_whole().
  Step begin_whole(size_t limit, BodyBudget* budget);
  // Socket's results; kNoMemory when the budget refuses.
  static constexpr ptrdiff_t kNoMemory = -3;
  ptrdiff_t receive_whole(Socket& socket);
  Step check_whole(size_t limit);
  void rest_whole();
  std::span<char> take_whole();

 private:
  // Room for this many bytes in all. False: the budget refuses.
  bool reserve_whole(size_t bytes);
  bool hold(uint64_t bytes) { return budget_ == nullptr || budget_->hold(bytes); }

  MessageFraming::Kind kind_ = MessageFraming::Kind::kNone;
  bool finished_ = true;
  bool overran_ = false;
  uint64_t left_ = 0;   // of a kLength body
  uint64_t given_ = 0;  // of any body
  uint64_t max_bytes_ = 0;
  size_t max_trailer_bytes_ = 0;
  Inbox* inbox_ = nullptr;
  size_t floor_ = 0;  // the inbox is free for receiving from here on
  ChunkDecoder chunks_;
  Buffer large_;
  size_t large_begin_ = 0;
  size_t large_end_ = 0;
  Buffer whole_;
  size_t whole_size_ = 0;
  size_t whole_room_ = 0;   // asked of the buffer, which rounds up
  size_t whole_total_ = 0;  // declared
  BodyBudget* budget_ = nullptr;
  std::span<char> whole_in_place_;
};

// Sends a message: queued head, body framing, and pieces leave together.
class MessageWriter {
 public:
  enum class Kind : uint8_t { kNone, kLength, kChunked, kUntilClose };
  // Whose messages these are.
  struct Owner {
    // Asked when the socket has no room: true gives up sending (the peer has answered).
    virtual bool interrupted() { return false; }
    // Sending failed; what becomes of the error is the owner's to say.
    virtual void send_failed(Error&) {}

   protected:
    ~Owner() = default;
  };

  // Where the head is composed; leaves with the next send().
  std::string& out() { return out_; }
  // `drop_body`: pieces are counted, not sent.
  void start(Kind kind, uint64_t length, bool drop_body);
  bool started() const { return started_; }
  bool ended() const { return ended_; }
  bool anything_sent() const { return anything_sent_; }
  void reset();

  // kInternal for a length that doesn't fit, kIo, kRequestTimeout, kCancelled.
  Task<Status> send(Socket& socket, std::span<const std::string_view> pieces, bool end,
                    std::span<const HeaderField> trailers, Duration timeout, CancelToken token, Owner& owner);

 private:
  // Takes the pieces into account, and the end.
  Status note(std::span<const std::string_view> pieces, bool end);
  Task<Status> send_rest(Socket& socket, std::span<iovec> rest, Duration timeout, const CancelToken& token,
                         Owner& owner);

  std::string out_;
  std::string tail_;
  Kind kind_ = Kind::kNone;
  bool drop_body_ = false;
  bool started_ = false;
  bool ended_ = false;
  bool anything_sent_ = false;
  uint64_t left_ = 0;
};

}  // namespace penstock::io::detail
