#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "inference/plugin.h"
#include "telemetry/metrics.h"

namespace penstock::scheduling {

// Which media items (by 64-bit hash of their content hash) each endpoint's encoder cache holds: an LRU of
// `capacity` items an endpoint, about 80 bytes each. What was said of an endpoint is void once its slot has
// another id or address. Thread-safe; one lock, taken once a request.
class EncoderCacheTable {
 public:
  static constexpr size_t kMaxCapacity = 16384;  // 32 GiB of encoder cache, 1.3 MB here

  explicit EncoderCacheTable(size_t capacity);  // 1..kMaxCapacity, others count as the nearest

  // Calls `found(i, k)` where candidate i of `candidates` holds item k of `items`, then `done()`; under the
  // lock: none of the endpoints that were found leaves before that.
  template <typename Found, typename Done>
  void match(const PoolSnapshot& pool, std::span<const Candidate> candidates, std::span<const uint64_t> items,
             Found&& found, Done&& done) const {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < candidates.size(); ++i) {
      const Cache* cache = find(*pool.endpoints[candidates[i]]);
      for (size_t k = 0; cache != nullptr && k < items.size(); ++k) {
        if (cache->index.contains(items[k])) found(i, k);
      }
    }
    done();
  }
  // Makes the items the most recent of the endpoint, the last one most.
  void add(const Endpoint& endpoint, std::span<const uint64_t> items);
  // Forgets the endpoint; decisions that still see it bring nothing back.
  void remove(const Endpoint& endpoint);
  size_t capacity() const { return capacity_; }

  struct Pod {
    std::string id;
    size_t items = 0;
  };
  std::vector<Pod> pods() const;

 private:
  struct Cache {
    std::shared_ptr<EndpointLive> gone;  // of the endpoint that left; nothing is kept of it
    std::string id;
    std::string host_port;
    std::list<uint64_t> recent;  // oldest first
    std::unordered_map<uint64_t, std::list<uint64_t>::iterator> index;
    bool is_of(const Endpoint& endpoint) const {
      return id == endpoint.id && host_port == endpoint.host_port;
    }
  };
  // nullptr: nothing is known of it.
  const Cache* find(const Endpoint& endpoint) const;
  void touch(Cache& cache, uint64_t item) const;

  size_t capacity_;
  mutable std::mutex mutex_;
  std::unordered_map<EndpointSlot, Cache> caches_;
};

// `mm-embeddings-cache-producer`: how many of the request's distinct media items (features with a content
// hash, over all prompts) each endpoint has encoded lately, as far as it follows from the requests sent
// there. After the pick all items count as held by every primary target.
//   capacity of an endpoint = max(1, cacheSizeInMBPerServer / 2) items, 2 MiB each, at most 16384
// Of one request kMaxItems items are looked at.
// Example: items {h1, h2, h1} are 2; A served h1: A 1 of 2, B 0 of 2. 4096 MB are 2048 items, 3 are 1.
class MmEmbeddingsCacheProducer final : public DataProducer, public PreRequest, public EndpointObserver {
 public:
  static constexpr std::string_view kType = "mm-embeddings-cache-producer";
  static constexpr size_t kMaxItems = 256;  // of one request that are looked at
  struct Params {
    int cache_mib = 4096;
  };
  static void bind(config::Binder& b, Params& p);
  static Result<std::unique_ptr<Plugin>> create(Params params, const PluginFactoryContext& context);
  static size_t capacity(const Params& params);

  MmEmbeddingsCacheProducer(std::shared_ptr<EncoderCacheTable> table, std::string_view name,
                            telemetry::MetricRegistry& metrics);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  Status produce(SchedulingContext& ctx) const override;
  Status pre_request(SchedulingContext& ctx, const SchedulingResult& result) const override;
  void endpoint_removed(const Endpoint& endpoint) const override;
  std::optional<std::string> dump_state() const override;

 private:
  // Parallel to each other.
  struct Items {
    std::span<uint64_t> hashes;
    std::span<std::string_view> modalities;
  };
  DataKey key() const { return data_keys::kMultiModalMatch.with_producer(name()); }
  static Items distinct_items(SchedulingContext& ctx);

  std::shared_ptr<EncoderCacheTable> table_;
  std::string name_label_;
  AttributeSlot slot_ = kNoSlot;
  telemetry::Family<telemetry::Counter>& queries_;
  telemetry::Family<telemetry::Counter>& hits_;
  telemetry::Histogram& hit_ratio_;
};

}  // namespace penstock::scheduling
