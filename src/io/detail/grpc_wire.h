#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/grpc.h"

// What both sides of a gRPC call need of its form on the wire.
namespace penstock::io::detail {

inline constexpr size_t kGrpcPrefixBytes = 5;
inline constexpr size_t kGrpcCodes = 17;
inline constexpr HeaderField kGrpcContentType{"content-type", "application/grpc"};
inline constexpr HeaderField kGrpcAcceptEncoding{"grpc-accept-encoding", "identity,gzip"};

// Of a message that is larger than it may be.
Error grpc_too_large(size_t bytes, size_t limit);
// "application/grpc", "application/grpc+proto", with or without parameters. Other codecs are not for us.
bool is_grpc_content_type(std::string_view type);
GrpcFrameDecoder::Encoding grpc_encoding_of(std::string_view grpc_encoding);

// Prefixes and pieces of some messages in the order they are sent. Few of them need no heap.
class GrpcFrames {
 public:
  // Nothing of it is kept by an error.
  Status add(GrpcPieces pieces, size_t limit) {
    size_t length = 0;
    for (std::string_view piece : pieces) length += piece.size();
    if (length > limit) return grpc_too_large(length, limit);
    char* prefix = next_prefix();
    write_prefix(prefix, length);
    push({prefix, kGrpcPrefixBytes});
    for (std::string_view piece : pieces) {
      if (!piece.empty()) push(piece);
    }
    return {};
  }
  GrpcPieces all() const { return more_.empty() ? GrpcPieces(few_.data(), count_) : GrpcPieces(more_); }

 private:
  static void write_prefix(char* out, size_t length) {
    out[0] = 0;
    out[1] = static_cast<char>(length >> 24U);
    out[2] = static_cast<char>(length >> 16U);
    out[3] = static_cast<char>(length >> 8U);
    out[4] = static_cast<char>(length);
  }
  char* next_prefix() {
    if (prefixes_ < kFewPrefixes) return few_prefixes_.data() + kGrpcPrefixBytes * prefixes_++;
    return more_prefixes_.emplace_back(std::make_unique<char[]>(kGrpcPrefixBytes)).get();
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
  std::array<char, kGrpcPrefixBytes * kFewPrefixes> few_prefixes_;
  size_t prefixes_ = 0;
  std::array<std::string_view, 16> few_;
  size_t count_ = 0;
  std::vector<std::string_view> more_;
  std::vector<std::unique_ptr<char[]>> more_prefixes_;
};

}  // namespace penstock::io::detail
