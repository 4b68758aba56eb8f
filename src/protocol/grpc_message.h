#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace penstock::protocol {

// One length-prefixed gRPC message: a flag byte (1 = compressed), four bytes of length, big-endian, payload.
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
inline constexpr size_t kGrpcHeaderBytes = 5;

struct GrpcHeader {
  bool compressed = false;
  uint32_t length = 0;
};
// REQUIRES: bytes.size() >= kGrpcHeaderBytes.
GrpcHeader read_grpc_header(std::string_view bytes);

// The payload of the first message of a body; what follows it is not looked at. Errors (kBadRequest):
// "invalid gRPC frame: expected at least 5 bytes for header, got N", "compressed gRPC payload is not
// supported", "incomplete gRPC payload: header indicates X bytes, but only Y bytes are available".
Result<std::string_view> first_grpc_message(std::string_view body);

}  // namespace penstock::protocol
