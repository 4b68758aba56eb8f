#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <typeindex>
#include <vector>

namespace penstock {

// Names a piece of data that one plugin makes and others use: (data type, producer). Printed
// "dataType/producer"; equality is on both parts. Resolved to a slot number when the configuration is
// loaded; at run time only the slot is used.
struct DataKey {
  std::string data_type;
  std::string producer;

  std::string text() const { return data_type + "/" + producer; }
  // The same key made by another instance; an empty name keeps this one.
  DataKey with_producer(std::string_view name) const {
    return name.empty() ? *this : DataKey{data_type, std::string(name)};
  }
  friend bool operator==(const DataKey&, const DataKey&) = default;
};

namespace data_keys {
inline const DataKey kTokenizedPrompt{"TokenizedPrompt", "token-producer"};
inline const DataKey kPrefixMatch{"PrefixCacheMatchInfoDataKey", "approx-prefix-cache-producer"};
inline const DataKey kInFlightLoad{"InFlightLoadDataKey", "inflight-load-producer"};
inline const DataKey kUncachedRequestTokens{"UncachedRequestTokensDataKey", "inflight-load-producer"};
inline const DataKey kMultiModalMatch{"MultiModalEncoderCacheMatchInfoKey", "mm-embeddings-cache-producer"};
inline const DataKey kLatencyPrediction{"LatencyPredictionInfoDataKey", "predicted-latency-producer"};
inline const DataKey kSessionId{"SessionIDDataKey", "session-id-producer"};
inline const DataKey kPeerEndpoint{"peer-endpoint", "disagg-profile-handler"};
inline const DataKey kCacheSource{"best-match", "p2p-source-producer"};
inline const DataKey kTopology{"Topology", "topology-extractor"};
inline const DataKey kGpuUtilization{"GPUUtilization", "dcgm-extractor"};
inline const DataKey kMulticlusterKvUsage{"llm-d.ai/multicluster-kv-cache-utilization", ""};
inline const DataKey kMulticlusterQueueSize{"llm-d.ai/multicluster-queue-size", ""};
// Not an attribute: InferenceRequest::agent_identity.
inline const DataKey kAgentIdentity{"agent-identity", ""};
// The scraped keys name columns of SignalView, not attributes; they are declared, by extractors and their
// consumers alike, with the value type SignalValue, kActiveModels and kWaitingModels with LoraSignal.
inline const DataKey kWaitingQueueSize{"WaitingQueueSize", "core-metrics-extractor"};
inline const DataKey kRunningRequestsSize{"RunningRequestsSize", "core-metrics-extractor"};
inline const DataKey kKvCacheUsagePercent{"KVCacheUsagePercent", "core-metrics-extractor"};
inline const DataKey kActiveModels{"ActiveModels", "core-metrics-extractor"};
inline const DataKey kWaitingModels{"WaitingModels", "core-metrics-extractor"};
}  // namespace data_keys

// Number of a column in AttributeTable; kNoSlot: nobody produces it.
using AttributeSlot = uint16_t;
inline constexpr AttributeSlot kNoSlot = 0xFFFF;

struct DataUse {
  DataKey key;
  std::type_index value_type;
  bool required = true;
};

// What one plugin instance declares at load time.
struct DataDeclaration {
  std::vector<DataUse> consumes;
  std::vector<DataUse> produces;

  template <typename T>
  void require(DataKey key) {
    consumes.push_back({std::move(key), typeid(T), true});
  }
  template <typename T>
  void optional(DataKey key) {
    consumes.push_back({std::move(key), typeid(T), false});
  }
  template <typename T>
  void produce(DataKey key) {
    produces.push_back({std::move(key), typeid(T), true});
  }
};

// Given to each plugin once, after the graph is complete: slot numbers for the keys it declared.
class SlotResolver {
 public:
  virtual ~SlotResolver() = default;
  // kNoSlot for an optional key without a producer.
  virtual AttributeSlot slot(const DataKey& key) const = 0;
};

}  // namespace penstock
