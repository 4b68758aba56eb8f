#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "simulator/fleet/fleet.h"
#include "simulator/fleet/workload.h"

namespace penstock::simulator {

// What no policy can better, computed from the workload in the order of its requests by somebody who knows
// all of it. Of the same requests as a report: those that engines take and that arrive after the warm-up.
// (One that waits for an answer is taken to arrive as if answers took no time.)
struct FleetBound {
  // Tokens that a prompt begins with and that some earlier prompt or answer had too, in full blocks of the
  // engine, over all tokens: one cache for all engines, without limit.
  double hit_ratio_unlimited = 0;
  // The same cache with as many tokens as all engines hold together, that gives up what is needed again last
  // (Belady's rule on the pieces of prompts; exact where pieces are equally long, as in traces).
  double hit_ratio_clairvoyant = 0;
  // To the first token when every request finds an idle engine with all of the unlimited hit in its cache.
  Quantiles ttft_ms;
};
FleetBound bound_of(const Workload& workload, const FleetOptions& fleet);

// The tree of all prompts that the fleet's engines take: pieces are edges. Tells which part of each prompt
// was there before. The workload outlives it.
class PromptTree {
 public:
  PromptTree(const Workload& workload, const FleetOptions& fleet);

  static constexpr uint32_t kRoot = 0;
  // Whether the request counts (FleetBound); the prompt tokens of all that do.
  bool counts(size_t index) const { return counts_[index]; }
  uint64_t counted_tokens() const { return counted_tokens_; }
  // Nodes of request `index`'s prompt from the first piece on; none when it is refused.
  std::vector<uint32_t> path(size_t index) const;
  // Of the tokens at the beginning of request `index`'s prompt those that earlier requests left.
  uint32_t seen_tokens(size_t index) const { return seen_[index]; }
  // Where a request's answer hangs; kRoot: nobody asks for it again.
  uint32_t answer_node(size_t index) const { return answers_[index]; }
  uint32_t node_count() const { return static_cast<uint32_t>(tokens_.size()); }
  // The most tokens that a request has of the node's piece.
  uint32_t tokens(uint32_t node) const { return tokens_[node]; }

 private:
  uint32_t child(uint32_t parent, const PromptPiece& piece);

  const Workload& workload_;
  std::vector<bool> taken_;
  std::vector<bool> counts_;
  uint64_t counted_tokens_ = 0;
  std::unordered_map<uint64_t, uint32_t> children_;  // by hash of parent and piece
  std::vector<uint32_t> piece_nodes_;                // by piece of the workload
  std::vector<uint32_t> seen_;
  std::vector<uint32_t> answers_;
  std::vector<uint32_t> tokens_;  // by node
};

// Hits of the requests that count over their tokens when one cache of `capacity_tokens` serves everybody and
// gives up what is needed again last.
double clairvoyant_hit_ratio(const Workload& workload, const PromptTree& tree, uint64_t capacity_tokens);

}  // namespace penstock::simulator
