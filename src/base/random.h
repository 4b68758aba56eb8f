#pragma once

#include <cstdint>

namespace penstock {

// Deterministic random numbers: the same seed gives the same sequence on every machine. 16 bytes, so
// each request carries its own, and its seed stands in the decision record. Not for secrets.
// PCG-XSH-RR 64/32 (O'Neill 2014). Not thread-safe.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(0) {
    next_u32();
    state_ += seed;
    next_u32();
  }

  uint32_t next_u32() {
    const uint64_t old = state_;
    state_ = old * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto xorshifted = static_cast<uint32_t>(((old >> 18U) ^ old) >> 27U);
    const auto rot = static_cast<uint32_t>(old >> 59U);
    return (xorshifted >> rot) | (xorshifted << ((32U - rot) & 31U));
  }
  uint64_t next_u64() { return (static_cast<uint64_t>(next_u32()) << 32U) | next_u32(); }

  // Uniform in [0, bound). REQUIRES: bound > 0.
  uint32_t below(uint32_t bound) {
    return static_cast<uint32_t>((static_cast<uint64_t>(next_u32()) * bound) >> 32U);
  }
  // Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next_u64() >> 11U) * 0x1.0p-53; }

 private:
  uint64_t state_;
};

}  // namespace penstock
