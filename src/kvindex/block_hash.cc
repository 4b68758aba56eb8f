#include "kvindex/block_hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <string>

#include "base/hash.h"
#include "kvindex/wide_hash.h"

namespace penstock::kvindex {

static_assert(std::endian::native == std::endian::little, "token ids are hashed as they lie in memory");

uint64_t chain_seed(std::string_view model, std::string_view salt) {
  if (salt.empty()) return xxh64(model);
  const std::array<uint64_t, 3> parts{xxh64(model), xxh64(salt), model.size()};
  return xxh64(parts.data(), sizeof(parts));
}

uint64_t reference_chain_seed(std::string_view model, std::string_view salt) {
  return xxh64(std::string(model).append(salt));
}

uint64_t content_hash(std::span<const uint32_t> tokens) {
  return xxh64(tokens.data(), tokens.size_bytes());
}

uint64_t chain_hash(uint64_t content, uint64_t parent) {
  return xxh64_pair(content, parent);
}

BlockCount count_blocks(size_t tokens, size_t block_size_tokens, size_t max_blocks) {
  if (block_size_tokens == 0) return {};
  BlockCount count{tokens / block_size_tokens, (tokens + block_size_tokens - 1) / block_size_tokens};
  if (max_blocks != 0) {
    count.full = std::min(count.full, max_blocks);
    count.total = std::min(count.total, max_blocks);
  }
  return count;
}

void hash_blocks(const TokenizedPrompt& prompt, size_t block_size_tokens, uint64_t seed,
                 std::span<uint64_t> out) {
  assert(out.size() * block_size_tokens <= prompt.token_ids.size());
  xxh64_pieces(prompt.token_ids.data(), block_size_tokens * sizeof(uint32_t), out);
  uint64_t parent = seed;
  size_t feature = 0;
  for (size_t b = 0; b < out.size(); ++b) {
    const size_t begin = b * block_size_tokens;
    const size_t end = begin + block_size_tokens;
    uint64_t content = out[b];
    for (; feature < prompt.features.size() && prompt.features[feature].offset_tokens < end; ++feature) {
      const MultiModalFeature& item = prompt.features[feature];
      if (item.hash.empty()) continue;
      const uint64_t offset = item.offset_tokens >= begin ? item.offset_tokens - begin : 0;
      const std::array<uint64_t, 3> parts{content, xxh64(item.hash), offset};
      content = xxh64(parts.data(), sizeof(parts));
    }
    parent = chain_hash(content, parent);
    out[b] = parent;
  }
}

}  // namespace penstock::kvindex
