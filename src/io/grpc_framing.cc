#include <zlib.h>

#include <algorithm>
#include <array>

#include "base/escapes.h"
#include "base/strings.h"
#include "io/detail/grpc_wire.h"

namespace penstock::io {

namespace {

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

size_t length_of(const unsigned char* prefix) {
  return static_cast<size_t>(prefix[1]) << 24U | static_cast<size_t>(prefix[2]) << 16U |
         static_cast<size_t>(prefix[3]) << 8U | prefix[4];
}

}  // namespace

namespace detail {

Error grpc_too_large(size_t bytes, size_t limit) {
  return {ErrorCode::kPayloadTooLarge, "a message of " + std::to_string(bytes) +
                                           " bytes is larger than the limit of " + std::to_string(limit)};
}

bool is_grpc_content_type(std::string_view type) {
  constexpr std::string_view kType = "application/grpc";
  if (type.size() < kType.size() || !ascii_iequals(type.substr(0, kType.size()), kType)) return false;
  std::string_view rest = type.substr(kType.size());
  if (const size_t semicolon = rest.find(';'); semicolon != rest.npos) rest = rest.substr(0, semicolon);
  rest = trim(rest);
  return rest.empty() || ascii_iequals(rest, "+proto");
}

GrpcFrameDecoder::Encoding grpc_encoding_of(std::string_view grpc_encoding) {
  if (grpc_encoding.empty() || ascii_iequals(grpc_encoding, "identity"))
    return GrpcFrameDecoder::Encoding::kIdentity;
  if (ascii_iequals(grpc_encoding, "gzip")) return GrpcFrameDecoder::Encoding::kGzip;
  return GrpcFrameDecoder::Encoding::kUnsupported;
}

}  // namespace detail

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
      if (have > limit) return detail::grpc_too_large(have, limit);
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
  if (length_ > max_message_bytes_) return detail::grpc_too_large(length_, max_message_bytes_);
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
    std::array<unsigned char, detail::kGrpcPrefixBytes> prefix;
    if (prefix_size_ + rest_.size() < detail::kGrpcPrefixBytes) {
      std::copy(rest_.begin(), rest_.end(), prefix_ + prefix_size_);
      prefix_size_ += static_cast<uint8_t>(rest_.size());
      rest_ = {};
      return std::optional<std::string_view>();
    }
    std::copy_n(prefix_, prefix_size_, prefix.data());
    std::copy_n(rest_.data(), detail::kGrpcPrefixBytes - prefix_size_, prefix.data() + prefix_size_);
    rest_.remove_prefix(detail::kGrpcPrefixBytes - prefix_size_);
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
  if (prefix_size_ + rest_.size() < detail::kGrpcPrefixBytes) return false;
  std::array<unsigned char, detail::kGrpcPrefixBytes> prefix;
  std::copy_n(prefix_, prefix_size_, prefix.data());
  std::copy_n(rest_.data(), detail::kGrpcPrefixBytes - prefix_size_, prefix.data() + prefix_size_);
  const size_t length = length_of(prefix.data());
  const bool refused = prefix[0] > 1 || (prefix[0] == 1 && encoding_ != Encoding::kGzip);
  return refused || length > max_message_bytes_ ||
         rest_.size() - (detail::kGrpcPrefixBytes - prefix_size_) >= length;
}

}  // namespace penstock::io
