#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <string>
#include <string_view>

#include "io/grpc.h"

namespace penstock::io::testing {

inline std::string gzip(std::string_view plain) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, plain.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// Each message back, then OK.
inline Task<GrpcStatus> echo_messages(GrpcServerStream& stream) {
  for (;;) {
    GrpcServerStream::Read message = co_await stream.read_message();
    if (!message.ok()) co_return grpc_status_of(message.error());
    if (!message->has_value()) co_return GrpcStatus();
    const std::array<std::string_view, 2> pieces = {"got ", **message};
    const Status written = co_await stream.write_message(pieces);
    if (!written.ok()) co_return grpc_status_of(written.error());
  }
}

}  // namespace penstock::io::testing
