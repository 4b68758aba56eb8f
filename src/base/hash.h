#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>
#include <string_view>

namespace penstock {

// XXH64 with seed 0: the hash of prefix blocks (compatible with the reference picker).
inline uint64_t xxh64(const void* data, size_t bytes) {
  return XXH64(data, bytes, 0);
}
inline uint64_t xxh64(std::string_view text) {
  return XXH64(text.data(), text.size(), 0);
}
// XXH3: for tables inside the process.
inline uint64_t hash_of(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace penstock
