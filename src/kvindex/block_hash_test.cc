#include "kvindex/block_hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/hash.h"

namespace penstock::kvindex {
namespace {

std::vector<uint32_t> range(uint32_t from, uint32_t to) {
  std::vector<uint32_t> tokens(to - from);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

std::vector<uint64_t> hashes(const std::vector<uint32_t>& tokens, size_t block_size, uint64_t seed,
                             std::span<const MultiModalFeature> features = {}) {
  std::vector<uint64_t> out(tokens.size() / block_size);
  hash_blocks(TokenizedPrompt{tokens, features}, block_size, seed, out);
  return out;
}

struct Vector {
  std::string model;
  std::string salt;
  std::vector<uint32_t> tokens;
  size_t block_size;
  uint64_t seed;
  std::vector<uint64_t> contents;
  std::vector<uint64_t> chain;  // with the trailing partial block, as the reference hashes it
};

std::vector<Vector> reference_vectors() {
  return {
      {"m",
       "",
       {1, 2, 3, 4},
       2,
       0xba2e567083a2b2e8,
       {0xcd3d4c871ee4183a, 0xfc21c034b7d4f833},
       {0xbdeada2071943583, 0x7aacfb531261b051}},
      {"m",
       "salt",
       {1, 2, 3, 4},
       2,
       0xd91548f60ba19b9b,
       {0xcd3d4c871ee4183a, 0xfc21c034b7d4f833},
       {0x6b0e68c54f9ceac3, 0xf1433d4ff41f4429}},
      {"",
       "",
       range(1, 11),
       4,
       0xef46db3751d8e999,
       {0x27f0147e6ec514a6, 0xa7bed13863bc3975, 0xfc0ed29689d94c13},
       {0x23e93cf3263c5519, 0x3d65cd20e965730f, 0xe1f97cb8473fe9aa}},
      {"model",
       "",
       {1, 2, 3, 4},
       2,
       0xe1eeca7af8e0b529,
       {0xcd3d4c871ee4183a, 0xfc21c034b7d4f833},
       {0xffdca57d22906a0b, 0x9f53fe5600b4b914}},
      {"model", "", {3, 4}, 2, 0xe1eeca7af8e0b529, {0xfc21c034b7d4f833}, {0xe3c1183459dad609}},
      {"Qwen/Qwen3-8B",
       "",
       range(0, 200),
       64,
       0x753a482dd9050f0b,
       {0x396ebf26fbb28dc5, 0x2aadedb4a1e6906b, 0xb4f0ae58ecff34a9, 0x38b3fa04e0cd1251},
       {0x5d7526ce074750dc, 0x2c89092c5cb3c60b, 0x9f6354575bfa5db1, 0x578d059a77fe5b19}},
  };
}

TEST(BlockHash, TheHashFunctionIsXxh64WithSeedZero) {
  EXPECT_EQ(xxh64(""), 0xef46db3751d8e999);
  EXPECT_EQ(xxh64("a"), 0xd24ec4f1a98c6e5b);
  EXPECT_EQ(xxh64("abc"), 0x44bc2cf5ad770999);
}

TEST(BlockHash, ReproducesThePublishedVectorsOfTheReference) {
  for (const Vector& v : reference_vectors()) {
    SCOPED_TRACE(v.model + "/" + v.salt);
    EXPECT_EQ(reference_chain_seed(v.model, v.salt), v.seed);
    uint64_t parent = v.seed;
    for (size_t b = 0; b < v.contents.size(); ++b) {
      const size_t begin = b * v.block_size;
      const size_t count = std::min(v.block_size, v.tokens.size() - begin);
      const uint64_t content = content_hash(std::span(v.tokens).subspan(begin, count));
      EXPECT_EQ(content, v.contents[b]);
      parent = chain_hash(content, parent);
      EXPECT_EQ(parent, v.chain[b]);
    }
    const std::vector<uint64_t> full = hashes(v.tokens, v.block_size, v.seed);
    ASSERT_EQ(full.size(), v.tokens.size() / v.block_size);
    for (size_t b = 0; b < full.size(); ++b) EXPECT_EQ(full[b], v.chain[b]);
    if (v.salt.empty()) {
      EXPECT_EQ(chain_seed(v.model, v.salt), v.seed);
    }
  }
}

TEST(BlockHash, ModelAndSaltAreKeptApart) {
  EXPECT_EQ(reference_chain_seed("ab", "c"), reference_chain_seed("a", "bc"));
  EXPECT_NE(chain_seed("ab", "c"), chain_seed("a", "bc"));
  EXPECT_NE(chain_seed("ab", "c"), chain_seed("abc", ""));
  EXPECT_NE(chain_seed("m", "s"), chain_seed("s", "m"));
  EXPECT_NE(chain_seed("m", "s1"), chain_seed("m", "s2"));
}

TEST(BlockHash, TheTrailingPartialBlockCountsButHasNoHash) {
  EXPECT_EQ(count_blocks(10, 4, 0).full, 2U);
  EXPECT_EQ(count_blocks(10, 4, 0).total, 3U);
  EXPECT_EQ(count_blocks(200, 64, 0).full, 3U);
  EXPECT_EQ(count_blocks(200, 64, 0).total, 4U);
  EXPECT_EQ(count_blocks(200, 64, 2).full, 2U);
  EXPECT_EQ(count_blocks(200, 64, 2).total, 2U);
  EXPECT_EQ(count_blocks(0, 64, 0).total, 0U);
  EXPECT_EQ(count_blocks(10, 0, 0).total, 0U);
}

TEST(BlockHash, ABlockIsNamedByEverythingBeforeIt) {
  const uint64_t seed = chain_seed("m", "");
  const auto a = hashes({1, 2, 3, 4}, 2, seed);
  const auto b = hashes({1, 2, 5, 4}, 2, seed);
  const auto c = hashes({9, 2, 3, 4}, 2, seed);
  EXPECT_EQ(a[0], b[0]);
  EXPECT_NE(a[1], b[1]);
  EXPECT_NE(a[1], c[1]);
}

TEST(BlockHash, AMultiModalItemChangesTheBlockItStartsInAndAllLaterOnes) {
  const uint64_t seed = chain_seed("m", "");
  const std::vector<uint32_t> tokens(8, 7);
  const MultiModalFeature cat[] = {{"image", "aa01", 3, 2}};
  const MultiModalFeature dog[] = {{"image", "bb02", 3, 2}};
  const MultiModalFeature later[] = {{"image", "aa01", 2, 2}};
  const auto plain = hashes(tokens, 2, seed);
  const auto with_cat = hashes(tokens, 2, seed, cat);
  EXPECT_EQ(with_cat[0], plain[0]);
  for (size_t b = 1; b < 4; ++b) {
    EXPECT_NE(with_cat[b], plain[b]);
    EXPECT_NE(with_cat[b], hashes(tokens, 2, seed, dog)[b]);
    EXPECT_NE(with_cat[b], hashes(tokens, 2, seed, later)[b]);
  }
  EXPECT_EQ(with_cat, hashes(tokens, 2, seed, cat));
}

TEST(BlockHash, AnItemOfUnknownContentChangesNothing) {
  const std::vector<uint32_t> tokens(4, 7);
  const MultiModalFeature unknown[] = {{"image", "", 0, 2}};
  EXPECT_EQ(hashes(tokens, 2, 1, unknown), hashes(tokens, 2, 1));
}

}  // namespace
}  // namespace penstock::kvindex
