#pragma once

#include <optional>
#include <string_view>

#include "inference/plugin.h"

namespace penstock::scheduling {

// How near two endpoints are: the tightest level at which both name the same place. Fields are compared
// independently, the host first.
enum class Nearness : uint8_t { kHost, kRack, kZone, kRegion, kNone };
inline Nearness nearness(const Topology& a, const Topology& b) {
  const auto same = [](std::string_view x, std::string_view y) { return !x.empty() && x == y; };
  if (same(a.hostname, b.hostname)) return Nearness::kHost;
  if (same(a.rack, b.rack)) return Nearness::kRack;
  if (same(a.zone, b.zone)) return Nearness::kZone;
  if (same(a.region, b.region)) return Nearness::kRegion;
  return Nearness::kNone;
}

// Reads where endpoints run and whom the request's other half went to (data_keys::kPeerEndpoint).
class TopologyReader {
 public:
  explicit TopologyReader(std::string_view producer)
      : topology_key_(data_keys::kTopology.with_producer(producer)) {}

  void declare(DataDeclaration& declaration) const {
    declaration.optional<Topology>(topology_key_);
    declaration.optional<PeerEndpoint>(data_keys::kPeerEndpoint);
  }
  void bind_slots(const SlotResolver& slots) {
    topology_slot_ = slots.slot(topology_key_);
    peer_slot_ = slots.slot(data_keys::kPeerEndpoint);
  }
  // Empty: nobody knows.
  std::span<const Topology> column(const SchedulingContext& ctx) const {
    return ctx.attributes.column<Topology>(topology_slot_);
  }
  // Where the peer runs; nothing without a peer or its topology.
  std::optional<Topology> peer(const SchedulingContext& ctx) const {
    const auto* peer = ctx.attributes.value<PeerEndpoint>(peer_slot_);
    const std::span<const Topology> column = this->column(ctx);
    if (peer == nullptr || column.empty() || !column[peer->endpoint].known()) return std::nullopt;
    return column[peer->endpoint];
  }

 private:
  DataKey topology_key_;
  AttributeSlot topology_slot_ = kNoSlot;
  AttributeSlot peer_slot_ = kNoSlot;
};

}  // namespace penstock::scheduling
