#pragma once

// For this room's tests and fuzz targets only.

#include <string>
#include <string_view>

namespace penstock::protocol {

// A gRPC message around a payload.
inline std::string grpc_frame(std::string_view payload, bool compressed = false) {
  std::string out(1, compressed ? '\1' : '\0');
  for (int shift = 24; shift >= 0; shift -= 8) {
    out += static_cast<char>(payload.size() >> static_cast<unsigned>(shift) & 0xFFU);
  }
  return out.append(payload);
}

}  // namespace penstock::protocol
