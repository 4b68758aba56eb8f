#pragma once

#include <string_view>

#include "base/hash.h"

namespace penstock::protocol {

// XXH64 (seed 0) of text that comes in parts.
class Xxh64 {
 public:
  Xxh64() { XXH64_reset(&state_, 0); }
  void update(std::string_view part) { XXH64_update(&state_, part.data(), part.size()); }
  uint64_t digest() const { return XXH64_digest(&state_); }

 private:
  XXH64_state_t state_;
};

inline uint64_t xxh64_of_two(std::string_view first, std::string_view second) {
  Xxh64 hash;
  hash.update(first);
  hash.update(second);
  return hash.digest();
}

}  // namespace penstock::protocol
