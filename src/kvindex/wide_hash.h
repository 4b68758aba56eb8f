#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::kvindex {

// XXH64 with seed 0 of many equally long pieces: out[i] = XXH64(data + i * piece_bytes, piece_bytes). The
// same values as one by one, on every machine; where the processor multiplies eight 64-bit numbers at once
// (AVX-512DQ) and piece_bytes is a multiple of 32, eight pieces go side by side, which takes a third of the
// time: one piece alone is bound by its chain of multiplications.
// REQUIRES: out.size() * piece_bytes readable bytes at `data`, of any alignment.
void xxh64_pieces(const void* data, size_t piece_bytes, std::span<uint64_t> out);

// XXH64 with seed 0 of LE64(first) || LE64(second).
uint64_t xxh64_pair(uint64_t first, uint64_t second);

}  // namespace penstock::kvindex
