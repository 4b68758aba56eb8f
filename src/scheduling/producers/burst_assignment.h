#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace penstock::scheduling {

// Which replica each request of a batch is sent to, so that identical prompts prefill once. No state, no
// clock, no randomness. REQUIRES: blocks are chained hashes: two requests with the same block at one place
// have the same ones before it. Takes about 1 µs a request and endpoint, however many blocks they have (but
// 1,000 requests each of which continues the one before, to 1,000 endpoints: 25 ms).
//
// 1. Requests with the same blocks are a group; one without blocks is in none.
// 2. Units are the groups of at least two, then the single requests that share their first
//    `min_colocate_blocks` blocks with another request of the batch; each kind by blocks descending, then by
//    order of arrival. Other requests get nobody.
// 3. share = ceil(sum of members, or of blocks of each unit / replicas).
// 4. A unit is placed in runs: all that is left of it, or with `max_per_replica` what its replica may still
//    have (one, where all have had that many). The first run goes to the replica that holds most of its
//    leading blocks in this batch, among those that may have more, hold at least `min_colocate_blocks` of
//    them and carry less than the share; further runs, and a first one without such a replica, to the one
//    that carries least among those that may have more, else among all. Ties: less carried, fewer running
//    requests, name. What a replica carries grows by the members of the run, or by the blocks of the unit
//    that it did not hold.
// Example: eight identical prompts on four idle replicas all go to the first; with at most two for each
// replica, two go to each.
struct BurstRules {
  int64_t max_per_replica = -1;  // members of one unit; below 0: all
  uint32_t min_colocate_blocks = 0;
  bool balance_tokens = false;  // by blocks; false: by requests
};
struct BurstReplica {
  std::string_view name;
  double running = 0;  // requests
};
inline constexpr uint32_t kNoReplica = UINT32_MAX;
// One entry for each request: an index into `replicas`, or kNoReplica.
std::vector<uint32_t> assign_burst(std::span<const std::vector<uint64_t>> requests,
                                   std::span<const BurstReplica> replicas, const BurstRules& rules);

}  // namespace penstock::scheduling
