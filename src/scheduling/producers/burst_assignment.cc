#include "scheduling/producers/burst_assignment.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace penstock::scheduling {

namespace {

using Blocks = std::span<const uint64_t>;

struct Unit {
  Blocks blocks;
  std::vector<uint32_t> members;  // indices of requests
  uint32_t node = 0;              // of the tree, where its blocks end
};

// One word for two, for tables.
uint64_t pair_key(uint64_t a, uint64_t b) {
  return a ^ (b + 1) * 0x9e3779b97f4a7c15;
}

// The beginnings that units share: an inner node is where some of them part or end, its way from the root
// the blocks before that. Chained blocks tell from one comparison whether all before are the same, so a unit
// costs a few look-ups, however long it is.
class PrefixTree {
 public:
  static constexpr uint32_t kRoot = 0;
  struct Node {
    Blocks blocks;  // of any unit below; the node's are the first `end`
    uint32_t end = 0;
    uint32_t parent = kRoot;
    std::vector<uint32_t> holders;  // replicas; those that carry their share may be left out
  };

  PrefixTree() : nodes_(1) {}
  Node& at(uint32_t node) { return nodes_[node]; }
  const Node& at(uint32_t node) const { return nodes_[node]; }

  // REQUIRES: no holders yet. The node where the blocks end.
  uint32_t insert(Blocks blocks) {
    uint32_t node = kRoot;
    const auto length = static_cast<uint32_t>(blocks.size());
    while (nodes_[node].end < length) {
      const uint32_t begin = nodes_[node].end;
      const auto [found, fresh] =
          children_.try_emplace(pair_key(blocks[begin], node), static_cast<uint32_t>(nodes_.size()));
      const uint32_t child = found->second;
      if (fresh) {
        nodes_.push_back({blocks, length, node, {}});
        return child;
      }
      const Blocks other = nodes_[child].blocks;
      const uint32_t common = common_blocks(blocks, other, begin, std::min(length, nodes_[child].end));
      if (common == nodes_[child].end) {
        node = child;
        continue;
      }
      const auto middle = static_cast<uint32_t>(nodes_.size());
      found->second = middle;
      nodes_.push_back({blocks, common, node, {}});
      nodes_[child].parent = middle;
      children_.emplace(pair_key(other[common], middle), child);
      node = middle;
    }
    return node;
  }

 private:
  // How many of the first `end` blocks are the same, given that those up to and with `begin` are.
  static uint32_t common_blocks(Blocks a, Blocks b, uint32_t begin, uint32_t end) {
    if (a[end - 1] == b[end - 1]) return end;
    uint32_t same = begin;  // index of a block that is the same
    while (end - same > 1) {
      const uint32_t middle = same + (end - same) / 2;
      (a[middle] == b[middle] ? same : end) = middle;
    }
    return end;
  }

  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, uint32_t> children_;  // by parent and first block
};

class Placement {
 public:
  Placement(std::span<const BurstReplica> replicas, const BurstRules& rules, uint64_t total)
      : rules_(rules),
        share_((total + replicas.size() - 1) / replicas.size()),
        by_rank_(replicas.size()),
        rank_(replicas.size()),
        carried_(replicas.size(), 0),
        given_(replicas.size(), 0) {
    std::iota(by_rank_.begin(), by_rank_.end(), 0U);
    std::sort(by_rank_.begin(), by_rank_.end(), [&](uint32_t a, uint32_t b) {
      if (replicas[a].running != replicas[b].running) return replicas[a].running < replicas[b].running;
      return replicas[a].name < replicas[b].name;
    });
    std::vector<Weight> idle;
    idle.reserve(replicas.size());
    for (uint32_t rank = 0; rank < by_rank_.size(); ++rank) {
      rank_[by_rank_[rank]] = rank;
      idle.push_back({0, rank});
    }
    lightest_ = Heap(std::greater<>(), std::move(idle));
  }

  void place(std::vector<Unit>& units, std::span<uint32_t> out) {
    if (needs_matches()) {
      for (Unit& unit : units) unit.node = tree_.insert(unit.blocks);
    }
    for (const Unit& unit : units) place(unit, out);
  }

 private:
  struct Weight {
    uint64_t carried;
    uint32_t rank;
    friend auto operator<=>(const Weight&, const Weight&) = default;
  };
  using Heap = std::priority_queue<Weight, std::vector<Weight>, std::greater<>>;

  bool needs_matches() const { return rules_.min_colocate_blocks > 0 || rules_.balance_tokens; }

  void place(const Unit& unit, std::span<uint32_t> out) {
    for (size_t at = 0; at < unit.members.size();) {
      const uint32_t replica = at == 0 ? first_choice(unit) : least_loaded();
      size_t run = unit.members.size() - at;
      if (rules_.max_per_replica >= 0) {
        const int64_t room = std::max<int64_t>(rules_.max_per_replica - given_[replica], 1);
        run = std::min(run, static_cast<size_t>(room));
      }
      if (!rules_.balance_tokens) {
        carried_[replica] += run;
      } else if (given_[replica] == 0) {
        carried_[replica] += unit.blocks.size() - held_blocks(unit, replica);
      }
      if (given_[replica] == 0) given_to_.push_back(replica);
      given_[replica] += static_cast<int64_t>(run);
      for (const size_t end = at + run; at < end; ++at) out[unit.members[at]] = replica;
    }
    for (const uint32_t replica : given_to_) {
      given_[replica] = 0;
      if (needs_matches()) hold(unit, replica);
    }
    given_to_.clear();
    take_back_full();
    all_full_ = false;
  }
  void take_back_full() {
    for (const uint32_t replica : full_) lightest_.push({carried_[replica], rank_[replica]});
    full_.clear();
  }

  // Who holds a node holds those above it.
  static uint64_t held_key(uint32_t node, uint32_t replica) { return uint64_t{node} << 32U | replica; }
  bool holds(uint32_t node, uint32_t replica) const { return held_.contains(held_key(node, replica)); }
  void hold(const Unit& unit, uint32_t replica) {
    for (uint32_t node = unit.node; node != PrefixTree::kRoot; node = tree_.at(node).parent) {
      if (!held_.insert(held_key(node, replica)).second) return;
      tree_.at(node).holders.push_back(replica);
    }
  }
  size_t held_blocks(const Unit& unit, uint32_t replica) const {
    uint32_t node = unit.node;
    while (node != PrefixTree::kRoot && !holds(node, replica)) node = tree_.at(node).parent;
    return tree_.at(node).end;
  }

  bool may_have_more(uint32_t r) const {
    return rules_.max_per_replica < 0 || given_[r] < rules_.max_per_replica;
  }
  bool lighter(uint32_t a, uint32_t b) const {
    return std::pair(carried_[a], rank_[a]) < std::pair(carried_[b], rank_[b]);
  }
  // Nothing of the unit is given yet.
  uint32_t first_choice(const Unit& unit) {
    for (uint32_t at = unit.node; at != PrefixTree::kRoot; at = tree_.at(at).parent) {
      PrefixTree::Node& node = tree_.at(at);
      if (node.end < rules_.min_colocate_blocks) break;
      // What a replica carries only grows.
      std::erase_if(node.holders, [&](uint32_t r) { return carried_[r] >= share_; });
      if (node.holders.empty()) continue;
      return *std::min_element(node.holders.begin(), node.holders.end(),
                               [&](uint32_t a, uint32_t b) { return lighter(a, b); });
    }
    return least_loaded();
  }
  uint32_t least_loaded() {
    while (true) {
      if (lightest_.empty()) {
        all_full_ = true;
        take_back_full();
      }
      const Weight top = lightest_.top();
      const uint32_t replica = by_rank_[top.rank];
      const bool full = !all_full_ && !may_have_more(replica);
      if (top.carried == carried_[replica] && !full) return replica;
      lightest_.pop();
      if (full) {
        full_.push_back(replica);
      } else {
        lightest_.push({carried_[replica], top.rank});
      }
    }
  }

  const BurstRules& rules_;
  uint64_t share_;
  std::vector<uint32_t> by_rank_;  // replicas, by what decides between those that carry the same
  std::vector<uint32_t> rank_;
  std::vector<uint64_t> carried_;  // requests or blocks
  // Every replica once, but those in full_; what one carries may have grown since.
  Heap lightest_;
  std::vector<int64_t> given_;      // members of the unit at hand
  std::vector<uint32_t> given_to_;  // the replicas of which that is not 0
  std::vector<uint32_t> full_;      // had as many of the unit as they may
  bool all_full_ = false;           // everyone had: the rest of the unit goes to whoever carries least
  PrefixTree tree_;
  std::unordered_set<uint64_t> held_;  // node and replica
};

std::vector<Unit> units_of(std::span<const std::vector<uint64_t>> requests, uint32_t min_colocate_blocks) {
  std::vector<Unit> units;
  std::unordered_map<uint64_t, size_t> by_key;
  std::unordered_map<uint64_t, uint32_t> sharers;
  by_key.reserve(requests.size());
  const auto beginning = [&](Blocks blocks) { return blocks[min_colocate_blocks - 1]; };
  const auto long_enough = [&](Blocks blocks) {
    return min_colocate_blocks > 0 && blocks.size() >= min_colocate_blocks;
  };
  for (uint32_t i = 0; i < requests.size(); ++i) {
    const Blocks blocks = requests[i];
    if (blocks.empty()) continue;
    if (long_enough(blocks)) ++sharers[beginning(blocks)];
    const auto [at, fresh] = by_key.try_emplace(pair_key(blocks.back(), blocks.size()), units.size());
    if (fresh) units.push_back({blocks, {}});
    units[at->second].members.push_back(i);
  }
  std::erase_if(units, [&](const Unit& unit) {
    if (unit.members.size() >= 2) return false;
    return !long_enough(unit.blocks) || sharers[beginning(unit.blocks)] < 2;
  });
  std::sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) {
    const bool a_group = a.members.size() >= 2;
    const bool b_group = b.members.size() >= 2;
    if (a_group != b_group) return a_group;
    if (a.blocks.size() != b.blocks.size()) return a.blocks.size() > b.blocks.size();
    return a.members.front() < b.members.front();
  });
  return units;
}

}  // namespace

std::vector<uint32_t> assign_burst(std::span<const std::vector<uint64_t>> requests,
                                   std::span<const BurstReplica> replicas, const BurstRules& rules) {
  std::vector<uint32_t> out(requests.size(), kNoReplica);
  if (replicas.empty()) return out;
  std::vector<Unit> units = units_of(requests, rules.min_colocate_blocks);
  uint64_t total = 0;
  for (const Unit& unit : units) total += rules.balance_tokens ? unit.blocks.size() : unit.members.size();
  Placement(replicas, rules, total).place(units, out);
  return out;
}

}  // namespace penstock::scheduling
