#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "inference/endpoint.h"

namespace penstock::scheduling {

// The endpoints that a plugin has met, by slot: what it keeps by slot is shown under their names. see() is
// one load where the endpoint is known. Thread-safe.
class SeenEndpoints {
 public:
  void see(const std::shared_ptr<const Endpoint>& endpoint) {
    // One that is held keeps its address: no other endpoint can have it.
    std::atomic<const Endpoint*>& known = known_[endpoint->slot];
    if (known.load(std::memory_order_relaxed) == endpoint.get()) return;
    const std::lock_guard lock(mutex_);
    if (held_.size() <= endpoint->slot) held_.resize(endpoint->slot + size_t{1});
    held_[endpoint->slot] = endpoint;
    known.store(endpoint.get(), std::memory_order_relaxed);
  }
  void forget(EndpointSlot slot) {
    const std::lock_guard lock(mutex_);
    known_[slot].store(nullptr, std::memory_order_relaxed);
    if (slot < held_.size()) held_[slot].reset();
  }
  std::vector<std::shared_ptr<const Endpoint>> list() const {
    std::vector<std::shared_ptr<const Endpoint>> out;
    const std::lock_guard lock(mutex_);
    for (const auto& endpoint : held_) {
      if (endpoint != nullptr) out.push_back(endpoint);
    }
    return out;
  }
  // "" of a slot that was not seen.
  std::string id_of(EndpointSlot slot) const {
    const std::lock_guard lock(mutex_);
    return slot < held_.size() && held_[slot] != nullptr ? held_[slot]->id : std::string();
  }

 private:
  std::array<std::atomic<const Endpoint*>, kMaxEndpoints> known_{};
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const Endpoint>> held_;
};

}  // namespace penstock::scheduling
