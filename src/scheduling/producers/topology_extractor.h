#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "inference/notifications.h"
#include "inference/plugin.h"
#include "scheduling/epoch_cache.h"

namespace penstock::scheduling {

// `topology-extractor`: where each endpoint runs, from its labels. Where the host label is missing, the
// spec.hostname of the ready Pod of the endpoint's name counts, if a k8s-notification-source tells of Pods.
// An endpoint without any of them has no place. Both are read once for each membership of the pool and each
// change of the Pods. Example: {topology.kubernetes.io/zone: z1} is a zone and nothing else.
class TopologyExtractor final : public DataProducer, public EndpointExtractor, public ObjectExtractor {
 public:
  static constexpr std::string_view kType = "topology-extractor";
  struct Params {
    std::string hostname = "kubernetes.io/hostname";
    std::string rack = "topology.kubernetes.io/rack";
    std::string zone = "topology.kubernetes.io/zone";
    std::string region = "topology.kubernetes.io/region";
  };
  static void bind(config::Binder& b, Params& p);
  explicit TopologyExtractor(Params params) : params_(std::move(params)) {}

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  Status produce(SchedulingContext& ctx) const override;
  ObjectKind object_kind() const override;
  std::vector<std::string> object_fields() const override;
  void objects(const NotifiedObjects& all) const override;

 private:
  using Hostnames = std::map<std::string, std::string, std::less<>>;  // by "<namespace>/<pod>"
  struct Places {
    std::shared_ptr<const Hostnames> hostnames;  // which `of` looks into
    std::vector<Topology> of;                    // by Candidate
  };
  DataKey key() const { return data_keys::kTopology.with_producer(name()); }

  Params params_;
  AttributeSlot slot_ = kNoSlot;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Hostnames> hostnames_ = std::make_shared<Hostnames>();
  mutable EpochCache<Places> places_;
};

}  // namespace penstock::scheduling
