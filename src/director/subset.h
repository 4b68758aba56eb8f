#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/arena.h"
#include "inference/endpoint.h"

namespace penstock::director {

// One line of the list of endpoints that a data plane allows for a request: "ip:port", "ip", "[v6]:port".
struct SubsetEntry {
  std::string_view address;  // without brackets
  uint16_t port = 0;         // 0: none given
};
SubsetEntry parse_subset_entry(std::string_view text);
// Of one request; with more it is refused.
inline constexpr size_t kMaxSubsetEntries = 16384;

// Which endpoints of the pool the entries mean, by Candidate, in the arena. An entry whose port is that of an
// endpoint at its address means that endpoint; otherwise all at the address. Time: n log n in both.
std::span<const bool> allowed_by(std::span<const SubsetEntry> subset, const PoolSnapshot& pool, Arena& arena);

}  // namespace penstock::director
