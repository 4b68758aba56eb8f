#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "inference/endpoint.h"

namespace penstock::discovery {

// One model server as a discovery source tells of it, before a pool makes endpoints of it.
struct DiscoveredEndpoint {
  std::string ns = "default";
  std::string name;
  std::string address;           // IP literal without brackets, or host name
  std::optional<uint16_t> port;  // none: the pool's targetPorts, one endpoint (rank) for each
  // With a port: this is the rank behind it, and a part of the id even where there is one only.
  std::optional<int> rank;
  bool tls = false;
  std::string tls_name;      // name for SNI and verification; empty: the address
  std::string metrics_host;  // host:port to scrape; empty: where requests go
  std::map<std::string, std::string, std::less<>> labels;
  std::string engine;
  bool draining = false;
};

// Hands out slot numbers for the whole process, lowest first. A returned one rests for `grace` before it
// is given to another endpoint, so that whoever still holds a snapshot or a late answer meets no
// stranger. Thread-safe.
class SlotAllocator {
 public:
  explicit SlotAllocator(Duration grace = std::chrono::seconds(30), size_t limit = kMaxEndpoints)
      : grace_(grace), limit_(limit) {}
  // Nothing when all `limit` slots are taken or resting.
  std::optional<EndpointSlot> take(TimePoint now);
  void give_back(EndpointSlot slot, TimePoint now);
  size_t in_use() const;

 private:
  struct Resting {
    EndpointSlot slot;
    TimePoint until;
  };
  const Duration grace_;
  const size_t limit_;
  mutable std::mutex mutex_;
  std::deque<Resting> resting_;     // by time
  std::vector<EndpointSlot> free_;  // heap, lowest first
  size_t next_ = 0;
  size_t in_use_ = 0;
};

// Told of every change of a pool, in order, from the thread that applied it, under the pool's writer
// lock: must not block and must not call back into the pool's writing side. An added endpoint is told
// after the snapshot that has it was published; a removed one after the snapshot without it was.
class EndpointListener {
 public:
  virtual ~EndpointListener() = default;
  virtual void endpoint_added(const std::shared_ptr<const Endpoint>& endpoint) = 0;
  // Same slot, live side, address and port; labels, engine, draining … may differ. An endpoint whose address
  // or port changed is removed, and added under its name with another slot.
  virtual void endpoint_updated(const std::shared_ptr<const Endpoint>& before,
                                const std::shared_ptr<const Endpoint>& after) = 0;
  virtual void endpoint_removed(const std::shared_ptr<const Endpoint>& endpoint) = 0;
};

struct PoolOptions {
  std::string name;
  std::string ns = "default";
  // matchLabels: an endpoint belongs to the pool when it has all of them; empty: every endpoint.
  std::map<std::string, std::string, std::less<>> selector;
  // Used for endpoints that name no port. Index = rank.
  std::vector<uint16_t> target_ports;
  size_t max_endpoints = kMaxEndpoints;
};

// The endpoints of one pool. Sources replace what they know as a whole; the pool selects by labels,
// makes endpoints, and publishes one immutable snapshot per change, ordered by id. Writing: any thread,
// serialised inside. Reading: any thread; loops use a PoolReader, which compares one number.
//
// Ids: "<namespace>/<name>", and "<namespace>/<name>-rank-<i>" when the source says the rank, or an endpoint
// without a port meets several targetPorts. When two sources name the same id, the source that came first
// keeps it.
class Pool {
 public:
  // Both references outlive the pool.
  Pool(PoolOptions options, SlotAllocator& slots, const Clock& clock);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Makes `endpoints` all that `source` knows, in one publication; nothing is published when nothing
  // changed. What cannot be made an endpoint (no port anywhere, no slot left, more than max_endpoints,
  // repeated id) is left out and named in the returned texts.
  std::vector<std::string> apply(std::string_view source, std::vector<DiscoveredEndpoint> endpoints);
  // Changes selector and ports (a reloaded manifest) and re-selects.
  std::vector<std::string> reconfigure(std::map<std::string, std::string, std::less<>> selector,
                                       std::vector<uint16_t> target_ports);

  // The listener is first told of every endpoint there is. It must outlive the pool or be removed.
  void add_listener(EndpointListener* listener);
  void remove_listener(EndpointListener* listener);

  std::shared_ptr<const PoolSnapshot> snapshot() const;
  // Epoch of the newest snapshot; starts at 1 with no endpoints.
  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  const std::string& name() const { return name_; }
  const std::string& ns() const { return ns_; }

 private:
  std::vector<std::string> rebuild();  // REQUIRES: writer_ held

  const std::string name_;
  const std::string ns_;
  const size_t max_endpoints_;
  SlotAllocator& slots_;
  const Clock& clock_;

  std::mutex writer_;
  std::map<std::string, std::string, std::less<>> selector_;
  std::vector<uint16_t> target_ports_;
  std::vector<std::pair<std::string, std::vector<DiscoveredEndpoint>>> sources_;
  std::vector<EndpointListener*> listeners_;

  std::atomic<uint64_t> epoch_{1};
  mutable std::mutex snapshot_mutex_;
  std::shared_ptr<const PoolSnapshot> snapshot_;
};

// One loop's hold on a pool's newest snapshot. get() costs one atomic load unless the membership moved.
class PoolReader {
 public:
  explicit PoolReader(const Pool& pool) : pool_(pool), snapshot_(pool.snapshot()) {}
  // Valid until the next call; copy the pointer to keep it longer.
  const std::shared_ptr<const PoolSnapshot>& get() {
    if (pool_.epoch() != snapshot_->epoch) snapshot_ = pool_.snapshot();
    return snapshot_;
  }

 private:
  const Pool& pool_;
  std::shared_ptr<const PoolSnapshot> snapshot_;
};

}  // namespace penstock::discovery
