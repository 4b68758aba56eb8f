#include "kvindex/wide_hash.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/hash.h"
#include "base/random.h"

namespace penstock::kvindex {
namespace {

TEST(WideHash, PiecesHashAsTheyDoOneByOne) {
  Random random(3);
  for (const size_t piece : {4U, 20U, 32U, 64U, 96U, 256U, 260U, 512U, 4096U}) {
    for (const size_t count : {0U, 1U, 7U, 8U, 9U, 16U, 31U}) {
      // One byte off, so that no load is aligned.
      std::vector<uint8_t> bytes(piece * count + 1);
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next_u32());
      std::vector<uint64_t> out(count);
      xxh64_pieces(bytes.data() + 1, piece, out);
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(out[i], xxh64(bytes.data() + 1 + i * piece, piece)) << piece << " bytes, piece " << i;
      }
    }
  }
}

TEST(WideHash, PairHashesAsItsSixteenBytes) {
  Random random(4);
  for (int i = 0; i < 1000; ++i) {
    const std::array<uint64_t, 2> pair{random.next_u64(), random.next_u64()};
    EXPECT_EQ(xxh64_pair(pair[0], pair[1]), xxh64(pair.data(), sizeof(pair)));
  }
}

}  // namespace
}  // namespace penstock::kvindex
