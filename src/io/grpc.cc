#include "io/grpc.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <typeinfo>

#include "base/escapes.h"
#include "base/strings.h"
#include "io/detail/http2_server.h"
#include "io/detail/memory.h"

namespace penstock::io {
namespace {

constexpr size_t kPrefixBytes = 5;
// What a buffer is made for at most before its bytes have come: 64 KiB, as bodies are often cut, and what is
// around them. With less, each such message would be moved once as it comes.
constexpr size_t kTrustedLength = 72UL * 1024;
// Of a message that was assembled or unpacked, while its stream waits for the next.
constexpr size_t kKeptCapacity = 4UL * 1024;

constexpr std::array<std::string_view, 17> kCodeNames = {
    "OK",        "CANCELLED",       "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS",  "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",    "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED",
};
constexpr std::array<std::string_view, 17> kCodeNumbers = {"0", "1",  "2",  "3",  "4",  "5",  "6",  "7", "8",
                                                           "9", "10", "11", "12", "13", "14", "15", "16"};

size_t length_of(const unsigned char* prefix) {
  return static_cast<size_t>(prefix[1]) << 24U | static_cast<size_t>(prefix[2]) << 16U |
         static_cast<size_t>(prefix[3]) << 8U | prefix[4];
}

void write_prefix(char* out, size_t length) {
  out[0] = 0;
  out[1] = static_cast<char>(length >> 24U);
  out[2] = static_cast<char>(length >> 16U);
  out[3] = static_cast<char>(length >> 8U);
  out[4] = static_cast<char>(length);
}

Error too_large(size_t bytes, size_t limit) {
  return {ErrorCode::kPayloadTooLarge, "a message of " + std::to_string(bytes) +
                                           " bytes is larger than the limit of " + std::to_string(limit)};
}

// Prefixes and pieces of some messages in the order they are sent. Few of them need no heap.
class Frames {
 public:
  // Nothing of it is kept by an error.
  Status add(GrpcPieces pieces, size_t limit) {
    size_t length = 0;
    for (std::string_view piece : pieces) length += piece.size();
    if (length > limit) return too_large(length, limit);
    char* prefix = next_prefix();
    write_prefix(prefix, length);
    push({prefix, kPrefixBytes});
    for (std::string_view piece : pieces) {
      if (!piece.empty()) push(piece);
    }
    return {};
  }
  GrpcPieces all() const { return more_.empty() ? GrpcPieces(few_.data(), count_) : GrpcPieces(more_); }

 private:
  char* next_prefix() {
    if (prefixes_ < kFewPrefixes) return few_prefixes_.data() + kPrefixBytes * prefixes_++;
    return more_prefixes_.emplace_back(std::make_unique<char[]>(kPrefixBytes)).get();
  }
  void push(std::string_view piece) {
    if (more_.empty() && count_ < few_.size()) {
      few_[count_++] = piece;
      return;
    }
    if (more_.empty()) more_.assign(few_.begin(), few_.end());
    more_.push_back(piece);
  }

  static constexpr size_t kFewPrefixes = 4;
  std::array<char, kPrefixBytes * kFewPrefixes> few_prefixes_;
  size_t prefixes_ = 0;
  std::array<std::string_view, 16> few_;
  size_t count_ = 0;
  std::vector<std::string_view> more_;
  std::vector<std::unique_ptr<char[]>> more_prefixes_;
};

// "application/grpc", "application/grpc+proto", with or without parameters. Other codecs are not for us.
bool is_grpc_content_type(std::string_view type) {
  constexpr std::string_view kType = "application/grpc";
  if (type.size() < kType.size() || !ascii_iequals(type.substr(0, kType.size()), kType)) return false;
  std::string_view rest = type.substr(kType.size());
  if (const size_t semicolon = rest.find(';'); semicolon != rest.npos) rest = rest.substr(0, semicolon);
  rest = trim(rest);
  return rest.empty() || ascii_iequals(rest, "+proto");
}

GrpcFrameDecoder::Encoding encoding_of(std::string_view grpc_encoding) {
  if (grpc_encoding.empty() || ascii_iequals(grpc_encoding, "identity"))
    return GrpcFrameDecoder::Encoding::kIdentity;
  if (ascii_iequals(grpc_encoding, "gzip")) return GrpcFrameDecoder::Encoding::kGzip;
  return GrpcFrameDecoder::Encoding::kUnsupported;
}

GrpcCode code_of_http_status(int status) {
  switch (status) {
    case 400:
      return GrpcCode::kInternal;
    case 401:
      return GrpcCode::kUnauthenticated;
    case 403:
      return GrpcCode::kPermissionDenied;
    case 404:
      return GrpcCode::kUnimplemented;
    case 429:
    case 502:
    case 503:
    case 504:
      return GrpcCode::kUnavailable;
    default:
      return GrpcCode::kUnknown;
  }
}

}  // namespace

std::string_view grpc_code_name(GrpcCode code) {
  const auto index = static_cast<size_t>(code);
  return index < kCodeNames.size() ? kCodeNames[index] : "UNKNOWN";
}

GrpcStatus grpc_status_of(const Error& error) {
  GrpcCode code = GrpcCode::kUnknown;
  switch (error.code) {
    case ErrorCode::kBadRequest:
    case ErrorCode::kUnsupportedMedia:
      code = GrpcCode::kInvalidArgument;
      break;
    case ErrorCode::kUnauthorized:
      code = GrpcCode::kUnauthenticated;
      break;
    case ErrorCode::kForbidden:
      code = GrpcCode::kPermissionDenied;
      break;
    case ErrorCode::kNotFound:
      code = GrpcCode::kNotFound;
      break;
    case ErrorCode::kMethodNotAllowed:
    case ErrorCode::kNotImplemented:
      code = GrpcCode::kUnimplemented;
      break;
    case ErrorCode::kRequestTimeout:
    case ErrorCode::kGatewayTimeout:
      code = GrpcCode::kDeadlineExceeded;
      break;
    case ErrorCode::kPreconditionFailed:
      code = GrpcCode::kFailedPrecondition;
      break;
    case ErrorCode::kPayloadTooLarge:
    case ErrorCode::kHeadersTooLarge:
    case ErrorCode::kResourceExhausted:
      code = GrpcCode::kResourceExhausted;
      break;
    case ErrorCode::kClientClosed:
    case ErrorCode::kCancelled:
      code = GrpcCode::kCancelled;
      break;
    case ErrorCode::kInternal:
    case ErrorCode::kInvalidConfig:
      code = GrpcCode::kInternal;
      break;
    case ErrorCode::kBadGateway:
    case ErrorCode::kServiceUnavailable:
    case ErrorCode::kIo:
      code = GrpcCode::kUnavailable;
      break;
  }
  return {code, error.message};
}

std::string grpc_encode_message(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  const auto plain = [](char c) { return c >= 0x20 && c <= 0x7e && c != '%'; };
  if (std::all_of(text.begin(), text.end(), plain)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (plain(c)) {
      out.push_back(c);
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out.push_back('%');
      out.push_back(kDigits[byte >> 4U]);
      out.push_back(kDigits[byte & 15U]);
    }
  }
  return out;
}

std::optional<Duration> parse_grpc_timeout(std::string_view text) {
  if (text.size() < 2 || text.size() > 9) return std::nullopt;
  const std::optional<uint64_t> number = parse_u64(text.substr(0, text.size() - 1));
  if (!number) return std::nullopt;
  const auto count = static_cast<int64_t>(*number);
  switch (text.back()) {
    case 'H':
      // Eight digits of hours are more than the clock counts.
      return std::chrono::hours(std::min<int64_t>(count, 24L * 365 * 100));
    case 'M':
      return std::chrono::minutes(std::min<int64_t>(count, 60L * 24 * 365 * 100));
    case 'S':
      return std::chrono::seconds(count);
    case 'm':
      return std::chrono::milliseconds(count);
    case 'u':
      return std::chrono::microseconds(count);
    case 'n':
      return std::chrono::nanoseconds(count);
    default:
      return std::nullopt;
  }
}

std::string format_grpc_timeout(Duration timeout) {
  constexpr int64_t kLargest = 99'999'999;
  int64_t count = std::max<int64_t>(std::chrono::nanoseconds(timeout).count(), 0);
  struct Unit {
    char letter;
    int64_t of_the_next;
  };
  // Rounded up, so that the server's deadline is not the earlier one.
  for (const Unit unit : {Unit{'n', 1000}, {'u', 1000}, {'m', 1000}, {'S', 60}, {'M', 60}}) {
    if (count <= kLargest) return std::to_string(count) + unit.letter;
    count = (count + unit.of_the_next - 1) / unit.of_the_next;
  }
  return std::to_string(std::min(count, kLargest)) + 'H';
}

// --- GrpcFrameDecoder ---

struct GrpcFrameDecoder::Inflater {
  Inflater() {
    constexpr int kGzipOnly = 15 + 16;
    usable = inflateInit2(&stream, kGzipOnly) == Z_OK;
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() {
    if (usable) inflateEnd(&stream);
  }

  // The plain bytes, valid until the next call.
  Result<std::string_view> inflate_all(std::string_view compressed, size_t limit) {
    if (!usable || inflateReset(&stream) != Z_OK) return Error{ErrorCode::kInternal, "gzip: out of memory"};
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
    stream.avail_in = static_cast<uInt>(compressed.size());
    size_t have = 0;
    for (;;) {
      // One byte more than the limit tells what is too large from what just fits.
      if (have == out.size()) {
        const size_t wanted = std::max({out.size() * 2, compressed.size() * 4, size_t{1024}});
        out.resize(std::min(wanted, limit + 1));
      }
      stream.next_out = reinterpret_cast<Bytef*>(out.data() + have);
      stream.avail_out = static_cast<uInt>(out.size() - have);
      const int rc = inflate(&stream, Z_NO_FLUSH);
      have = out.size() - stream.avail_out;
      if (have > limit) return too_large(have, limit);
      if (rc == Z_STREAM_END) break;
      // More room may help only while there was none.
      if (rc != Z_OK || stream.avail_out != 0) {
        return Error{ErrorCode::kInternal, "a compressed message is no whole gzip stream"};
      }
    }
    if (stream.avail_in != 0)
      return Error{ErrorCode::kInternal, "bytes follow the gzip stream of a compressed message"};
    return std::string_view(out.data(), have);
  }

  void shrink() {
    if (out.capacity() > kKeptCapacity) std::string().swap(out);
  }

  z_stream stream{};
  bool usable = false;
  std::string out;
};

GrpcFrameDecoder::GrpcFrameDecoder(size_t max_message_bytes, Encoding encoding)
    : max_message_bytes_(std::min<size_t>(max_message_bytes, UINT32_MAX - 1)), encoding_(encoding) {}
GrpcFrameDecoder::~GrpcFrameDecoder() = default;

Status GrpcFrameDecoder::accept_prefix(const unsigned char* prefix) {
  if (prefix[0] > 1) return Error{ErrorCode::kInternal, "a message begins with an unknown compression flag"};
  compressed_ = prefix[0] == 1;
  if (compressed_ && encoding_ == Encoding::kIdentity)
    return Error{ErrorCode::kInternal, "a message is compressed, but grpc-encoding names no compression"};
  if (compressed_ && encoding_ == Encoding::kUnsupported)
    return Error{ErrorCode::kNotImplemented, "messages may be compressed with gzip only"};
  length_ = length_of(prefix);
  if (length_ > max_message_bytes_) return too_large(length_, max_message_bytes_);
  return {};
}

Result<std::optional<std::string_view>> GrpcFrameDecoder::give(std::string_view payload) {
  if (!compressed_) return std::optional<std::string_view>(payload);
  if (!inflater_) inflater_ = std::make_unique<Inflater>();
  Result<std::string_view> plain = inflater_->inflate_all(payload, max_message_bytes_);
  if (!plain.ok()) return std::move(plain).error();
  return std::optional<std::string_view>(*plain);
}

Result<std::optional<std::string_view>> GrpcFrameDecoder::next() {
  // The former message is done with. A stream that waits for its next one keeps nothing of its size.
  if (!assembling_ && (rest_.empty() || buffer_.capacity() > kTrustedLength)) {
    if (buffer_.capacity() > kKeptCapacity) std::string().swap(buffer_);
    if (inflater_) inflater_->shrink();
  }
  if (!assembling_) {
    std::array<unsigned char, kPrefixBytes> prefix;
    if (prefix_size_ + rest_.size() < kPrefixBytes) {
      std::copy(rest_.begin(), rest_.end(), prefix_ + prefix_size_);
      prefix_size_ += static_cast<uint8_t>(rest_.size());
      rest_ = {};
      return std::optional<std::string_view>();
    }
    std::copy_n(prefix_, prefix_size_, prefix.data());
    std::copy_n(rest_.data(), kPrefixBytes - prefix_size_, prefix.data() + prefix_size_);
    rest_.remove_prefix(kPrefixBytes - prefix_size_);
    prefix_size_ = 0;
    if (Status status = accept_prefix(prefix.data()); !status.ok()) return std::move(status).error();
    if (rest_.size() >= length_) {
      const std::string_view payload = rest_.substr(0, length_);
      rest_.remove_prefix(length_);
      return give(payload);
    }
    buffer_.clear();
    buffer_.reserve(std::min(length_, std::max(kTrustedLength, rest_.size())));
    assembling_ = true;
  }
  const size_t wanted = std::min(length_ - buffer_.size(), rest_.size());
  buffer_.append(rest_.substr(0, wanted));
  rest_.remove_prefix(wanted);
  if (buffer_.size() < length_) return std::optional<std::string_view>();
  assembling_ = false;
  return give(buffer_);
}

size_t GrpcFrameDecoder::held_bytes() const {
  return buffer_.capacity() + (inflater_ ? inflater_->out.capacity() : 0);
}

bool GrpcFrameDecoder::ready() const {
  if (assembling_) return rest_.size() >= length_ - buffer_.size();
  if (prefix_size_ + rest_.size() < kPrefixBytes) return false;
  std::array<unsigned char, kPrefixBytes> prefix;
  std::copy_n(prefix_, prefix_size_, prefix.data());
  std::copy_n(rest_.data(), kPrefixBytes - prefix_size_, prefix.data() + prefix_size_);
  const size_t length = length_of(prefix.data());
  const bool refused = prefix[0] > 1 || (prefix[0] == 1 && encoding_ != Encoding::kGzip);
  return refused || length > max_message_bytes_ || rest_.size() - (kPrefixBytes - prefix_size_) >= length;
}

// --- GrpcServerStream ---

// Receives until a message is whole. It starts at once and ends at its last suspension point, where it hands
// over to the read that waits; from then on it may be destroyed, also by that read's coroutine.
struct GrpcServerStream::Pump {
  struct promise_type {
    explicit promise_type(GrpcServerStream& owner) : stream(owner) {}
    static void* operator new(size_t bytes) { return detail::allocate_frame(bytes); }
    static void operator delete(void* frame, size_t bytes) noexcept { detail::free_frame(frame, bytes); }

    struct Final {
      bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<promise_type> self) const noexcept {
        GrpcServerStream& stream = self.promise().stream;
        stream.pump_done_ = true;
        stream.wait_.complete(Wait::Outcome::kReady);
      }
      void await_resume() const noexcept {}
    };
    Pump get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    Final final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() { stream.failed_ = Error{ErrorCode::kInternal, "receiving a message failed"}; }

    GrpcServerStream& stream;
  };
  std::coroutine_handle<promise_type> handle;
};

struct GrpcServerStream::Deadline {
  explicit Deadline(HttpExchange& exchange) : timer(exchange.loop()) {
    source.follow(exchange.cancel_token());
  }
  CancelSource source;
  Timer timer;
};

GrpcServerStream::GrpcServerStream(HttpExchange& exchange, const GrpcOptions& options)
    : exchange_(exchange),
      http2_(typeid(exchange) == typeid(detail::Http2Exchange)
                 ? static_cast<detail::Http2Exchange*>(&exchange)
                 : nullptr),
      max_send_message_bytes_(std::min<size_t>(options.max_send_message_bytes, UINT32_MAX)),
      decoder_(options.max_receive_message_bytes,
               encoding_of(exchange.request().fields.get("grpc-encoding"))),
      wait_(exchange.loop()) {}

GrpcServerStream::~GrpcServerStream() {
  destroy_pump();
}

void GrpcServerStream::destroy_pump() {
  if (pump_) std::exchange(pump_, nullptr).destroy();
}

CancelToken GrpcServerStream::cancel_token() {
  return deadline_ ? deadline_->source.token() : exchange_.cancel_token();
}

void GrpcServerStream::arm_deadline(Duration timeout) {
  deadline_ = std::make_unique<Deadline>(exchange_);
  deadline_->timer.arm(std::max(timeout, Duration(1)), &GrpcServerStream::on_deadline, this);
}

void GrpcServerStream::on_deadline(void* self) {
  auto& stream = *static_cast<GrpcServerStream*>(self);
  if (stream.finished_) return;
  stream.deadline_passed_ = true;
  // A client that takes nothing can't be told.
  if (stream.writing_) stream.exchange_.abort();
  stream.wait_.complete_later(Wait::Outcome::kCancelled);
  stream.deadline_->source.cancel();
}

GrpcServerStream::Pump GrpcServerStream::receive() {
  while (http2_ != nullptr) {
    const Wait::Outcome outcome = co_await http2_->read_later();
    if (outcome != Wait::Outcome::kReady) failed_ = http2_->read_error(outcome);
    if (failed_ || receive_there()) co_return;
  }
  while (!last_piece_seen_) {
    Result<BodyPiece> piece = co_await exchange_.read();
    if (!piece.ok()) {
      failed_ = std::move(piece).error();
      break;
    }
    last_piece_seen_ = piece->last;
    decoder_.feed(piece->data);
    if (try_next()) break;
  }
}

bool GrpcServerStream::try_next() {
  Read message = decoder_.next();
  if (!message.ok()) {
    failed_ = std::move(message).error();
    return true;
  }
  if (!message->has_value()) return false;
  result_.emplace(std::move(message));
  ++messages_received_;
  return true;
}

bool GrpcServerStream::receive_there() {
  while (!last_piece_seen_) {
    std::optional<Result<BodyPiece>> piece = http2_->read_there();
    if (!piece) return false;
    if (!piece->ok()) {
      failed_ = std::move(*piece).error();
      return true;
    }
    last_piece_seen_ = (*piece)->last;
    decoder_.feed((*piece)->data);
    if (try_next()) return true;
  }
  return true;
}

bool GrpcServerStream::gone() const {
  return http2_ != nullptr && http2_->gone();
}

bool GrpcServerStream::message_ready() const {
  if (!pump_done_) return false;
  return result_.has_value() || failed_.has_value() || last_piece_seen_ || deadline_passed_ ||
         decoder_.ready();
}

bool GrpcServerStream::ReadAwaiter::await_ready() {
  GrpcServerStream& stream = stream_;
  if (stream.deadline_passed_) return true;
  if (!stream.pump_done_) return false;
  // What came after a read had given up waiting is the first to go.
  if (stream.result_ || stream.failed_ || stream.try_next() || stream.last_piece_seen_) return true;
  if (stream.http2_ != nullptr && stream.receive_there()) return true;
  stream.destroy_pump();
  stream.pump_done_ = false;
  stream.pump_ = stream.receive().handle;
  stream.pump_.resume();
  return stream.pump_done_;
}

void GrpcServerStream::ReadAwaiter::await_suspend(std::coroutine_handle<> handle) {
  stream_.wait_.start(handle, timeout_, token_);
}

GrpcServerStream::Read GrpcServerStream::ReadAwaiter::await_resume() {
  const Wait::Outcome outcome = stream_.wait_.outcome();
  stream_.wait_.rearm();
  if (stream_.deadline_passed_) return Error{ErrorCode::kRequestTimeout, "the call's deadline has passed"};
  if (!stream_.pump_done_)
    return status_of(outcome, ErrorCode::kRequestTimeout, "waiting for a message").error();
  return stream_.take_result();
}

GrpcServerStream::Read GrpcServerStream::take_result() {
  if (result_) {
    Read message = std::move(*result_);
    result_.reset();
    return message;
  }
  if (failed_) return *failed_;
  assert(last_piece_seen_);
  if (!decoder_.at_boundary()) {
    failed_ = Error{ErrorCode::kInternal, "the client half-closed inside a message"};
    return *failed_;
  }
  return std::optional<std::string_view>();
}

namespace {

constexpr HeaderField kContentType{"content-type", "application/grpc"};
constexpr HeaderField kAcceptEncoding{"grpc-accept-encoding", "identity,gzip"};

Status write_grpc_head(HttpExchange& exchange) {
  constexpr std::array<HeaderField, 2> kFields = {kContentType, kAcceptEncoding};
  return exchange.write_head(200, kFields, BodyFraming::chunked());
}

}  // namespace

Task<Status> GrpcServerStream::send(GrpcPieces first, std::span<const GrpcPieces> more) {
  if (finished_) co_return Error{ErrorCode::kInternal, "a message after the end of the call"};
  Frames frames;
  Status status =
      first.data() != nullptr || more.empty() ? frames.add(first, max_send_message_bytes_) : Status{};
  for (const GrpcPieces message : more) {
    if (!status.ok()) break;
    status = frames.add(message, max_send_message_bytes_);
  }
  if (!status.ok()) co_return status;
  if (!exchange_.head_written()) {
    status = write_grpc_head(exchange_);
    if (!status.ok()) co_return status;
  }
  writing_ = true;
  status = co_await exchange_.write(frames.all());
  writing_ = false;
  if (status.ok()) messages_sent_ += more.empty() ? 1 : more.size();
  co_return status;
}

Task<Status> GrpcServerStream::write_message(GrpcPieces pieces) {
  return send(pieces, {});
}

Task<Status> GrpcServerStream::write_messages(std::span<const GrpcPieces> messages) {
  return send({}, messages);
}

std::optional<Status> GrpcServerStream::write_messages_there(std::span<const GrpcPieces> messages) {
  if (http2_ == nullptr) return std::nullopt;
  if (finished_) return Error{ErrorCode::kInternal, "a message after the end of the call"};
  Frames frames;
  for (const GrpcPieces message : messages) {
    if (Status status = frames.add(message, max_send_message_bytes_); !status.ok()) return status;
  }
  if (!http2_->head_written()) {
    if (Status status = write_grpc_head(exchange_); !status.ok()) return status;
  }
  std::optional<Status> sent = http2_->send_there(frames.all(), false, {});
  if (sent && sent->ok()) messages_sent_ += messages.size();
  return sent;
}

void GrpcServerStream::add_trailer(std::string_view name, std::string_view value) {
  trailers_.emplace_back(name, value);
}

Task<Status> GrpcServerStream::finish(GrpcStatus status, std::span<const GrpcPieces> messages) {
  if (finished_) co_return Error{ErrorCode::kInternal, "the call has ended already"};
  finished_ = true;
  Frames frames;
  for (const GrpcPieces message : messages) {
    Status added = frames.add(message, max_send_message_bytes_);
    if (added.ok()) continue;
    status = grpc_status_of(added.error());
    frames = Frames();
    break;
  }
  const bool trailers_only = !exchange_.head_written() && frames.all().empty();
  const std::string text = grpc_encode_message(status.message);
  std::vector<HeaderField> fields;
  fields.reserve(trailers_.size() + 4);
  if (trailers_only) {
    fields.push_back(kContentType);
    fields.push_back(kAcceptEncoding);
  }
  const auto code = std::min(static_cast<size_t>(status.code), kCodeNumbers.size() - 1);
  fields.push_back({"grpc-status", kCodeNumbers[code]});
  if (!text.empty()) fields.push_back({"grpc-message", text});
  for (const auto& [name, value] : trailers_) fields.push_back({name, value});

  if (trailers_only) {
    Status written = exchange_.write_head(200, fields, BodyFraming::none());
    if (!written.ok()) co_return written;
    co_return co_await exchange_.finish();
  }
  if (!exchange_.head_written()) {
    Status written = write_grpc_head(exchange_);
    if (!written.ok()) co_return written;
  }
  writing_ = true;
  Status ended = co_await exchange_.finish(frames.all(), fields);
  writing_ = false;
  co_return ended;
}

// --- GrpcRouter ---

void GrpcRouter::add(std::string path, GrpcMethod method) {
  methods_.emplace_back(std::move(path), std::move(method));
}

namespace {

Task<GrpcStatus> call_unary(const GrpcUnaryMethod& method, GrpcServerStream& stream) {
  GrpcServerStream::Read request = co_await stream.read_message();
  if (!request.ok()) co_return grpc_status_of(request.error());
  if (!request->has_value()) co_return GrpcStatus(GrpcCode::kInternal, "a unary call without a message");
  // Reading on, for the half-close, would end the message's life.
  std::string response;
  GrpcStatus status = co_await method(stream, **request, response);
  if (!status.ok() || stream.finished()) co_return status;
  const std::string_view piece = response;
  const GrpcPieces message(&piece, 1);
  (void)co_await stream.finish(std::move(status), std::span<const GrpcPieces>(&message, 1));
  co_return GrpcStatus();
}

}  // namespace

void GrpcRouter::add_unary(std::string path, GrpcUnaryMethod method) {
  add(std::move(path),
      [method = std::move(method)](GrpcServerStream& stream) { return call_unary(method, stream); });
}

const GrpcMethod* GrpcRouter::find(std::string_view path) const {
  for (const auto& [name, method] : methods_)
    if (name == path) return &method;
  return nullptr;
}

Task<void> GrpcRouter::handle(HttpExchange& exchange) {
  const RequestHead& head = exchange.request();
  if (!is_grpc_content_type(head.fields.get("content-type"))) {
    if (fallback_) {
      co_await fallback_->handle(exchange);
    } else {
      (void)co_await exchange.respond(415, "text/plain",
                                      "This port speaks gRPC: content-type application/grpc\n");
    }
    co_return;
  }
  if (head.version != HttpVersion::kHttp2) {
    (void)co_await exchange.respond(505, "text/plain", "gRPC needs HTTP/2\n");
    co_return;
  }
  if (head.method != "POST") {
    const std::array<HeaderField, 1> allow = {HeaderField{"allow", "POST"}};
    (void)co_await exchange.respond(405, "text/plain", "gRPC calls are POST\n", allow);
    co_return;
  }
  GrpcServerStream stream(exchange, options_);
  const GrpcMethod* method = find(head.path);
  if (method == nullptr) {
    GrpcStatus unknown(GrpcCode::kUnimplemented, "unknown method " + std::string(head.path));
    (void)co_await stream.finish(std::move(unknown));
    co_return;
  }
  const std::string_view encoding = head.fields.get("grpc-encoding");
  if (encoding_of(encoding) == GrpcFrameDecoder::Encoding::kUnsupported) {
    GrpcStatus refused(GrpcCode::kUnimplemented,
                       "grpc-encoding " + std::string(encoding) + " is not supported");
    (void)co_await stream.finish(std::move(refused));
    co_return;
  }
  if (const std::optional<std::string_view> text = head.fields.find("grpc-timeout")) {
    const std::optional<Duration> timeout = parse_grpc_timeout(*text);
    if (!timeout) {
      GrpcStatus malformed(GrpcCode::kInternal, "malformed grpc-timeout");
      (void)co_await stream.finish(std::move(malformed));
      co_return;
    }
    stream.arm_deadline(*timeout);
  }
  GrpcStatus status = co_await (*method)(stream);
  if (stream.finished() || stream.gone()) co_return;
  if (stream.deadline_passed()) status = {GrpcCode::kDeadlineExceeded, "the call's deadline has passed"};
  (void)co_await stream.finish(std::move(status));
}

// --- client ---

struct GrpcClientStream::State {
  State(Loop& loop, const GrpcCallOptions& options)
      : decoder(options.max_receive_message_bytes), timer(loop) {
    if (options.token.can_cancel()) cancel.follow(options.token);
  }

  static void on_deadline(void* self) {
    auto& state = *static_cast<State*>(self);
    state.timed_out = true;
    state.cancel.cancel();
  }

  void end(GrpcStatus how) {
    if (ended) return;
    ended = true;
    timer.disarm();
    status = std::move(how);
  }
  void fail(const Error& error) {
    GrpcStatus how = grpc_status_of(error);
    if (timed_out) how = {GrpcCode::kDeadlineExceeded, "the call's deadline has passed"};
    end(std::move(how));
    call.break_off();  // not close(): a writer may be waiting in it
  }
  // The status among trailers or the fields of a Trailers-Only head; false: there is none.
  bool take_status(HeaderFields fields) {
    const std::optional<std::string_view> number = fields.find("grpc-status");
    if (!number) return false;
    for (const HeaderField& field : fields) trailers.emplace_back(field.name, field.value);
    const std::optional<uint64_t> code = parse_u64(*number);
    const bool known = code && *code < kCodeNames.size();
    end({known ? static_cast<GrpcCode>(*code) : GrpcCode::kUnknown,
         percent_decode(fields.get("grpc-message"))});
    return true;
  }
  Task<bool> take_head();

  CancelSource cancel;
  HttpCall call;
  GrpcFrameDecoder decoder;
  Timer timer;
  bool timed_out = false;
  bool have_head = false;
  bool last_piece_seen = false;
  bool ended = false;
  GrpcStatus status;
  std::vector<std::pair<std::string, std::string>> trailers;
};

// False: the call has ended.
Task<bool> GrpcClientStream::State::take_head() {
  Result<const ResponseHead*> head = co_await call.response();
  if (!head.ok()) {
    fail(head.error());
    co_return false;
  }
  have_head = true;
  const ResponseHead& response = **head;
  const bool is_grpc = is_grpc_content_type(response.fields.get("content-type"));
  if (response.fields.has("grpc-status")) {
    take_status(response.fields);
    co_return false;
  }
  if (response.status != 200) {
    end({code_of_http_status(response.status), "HTTP status " + std::to_string(response.status)});
    call.break_off();
    co_return false;
  }
  if (!is_grpc) {
    end({GrpcCode::kUnknown, "the answer's content-type is not application/grpc"});
    call.break_off();
    co_return false;
  }
  decoder.set_encoding(encoding_of(response.fields.get("grpc-encoding")));
  co_return true;
}

GrpcClientStream::GrpcClientStream(std::unique_ptr<State> state) : state_(std::move(state)) {}
GrpcClientStream::~GrpcClientStream() = default;

Task<Result<std::unique_ptr<GrpcClientStream>>> GrpcClientStream::open(HttpClient& client,
                                                                       const HttpDestination& to,
                                                                       std::string_view path,
                                                                       const GrpcCallOptions& options) {
  auto state = std::make_unique<State>(client.loop(), options);
  std::string timeout;
  std::vector<HeaderField> fields = {kContentType, {"te", "trailers"}, kAcceptEncoding};
  if (options.timeout > Duration::zero()) {
    timeout = format_grpc_timeout(options.timeout);
    fields.push_back({"grpc-timeout", timeout});
    state->timer.arm(options.timeout, &State::on_deadline, state.get());
  }
  fields.insert(fields.end(), options.metadata.begin(), options.metadata.end());
  HttpRequest request;
  request.method = "POST";
  request.target = path;
  request.fields = fields;
  request.framing = BodyFraming::chunked();
  request.complete = false;
  HttpCallOptions call_options;
  call_options.connect_timeout = options.connect_timeout;
  call_options.token = state->cancel.token();
  HttpDestination destination = to;
  destination.http2 = true;
  Result<HttpCall> call = co_await client.start(destination, request, call_options);
  if (!call.ok()) {
    if (state->timed_out) co_return Error{ErrorCode::kGatewayTimeout, "the call's deadline has passed"};
    co_return std::move(call).error();
  }
  state->call = std::move(*call);
  co_return std::unique_ptr<GrpcClientStream>(new GrpcClientStream(std::move(state)));
}

Task<Result<bool>> GrpcClientStream::write_message(GrpcPieces pieces) {
  if (state_->ended) co_return false;
  Frames frames;
  if (Status status = frames.add(pieces, UINT32_MAX); !status.ok()) co_return std::move(status).error();
  Result<HttpCall::Sent> sent = co_await state_->call.write(frames.all());
  if (!sent.ok()) co_return std::move(sent).error();
  co_return *sent == HttpCall::Sent::kAll;
}

Task<Result<bool>> GrpcClientStream::half_close() {
  if (state_->ended) co_return false;
  Result<HttpCall::Sent> sent = co_await state_->call.finish();
  if (!sent.ok()) co_return std::move(sent).error();
  co_return *sent == HttpCall::Sent::kAll;
}

Task<std::optional<std::string_view>> GrpcClientStream::read_message() {
  State& state = *state_;
  if (state.ended) co_return std::nullopt;
  if (!state.have_head && !co_await state.take_head()) co_return std::nullopt;
  for (;;) {
    Result<std::optional<std::string_view>> message = state.decoder.next();
    if (!message.ok()) {
      state.fail(message.error());
      co_return std::nullopt;
    }
    if (message->has_value()) co_return *message;
    if (state.last_piece_seen) {
      const bool whole = state.decoder.at_boundary();
      if (!state.take_status(state.call.trailers()))
        state.end({GrpcCode::kInternal, "the answer ended without grpc-status"});
      if (!whole && state.status.ok())
        state.status = {GrpcCode::kInternal, "the answer ended inside a message"};
      co_return std::nullopt;
    }
    Result<BodyPiece> piece = co_await state.call.read();
    if (!piece.ok()) {
      state.fail(piece.error());
      co_return std::nullopt;
    }
    state.last_piece_seen = piece->last;
    state.decoder.feed(piece->data);
  }
}

const GrpcStatus& GrpcClientStream::status() const {
  return state_->status;
}

std::string_view GrpcClientStream::trailer(std::string_view lower_name) const {
  for (const auto& [name, value] : state_->trailers)
    if (name == lower_name) return value;
  return {};
}

void GrpcClientStream::cancel() {
  state_->end({GrpcCode::kCancelled, "cancelled by the caller"});
  state_->call.break_off();
}

Task<GrpcReply> grpc_unary(HttpClient& client, const HttpDestination& to, std::string_view path,
                           GrpcPieces request, const GrpcCallOptions& options) {
  GrpcReply reply;
  Result<std::unique_ptr<GrpcClientStream>> opened =
      co_await GrpcClientStream::open(client, to, path, options);
  if (!opened.ok()) {
    reply.status = grpc_status_of(opened.error());
    co_return reply;
  }
  GrpcClientStream& call = **opened;
  // A write that fails is no answer yet: the server may have given its status before.
  if (Result<bool> sent = co_await call.write_message(request); sent.ok() && *sent)
    (void)co_await call.half_close();
  size_t messages = 0;
  for (;;) {
    const std::optional<std::string_view> message = co_await call.read_message();
    if (!message) break;
    if (++messages == 1) reply.message = *message;
  }
  reply.status = call.status();
  if (reply.status.ok() && messages != 1)
    reply.status = {GrpcCode::kInternal,
                    "a unary call was answered with " + std::to_string(messages) + " messages"};
  if (!reply.status.ok()) reply.message.clear();
  co_return reply;
}

}  // namespace penstock::io
