#include "kvindex/wide_hash.h"

#include <array>
#include <bit>

#include "base/hash.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes its own "undefined" values in this header for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, "XXH64 Algorithm Description".

namespace penstock::kvindex {

namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5;
constexpr size_t kStripe = 32;  // bytes one step of the four accumulators takes

uint64_t round_of(uint64_t accumulator, uint64_t input) {
  return std::rotl(accumulator + input * kPrime2, 31) * kPrime1;
}

uint64_t avalanche(uint64_t hash) {
  hash = (hash ^ (hash >> 33U)) * kPrime2;
  hash = (hash ^ (hash >> 29U)) * kPrime3;
  return hash ^ (hash >> 32U);
}

#if defined(__x86_64__)

constexpr size_t kWide = 8;  // pieces side by side

#define PENSTOCK_WIDE __attribute__((target("avx512f,avx512dq")))

PENSTOCK_WIDE inline __m512i all(uint64_t value) {
  return _mm512_set1_epi64(static_cast<int64_t>(value));
}

PENSTOCK_WIDE inline __m512i round_of(__m512i accumulator, __m512i input) {
  const __m512i sum = _mm512_add_epi64(accumulator, _mm512_mullo_epi64(input, all(kPrime2)));
  return _mm512_mullo_epi64(_mm512_rol_epi64(sum, 31), all(kPrime1));
}

// The 32 bytes at `low` and at `high`, as the lower and the upper half.
PENSTOCK_WIDE inline __m512i stripes(const uint8_t* low, const uint8_t* high) {
  const __m512i first = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low)));
  return _mm512_inserti64x4(first, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)), 1);
}

PENSTOCK_WIDE inline __m512i merge(__m512i hash, __m512i accumulator) {
  hash = _mm512_xor_si512(hash, round_of(_mm512_setzero_si512(), accumulator));
  return _mm512_add_epi64(_mm512_mullo_epi64(hash, all(kPrime1)), all(kPrime4));
}

// Every fourth number from `from` on.
PENSTOCK_WIDE inline __m512i gather(const uint64_t* from) {
  const __m512i every_fourth = _mm512_set_epi64(28, 24, 20, 16, 12, 8, 4, 0);
  return _mm512_mask_i64gather_epi64(_mm512_setzero_si512(), 0xFF, every_fourth, from, 8);
}

// Eight pieces. Each register holds the four accumulators of two of them.
PENSTOCK_WIDE void eight_pieces(const uint8_t* data, size_t piece_bytes, uint64_t* out) {
  const __m512i start =
      _mm512_set_epi64(static_cast<int64_t>(-kPrime1), 0, static_cast<int64_t>(kPrime2),
                       static_cast<int64_t>(kPrime1 + kPrime2), static_cast<int64_t>(-kPrime1), 0,
                       static_cast<int64_t>(kPrime2), static_cast<int64_t>(kPrime1 + kPrime2));
  __m512i a = start;
  __m512i b = start;
  __m512i c = start;
  __m512i d = start;
  for (size_t at = 0; at < piece_bytes; at += kStripe) {
    const uint8_t* p = data + at;
    a = round_of(a, stripes(p, p + piece_bytes));
    b = round_of(b, stripes(p + 2 * piece_bytes, p + 3 * piece_bytes));
    c = round_of(c, stripes(p + 4 * piece_bytes, p + 5 * piece_bytes));
    d = round_of(d, stripes(p + 6 * piece_bytes, p + 7 * piece_bytes));
  }
  // From two pieces a register to one accumulator of all eight a register.
  alignas(64) std::array<uint64_t, 4 * kWide> lanes;
  _mm512_store_si512(lanes.data(), a);
  _mm512_store_si512(lanes.data() + 8, b);
  _mm512_store_si512(lanes.data() + 16, c);
  _mm512_store_si512(lanes.data() + 24, d);
  const __m512i v1 = gather(lanes.data());
  const __m512i v2 = gather(lanes.data() + 1);
  const __m512i v3 = gather(lanes.data() + 2);
  const __m512i v4 = gather(lanes.data() + 3);

  __m512i hash = _mm512_add_epi64(_mm512_add_epi64(_mm512_rol_epi64(v1, 1), _mm512_rol_epi64(v2, 7)),
                                  _mm512_add_epi64(_mm512_rol_epi64(v3, 12), _mm512_rol_epi64(v4, 18)));
  hash = merge(merge(merge(merge(hash, v1), v2), v3), v4);
  hash = _mm512_add_epi64(hash, all(piece_bytes));
  hash = _mm512_mullo_epi64(_mm512_xor_si512(hash, _mm512_srli_epi64(hash, 33)), all(kPrime2));
  hash = _mm512_mullo_epi64(_mm512_xor_si512(hash, _mm512_srli_epi64(hash, 29)), all(kPrime3));
  hash = _mm512_xor_si512(hash, _mm512_srli_epi64(hash, 32));
  _mm512_storeu_si512(out, hash);
}

#undef PENSTOCK_WIDE

// How many pieces from the first were done.
size_t wide_part(const uint8_t* data, size_t piece_bytes, std::span<uint64_t> out) {
  static const bool able = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  if (!able || piece_bytes == 0 || piece_bytes % kStripe != 0) return 0;
  size_t done = 0;
  for (; done + kWide <= out.size(); done += kWide) {
    eight_pieces(data + done * piece_bytes, piece_bytes, out.data() + done);
  }
  return done;
}

#else

size_t wide_part(const uint8_t*, size_t, std::span<uint64_t>) {
  return 0;
}

#endif

}  // namespace

void xxh64_pieces(const void* data, size_t piece_bytes, std::span<uint64_t> out) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  for (size_t i = wide_part(bytes, piece_bytes, out); i < out.size(); ++i) {
    out[i] = xxh64(bytes + i * piece_bytes, piece_bytes);
  }
}

uint64_t xxh64_pair(uint64_t first, uint64_t second) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t hash = kPrime5 + 2 * sizeof(uint64_t);
  hash = std::rotl(hash ^ round_of(uint64_t{0}, first), 27) * kPrime1 + kPrime4;
  hash = std::rotl(hash ^ round_of(uint64_t{0}, second), 27) * kPrime1 + kPrime4;
  return avalanche(hash);
}

}  // namespace penstock::kvindex
