#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "inference/request.h"

namespace penstock::kvindex {

// Hashes of the token blocks of a prompt, chained so that one hash names a block and everything before
// it. XXH64 with seed 0 throughout:
//
//   content(b) = XXH64(token ids of block b, 4 bytes each, little-endian)
//   chain(b)   = XXH64(LE64(content(b)) || LE64(chain(b - 1))),  chain(-1) = seed
//
// Without a cache salt and without multi-modal items the hashes are those of the reference picker. Two
// deliberate differences, both on inputs where the reference confuses different prompts:
//   * it joins model and salt without a separator, so ("ab", "c") equals ("a", "bc"): chain_seed();
//   * it does not see what a placeholder token stands for: a multi-modal item with a known hash changes
//     the content of the block in which it starts, content := XXH64(LE64(content) || LE64(XXH64(item
//     hash)) || LE64(offset within the block)).

// chain(-1). Without a salt: XXH64(model). With one: XXH64(LE64(XXH64(model)) || LE64(XXH64(salt)) ||
// LE64(bytes of model)), which no other pair and no block gives by construction.
uint64_t chain_seed(std::string_view model, std::string_view salt);
// The reference's form, XXH64(model || salt): only to reproduce its published vectors.
uint64_t reference_chain_seed(std::string_view model, std::string_view salt);

uint64_t content_hash(std::span<const uint32_t> tokens);
uint64_t chain_hash(uint64_t content, uint64_t parent);

struct BlockCount {
  size_t full = 0;   // blocks that have a hash
  size_t total = 0;  // with the trailing partial block, which counts but is not hashed: no engine reuses
                     // it, and in the index it would end every turn of a chat in a branch of its own
};
// Blocks of a prompt of `tokens` tokens, at most `max_blocks` of them (0: no limit). No blocks when
// block_size_tokens is 0.
BlockCount count_blocks(size_t tokens, size_t block_size_tokens, size_t max_blocks);

// Writes the chained hashes of the first out.size() full blocks.
// REQUIRES: out.size() * block_size_tokens <= prompt.token_ids.size(). Features are taken in the order
// given; the tokenisers deliver them by rising offset.
void hash_blocks(const TokenizedPrompt& prompt, size_t block_size_tokens, uint64_t seed,
                 std::span<uint64_t> out);

}  // namespace penstock::kvindex
