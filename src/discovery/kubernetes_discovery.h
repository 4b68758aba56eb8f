#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "config/manifests.h"
#include "discovery/source.h"
#include "io/loop.h"
#include "kubernetes/access_review.h"
#include "kubernetes/api_client.h"
#include "kubernetes/condition_writer.h"
#include "kubernetes/follower.h"
#include "kubernetes/leader_election.h"
#include "kubernetes/pod.h"

namespace penstock::discovery {

struct KubernetesDiscoveryOptions {
  kubernetes::ClusterConfig cluster;
  std::string ns = "default";  // of pool, pods, objectives and rewrites

  // Either a pool: its InferencePool says which pods and ports …
  std::string pool_name;
  std::string pool_group = std::string(kubernetes::kPoolGroup);  // or kLegacyGroup: v1alpha2
  // … or, stand-alone and without CRDs, these do.
  std::string selector;  // any label selector
  std::vector<uint16_t> target_ports;

  std::string tls_name;  // server name of https engines; "" the address
  // Changes that come within this of each other are one change of the pool.
  Duration gather = std::chrono::milliseconds(5);
  // How often it is looked whether an optional resource that is missing has come.
  Duration look_again = std::chrono::seconds(60);
  // Stand for leader by this Lease; nothing: there is no election.
  std::optional<kubernetes::LeaderElectionOptions> election;
  // Times of every watch; what it selects is filled in.
  kubernetes::ReflectorOptions watch;
  kubernetes::ApiClientOptions client;
};

// What a cluster says of a pool beside its endpoints. Called on the source's own thread; must not block.
class PoolListener {
 public:
  virtual ~PoolListener() = default;
  // The InferencePool as it is now; nullptr: it has been deleted, and what it said last holds on.
  virtual void pool_changed(const config::InferencePool* pool) = 0;
  // Objectives and rewrites that name the pool.
  virtual void rules_changed(const config::Manifests& rules) = 0;
  // More or less of state() than its times has changed.
  virtual void state_changed() = 0;
};

// Endpoints of one pool from a cluster: every ready pod that the pool selects, once for each of its target
// ports that is active, "<namespace>/<pod>-rank-<index>". Objectives and rewrites of llm-d.ai, or where that
// group is not installed of inference.networking.x-k8s.io. One thread for all watches.
//
// The server may be away, refuse us, lack the CRDs, or forget what it told: the last good endpoints and rules
// stay, and state(), the log and the metrics penstock_kubernetes_* say what is wrong and how old the picture
// is. A pool that is deleted while it serves does so on with what it last said; the reference drops every
// endpoint then.
class KubernetesDiscovery {
 public:
  // Checks selector and certificates; connects to nothing. Sink, listener and metrics outlive it.
  static Result<std::unique_ptr<KubernetesDiscovery>> create(KubernetesDiscoveryOptions options,
                                                             EndpointSink& sink, PoolListener& listener,
                                                             telemetry::MetricRegistry& metrics);
  ~KubernetesDiscovery();  // stop()
  KubernetesDiscovery(const KubernetesDiscovery&) = delete;
  KubernetesDiscovery& operator=(const KubernetesDiscovery&) = delete;

  void start();
  void stop();
  // Stands no longer, and gives the Lease back; any thread.
  void release_leadership();
  // Whether the caller with that bearer token may use a path of ours (TokenReview, SubjectAccessReview; kept
  // for a minute). A coroutine of the caller's own loop.
  io::Task<kubernetes::Access> review(io::Loop& caller, std::string token, std::string verb, std::string path,
                                      io::CancelToken cancel);

  // --- any thread ---
  // The pool's definition and all its pods were seen.
  bool pool_known() const;
  // Objectives and rewrites too, where the cluster has them.
  bool complete() const;
  // Without an election always.
  bool leader() const;
  // {"cluster":…,"pool":"known"|"unknown"|"deleted","resources":[…]}
  std::string state_json() const;

 private:
  template <typename T>
  struct Seen {
    T object;
    bool terminating = false;
  };
  using Pools = kubernetes::Follower<Seen<config::InferencePool>>;
  using Pods = kubernetes::Follower<kubernetes::PodRecord>;
  using Objectives = kubernetes::Follower<Seen<config::InferenceObjective>>;
  using Rewrites = kubernetes::Follower<Seen<config::InferenceModelRewrite>>;

  KubernetesDiscovery(KubernetesDiscoveryOptions options, EndpointSink& sink, PoolListener& listener);
  Status prepare(telemetry::MetricRegistry& metrics);
  // `judged` hears of every version of an object, the record where it could be read.
  template <typename T>
  static typename kubernetes::Store<Seen<T>>::Decode decode_with(
      std::function<Result<T>(const config::Node&)> decode,
      std::function<void(kubernetes::Json, const Result<T>&)> judged);
  kubernetes::ReflectorOptions query(const kubernetes::Resource& resource) const;
  void begin();
  void follow_pods(const std::string& selector);
  void pool_arrived();
  void rules_arrived();
  void gather();
  void tell_endpoints();
  // One optional resource: which group has it, whether one does.
  struct Kind {
    kubernetes::Resource preferred;
    kubernetes::Resource legacy;
    std::function<void(kubernetes::ReflectorOptions)> follow;
    std::optional<kubernetes::Resource> followed;
    bool looked = false;  // it is known whether there is one
    bool absent = false;
    std::string trouble;
  };
  io::Task<void> follow_kind(Kind& kind);
  // Which of the two the server has; an answer that says neither yes nor no is a failure.
  io::Task<kubernetes::Failure> look_for(Kind& kind, io::CancelToken token,
                                         std::optional<kubernetes::Resource>& found);
  static void tell(void* self);
  struct Review;
  io::Task<void> answer(std::shared_ptr<Review> review);
  bool names_pool(const config::PoolRef& ref) const;
  // The condition Accepted of an objective or rewrite of the pool.
  void judge(const Kind& kind, kubernetes::Json object, kubernetes::Acceptance acceptance);

  const KubernetesDiscoveryOptions options_;
  EndpointSink& sink_;
  PoolListener& listener_;
  std::unique_ptr<kubernetes::Metrics> metrics_;
  io::LoopGroup loops_{1};
  std::unique_ptr<kubernetes::ApiClient> api_;
  std::unique_ptr<Pools> pools_;  // null: stand-alone
  std::unique_ptr<Pods> pods_;
  std::unique_ptr<Objectives> objectives_;
  std::unique_ptr<Rewrites> rewrites_;
  std::unique_ptr<kubernetes::LeaderElection> election_;
  io::CancelSource election_ends_;  // on the loop
  std::unique_ptr<kubernetes::ConditionWriter> conditions_;
  std::unique_ptr<kubernetes::AccessReviews> reviews_;
  std::optional<io::Timer> gather_timer_;
  bool started_ = false;

  // On the loop.
  std::vector<uint16_t> ports_;
  std::string selector_;
  std::string app_protocol_;
  bool selecting_ = false;
  TimePoint gathering_since_{};  // of the change that is told next

  mutable std::mutex mutex_;  // what state tells
  enum class PoolState : uint8_t { kUnknown, kKnown, kDeleted };
  PoolState pool_state_ = PoolState::kUnknown;
  bool pods_told_ = false;
  Kind objective_kind_;
  Kind rewrite_kind_;
};

}  // namespace penstock::discovery
