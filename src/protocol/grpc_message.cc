#include "protocol/grpc_message.h"

#include "protocol/body_members.h"

namespace penstock::protocol {

GrpcHeader read_grpc_header(std::string_view bytes) {
  GrpcHeader out;
  out.compressed = bytes[0] != 0;
  for (size_t i = 1; i < kGrpcHeaderBytes; ++i) {
    out.length = out.length << 8 | static_cast<uint8_t>(bytes[i]);
  }
  return out;
}

Result<std::string_view> first_grpc_message(std::string_view body) {
  if (body.size() < kGrpcHeaderBytes) {
    return bad_request("invalid gRPC frame: expected at least 5 bytes for header, got " +
                       std::to_string(body.size()));
  }
  const GrpcHeader header = read_grpc_header(body);
  if (header.compressed) return bad_request("compressed gRPC payload is not supported");
  body.remove_prefix(kGrpcHeaderBytes);
  if (header.length > body.size()) {
    return bad_request("incomplete gRPC payload: header indicates " + std::to_string(header.length) +
                       " bytes, but only " + std::to_string(body.size()) + " bytes are available");
  }
  return body.substr(0, header.length);
}

}  // namespace penstock::protocol
