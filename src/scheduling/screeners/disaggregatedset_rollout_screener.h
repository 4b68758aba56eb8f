#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inference/notifications.h"
#include "inference/plugin.h"
#include "scheduling/epoch_cache.h"
#include "scheduling/filters/label_selector_filter.h"
#include "telemetry/metrics.h"

namespace penstock::scheduling {

// The share gauges of a screener, across the policy epochs in which it goes by one name and mode: what the
// next epoch doesn't show, and what nobody will show any more, goes. Thread-safe.
class RevisionShares {
 public:
  RevisionShares(std::string_view plugin_name, std::string_view mode, telemetry::MetricRegistry& metrics);
  ~RevisionShares();
  RevisionShares(const RevisionShares&) = delete;
  RevisionShares& operator=(const RevisionShares&) = delete;
  // Parallel to each other, names ascending.
  void show(const std::vector<std::string>& revisions, const std::vector<double>& shares);

 private:
  const std::string name_;
  const std::string mode_;
  telemetry::Family<telemetry::Gauge>& gauge_;
  std::mutex mutex_;
  std::vector<std::string> shown_;
};

// `disaggregatedset-rollout-screener`: while a set of prefill and decode workers is rolled out, keeps a
// request within one revision, and sends each revision its share.
//   covered revision: every required role has at least one worker. weight(revision) = the sum of its required
//   roles' workers (sum), or the workers of the role with the most over all covered revisions (max-role);
//   share = weight / sum of weights.
//   Gating: one revision is drawn by its share (names ascending, u * sum of the shares of the candidates'
//   revisions); with a strict header only revisions with a share stay, undrawn. Candidates without a revision
//   go. Then each strict selector whose header is not empty keeps the endpoints whose label equals it.
// After the pick every selector whose label the endpoint has tells the client its value in the header.
// Examples: A{prefill 2, decode 9}, B{prefill 1, decode 1}: sum 11/13 and 2/13; max-role, decode 10: 0.9 and
// 0.1. C{prefill 3} has none. u 0.5: A; u 0.9: B.
//
// Workers are the ready Pods that match the scope, where a k8s-notification-source tells of Pods. Where none
// has (yet), they are the pool's endpoints that are not draining and match the scope, one for each name: a
// rank of its own is not a worker. (The reference refuses everything until it knows the Pods.)
class DisaggregatedSetRolloutScreener final : public Screener, public PreRequest, public ObjectExtractor {
 public:
  static constexpr std::string_view kType = "disaggregatedset-rollout-screener";
  enum class Gating : uint8_t { kSum, kMaxRole, kDisabled };
  struct Selector {
    std::string name;
    std::string header;  // lower-case
    std::string label;
    bool strict = false;
  };
  struct Params {
    std::vector<LabelRequirement> scope;
    std::vector<Selector> selectors;
    Gating gating = Gating::kSum;
    std::string revision_label = "disaggregatedset.x-k8s.io/revision";
    std::string role_label = "disaggregatedset.x-k8s.io/role";
    std::vector<std::string> required_roles;
  };
  using Counts = std::map<std::string, std::map<std::string, uint32_t, std::less<>>, std::less<>>;
  using Shares = std::map<std::string, double, std::less<>>;

  static void bind(config::Binder& b, Params& p);
  static Result<std::unique_ptr<Plugin>> create(Params params, const PluginFactoryContext& context);
  // The share of each revision; 0 for those that are not covered.
  static Shares shares_of(const Params& params, const Counts& counts);
  // Which of `shares` `u` in [0, 1) falls on; their number where none is above 0.
  static size_t draw(std::span<const double> shares, double u);

  DisaggregatedSetRolloutScreener(Params params, std::shared_ptr<RevisionShares> shown, std::string_view name,
                                  telemetry::MetricRegistry& metrics);

  size_t screen(SchedulingContext& ctx, std::span<Candidate> inout) const override;
  Status pre_request(SchedulingContext& ctx, const SchedulingResult& result) const override;
  bool works_on_answers() const override { return !params_.selectors.empty(); }
  ObjectKind object_kind() const override;
  std::vector<std::string> object_fields() const override;
  void objects(const NotifiedObjects& all) const override;

 private:
  static constexpr uint32_t kNoRevision = UINT32_MAX;
  // Of one membership: the workers' revisions, by name.
  struct Revisions {
    std::vector<std::string> names;
    std::vector<double> shares;
    std::vector<uint32_t> of;  // by Candidate; kNoRevision: none, or one without workers
  };
  Revisions revisions_of(const PoolSnapshot& pool) const;
  Counts count(const PoolSnapshot& pool) const;
  void count_worker(const Endpoint& worker, Counts& counts) const;
  size_t gate(SchedulingContext& ctx, std::span<Candidate> inout) const;

  Params params_;
  std::string name_label_;
  telemetry::Family<telemetry::Counter>& no_match_;
  std::shared_ptr<RevisionShares> shown_;
  mutable std::mutex mutex_;
  mutable std::optional<Counts> of_pods_;  // nothing: nobody has told of Pods
  mutable EpochCache<Revisions> revisions_;
};

}  // namespace penstock::scheduling
