#pragma once

#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "inference/plugin.h"
#include "telemetry/metrics.h"

namespace penstock::scheduling {

// Which media items (by 64-bit hash of their content hash) each endpoint's encoder cache holds: an LRU of
// `capacity` items an endpoint. Thread-safe.
class EncoderCacheTable {
 public:
  explicit EncoderCacheTable(size_t capacity);

  bool holds(EndpointSlot slot, uint64_t item) const;
  // Makes the item the most recent of the endpoint.
  void add(const Endpoint& endpoint, uint64_t item);
  void remove(EndpointSlot slot);
  size_t capacity() const { return capacity_; }

  struct Pod {
    std::string id;
    size_t items = 0;
  };
  std::vector<Pod> pods() const;

 private:
  struct Cache {
    std::string id;
    std::list<uint64_t> recent;  // oldest first
    std::unordered_map<uint64_t, std::list<uint64_t>::iterator> index;
  };
  size_t capacity_;
  mutable std::mutex mutex_;
  std::unordered_map<EndpointSlot, Cache> caches_;
};

// `mm-embeddings-cache-producer`: how many of the request's distinct media items (features with a content
// hash, over all prompts) each endpoint has encoded lately, as far as it follows from the requests sent
// there. After the pick all items count as held by every primary target.
//   capacity of an endpoint = max(1, cacheSizeInMBPerServer / 2) items, 2 MiB each
// Example: items {h1, h2, h1} are 2; A served h1: A 1 of 2, B 0 of 2. 4096 MB are 2048 items, 3 are 1.
class MmEmbeddingsCacheProducer final : public DataProducer, public PreRequest, public EndpointObserver {
 public:
  static constexpr std::string_view kType = "mm-embeddings-cache-producer";
  static constexpr size_t kMaxItems = 256;  // of one request that are looked at
  struct Params {
    int cache_mib = 4096;
  };
  static void bind(config::Binder& b, Params& p);
  static Result<std::unique_ptr<Plugin>> create(const PluginFactoryContext& context);
  static size_t capacity(const Params& params);

  MmEmbeddingsCacheProducer(std::shared_ptr<EncoderCacheTable> table, std::string_view name,
                            telemetry::MetricRegistry& metrics);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  Status produce(SchedulingContext& ctx) const override;
  Status pre_request(SchedulingContext& ctx, const SchedulingResult& result) const override;
  void endpoint_removed(const Endpoint& endpoint) const override { table_->remove(endpoint.slot); }
  std::optional<std::string> dump_state() const override;

 private:
  struct Item {
    uint64_t hash;
    std::string_view modality;
  };
  DataKey key() const { return data_keys::kMultiModalMatch.with_producer(name()); }
  static std::span<const Item> distinct_items(SchedulingContext& ctx);

  std::shared_ptr<EncoderCacheTable> table_;
  std::string name_label_;
  AttributeSlot slot_ = kNoSlot;
  telemetry::Family<telemetry::Counter>& queries_;
  telemetry::Family<telemetry::Counter>& hits_;
  telemetry::Histogram& hit_ratio_;
};

}  // namespace penstock::scheduling
