#include "director/fields.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace penstock::director {

namespace {

constexpr std::array<std::string_view, 22> kControl{
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    "x-llm-d-model-name-rewrite",
    "x-gateway-model-name-rewrite",
    "x-llm-d-slo-ttft-ms",
    "x-slo-ttft-ms",
    "x-llm-d-slo-tpot-ms",
    "x-slo-tpot-ms",
    "x-llm-d-video-fps",
    "x-llm-d-video-duration-seconds",
    "x-llm-d-video-resolution",
    "x-gateway-destination-endpoint-subset",
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-served",
    "x-llm-d-request-dropped-reason",
    "x-gateway-model-name",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
};

// Eight hexadecimal digits, a nibble a byte at once.
void hex_of(uint32_t value, char* out) {
  uint64_t x = value;
  x = (x | x << 16U) & 0x0000FFFF0000FFFFULL;
  x = (x | x << 8U) & 0x00FF00FF00FF00FFULL;
  x = (x | x << 4U) & 0x0F0F0F0F0F0F0F0FULL;
  const uint64_t above_nine = ((x + 0x0606060606060606ULL) >> 4U) & 0x0101010101010101ULL;
  x += 0x3030303030303030ULL + above_nine * ('a' - '0' - 10);
  if constexpr (std::endian::native == std::endian::little) x = __builtin_bswap64(x);
  std::memcpy(out, &x, 8);
}

}  // namespace

bool is_control_field(std::string_view name) {
  // Most names have another length than any of ours.
  static constexpr uint64_t kLengths = [] {
    uint64_t lengths = 0;
    for (const std::string_view one : kControl) lengths |= uint64_t{1} << one.size();
    return lengths;
  }();
  return name.size() < 64 && (kLengths >> name.size() & 1U) != 0 &&
         std::find(kControl.begin(), kControl.end(), name) != kControl.end();
}

std::string_view usable_request_id(std::string_view id) {
  if (id.empty() || id.size() > 128) return {};
  return std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < '\x7f'; }) ? id
                                                                                         : std::string_view();
}

void make_request_id(Random& random, std::array<char, 36>& out) {
  uint64_t bits[2] = {random.next_u64(), random.next_u64()};
  bits[0] = (bits[0] & ~0xF000ULL) | 0x4000ULL;          // version 4
  bits[1] = (bits[1] & ~(3ULL << 62U)) | (2ULL << 62U);  // RFC 9562 variant
  std::array<char, 32> hex;
  for (size_t i = 0; i < 4; ++i) {
    hex_of(static_cast<uint32_t>(bits[i / 2] >> (i % 2 == 0 ? 32U : 0U)), hex.data() + 8 * i);
  }
  std::memcpy(out.data(), hex.data(), 8);
  std::memcpy(out.data() + 9, hex.data() + 8, 4);
  std::memcpy(out.data() + 14, hex.data() + 12, 4);
  std::memcpy(out.data() + 19, hex.data() + 16, 4);
  std::memcpy(out.data() + 24, hex.data() + 20, 12);
  out[8] = out[13] = out[18] = out[23] = '-';
}

}  // namespace penstock::director
