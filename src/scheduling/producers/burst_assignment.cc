#include "scheduling/producers/burst_assignment.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/hash.h"

namespace penstock::scheduling {

namespace {

using Blocks = std::span<const uint64_t>;

struct Unit {
  Blocks blocks;
  std::vector<uint32_t> members;  // indices of requests
};

// Equal sequences have equal keys; others don't but by a collision of 64 bits.
uint64_t key_of(Blocks blocks) {
  return hash_of({reinterpret_cast<const char*>(blocks.data()), blocks.size_bytes()});
}

class Placement {
 public:
  Placement(std::span<const BurstReplica> replicas, const BurstRules& rules, uint64_t total)
      : replicas_(replicas),
        rules_(rules),
        share_((total + replicas.size() - 1) / replicas.size()),
        carried_(replicas.size(), 0) {}

  void place(const Unit& unit, std::span<uint32_t> out) {
    given_.assign(replicas_.size(), 0);
    held_ = held_blocks(unit.blocks);
    for (size_t at = 0; at < unit.members.size();) {
      const uint32_t replica = at == 0 ? first_choice() : least_loaded();
      size_t run = unit.members.size() - at;
      if (rules_.max_per_replica >= 0) {
        const int64_t room = std::max<int64_t>(rules_.max_per_replica - given_[replica], 1);
        run = std::min(run, static_cast<size_t>(room));
      }
      if (!rules_.balance_tokens) {
        carried_[replica] += run;
      } else if (given_[replica] == 0) {
        carried_[replica] += unit.blocks.size() - held_[replica];
      }
      given_[replica] += static_cast<int64_t>(run);
      for (const size_t end = at + run; at < end; ++at) out[unit.members[at]] = replica;
    }
    if (!needs_matches()) return;
    for (uint32_t r = 0; r < replicas_.size(); ++r) {
      if (given_[r] == 0) continue;
      for (const uint64_t block : unit.blocks) {
        std::vector<uint32_t>& holders = holders_[block];
        if (std::find(holders.begin(), holders.end(), r) == holders.end()) holders.push_back(r);
      }
    }
  }

 private:
  bool needs_matches() const { return rules_.min_colocate_blocks > 0 || rules_.balance_tokens; }

  // By replica. A replica that holds a block holds those before it: blocks are chained, and units are
  // recorded whole.
  std::vector<size_t> held_blocks(Blocks blocks) const {
    std::vector<size_t> held(replicas_.size(), 0);
    if (!needs_matches()) return held;
    for (const uint64_t block : blocks) {
      const auto found = holders_.find(block);
      if (found == holders_.end()) break;
      for (const uint32_t r : found->second) ++held[r];
    }
    return held;
  }

  bool may_have_more(uint32_t r) const {
    return rules_.max_per_replica < 0 || given_[r] < rules_.max_per_replica;
  }
  bool lighter(uint32_t a, uint32_t b) const {
    if (carried_[a] != carried_[b]) return carried_[a] < carried_[b];
    if (replicas_[a].running != replicas_[b].running) return replicas_[a].running < replicas_[b].running;
    return replicas_[a].name < replicas_[b].name;
  }
  uint32_t first_choice() const {
    uint32_t best = kNoReplica;
    for (uint32_t r = 0; r < replicas_.size(); ++r) {
      if (!may_have_more(r) || carried_[r] >= share_ || held_[r] < rules_.min_colocate_blocks) continue;
      if (best == kNoReplica || held_[r] > held_[best] || (held_[r] == held_[best] && lighter(r, best)))
        best = r;
    }
    return best == kNoReplica ? least_loaded() : best;
  }
  uint32_t least_loaded() const {
    uint32_t best = kNoReplica;
    for (uint32_t r = 0; r < replicas_.size(); ++r) {
      if (!may_have_more(r)) continue;
      if (best == kNoReplica || lighter(r, best)) best = r;
    }
    if (best != kNoReplica) return best;
    best = 0;
    for (uint32_t r = 1; r < replicas_.size(); ++r) {
      if (lighter(r, best)) best = r;
    }
    return best;
  }

  std::span<const BurstReplica> replicas_;
  const BurstRules& rules_;
  uint64_t share_;
  std::vector<uint64_t> carried_;  // requests or blocks
  std::vector<int64_t> given_;     // members of the unit at hand
  std::vector<size_t> held_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> holders_;
};

std::vector<Unit> units_of(std::span<const std::vector<uint64_t>> requests, uint32_t min_colocate_blocks) {
  std::vector<Unit> units;
  std::unordered_map<uint64_t, size_t> by_key;
  std::unordered_map<uint64_t, uint32_t> sharers;
  const auto beginning = [&](Blocks blocks) { return key_of(blocks.first(min_colocate_blocks)); };
  const auto long_enough = [&](Blocks blocks) {
    return min_colocate_blocks > 0 && blocks.size() >= min_colocate_blocks;
  };
  for (uint32_t i = 0; i < requests.size(); ++i) {
    const Blocks blocks = requests[i];
    if (blocks.empty()) continue;
    if (long_enough(blocks)) ++sharers[beginning(blocks)];
    const auto [at, fresh] = by_key.try_emplace(key_of(blocks), units.size());
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
  const std::vector<Unit> units = units_of(requests, rules.min_colocate_blocks);
  uint64_t total = 0;
  for (const Unit& unit : units) total += rules.balance_tokens ? unit.blocks.size() : unit.members.size();
  Placement placement(replicas, rules, total);
  for (const Unit& unit : units) placement.place(unit, out);
  return out;
}

}  // namespace penstock::scheduling
