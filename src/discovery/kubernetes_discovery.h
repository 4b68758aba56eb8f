#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "config/manifests.h"
#include "discovery/kubernetes_objects.h"
#include "discovery/optional_kind.h"
#include "discovery/pool_config.h"
#include "discovery/source.h"
#include "io/loop.h"
#include "kubernetes/access_review.h"
#include "kubernetes/api_client.h"
#include "kubernetes/condition_writer.h"
#include "kubernetes/follower.h"
#include "kubernetes/leader_election.h"
#include "kubernetes/pod.h"

namespace penstock::discovery {

// The label of series that belong to one of several pools: "<namespace>/<name>".
inline constexpr std::string_view kPoolLabel = "inference_pool";

struct KubernetesDiscoveryOptions {
  kubernetes::ClusterConfig cluster;
  std::string ns = "default";  // of pool, pods, objectives and rewrites

  // Either a pool: its InferencePool says which pods and ports …
  std::string pool_name;
  std::string pool_group = std::string(kubernetes::kPoolGroup);  // or kLegacyGroup: v1alpha2
  // … or every pool that a label selector selects ("": each), as they come and go, …
  bool many = false;
  std::string pool_selector;
  bool all_namespaces = false;  // then `ns` is that of the Lease only
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

// What a cluster says of pools beside their endpoints. Called on the source's own thread; must not block. A
// pool's id is "<namespace>/<name>".
class PoolListener {
 public:
  virtual ~PoolListener() = default;
  // The InferencePool as it is now; nullptr: it has been deleted, or is selected no longer, and what it said
  // last holds on.
  virtual void pool_changed(const std::string& id, const config::InferencePool* pool) = 0;
  // Objectives and rewrites that name a pool of ours.
  virtual void rules_changed(const config::Manifests& rules) = 0;
  // More or less of state() than its times has changed.
  virtual void state_changed() = 0;

  // --- of several pools ---
  // All that there are have been told of, for the first time.
  virtual void pools_listed() {}
  // What the configuration is that a pool names by kConfigAnnotation.
  virtual void config_changed(const std::string& /*id*/, const PoolConfig& /*config*/) {}
};

// Endpoints of one pool, or of several, from a cluster: every ready pod that the pool selects, once for each
// of its target ports that is active, "<namespace>/<pod>-rank-<index>". Objectives and rewrites of llm-d.ai,
// or where that group is not installed of inference.networking.x-k8s.io. One thread for all watches: of
// several pools one of all InferencePools, one of each kind of rules, and of each pool one of its pods and
// one of the ConfigMap that it names.
//
// The server may be away, refuse us, lack the CRDs, or forget what it told: the last good endpoints and rules
// stay, and state(), the log and the metrics penstock_kubernetes_* say what is wrong and how old the picture
// is. A pool that is deleted while it serves does so on with what it last said; the reference drops every
// endpoint then.
class KubernetesDiscovery {
 public:
  // Checks selectors and certificates; connects to nothing. Sink, listener and metrics outlive it. `sink` is
  // the one pool's; of several each gets its own by attach().
  static Result<std::unique_ptr<KubernetesDiscovery>> create(KubernetesDiscoveryOptions options,
                                                             EndpointSink* sink, PoolListener& listener,
                                                             telemetry::MetricRegistry& metrics);
  ~KubernetesDiscovery();  // stop()
  KubernetesDiscovery(const KubernetesDiscovery&) = delete;
  KubernetesDiscovery& operator=(const KubernetesDiscovery&) = delete;

  void start();
  void stop();
  // Stands no longer, and gives the Lease back; any thread.
  void release_leadership();

  // --- of several pools; between start() and stop(), from outside the loop ---
  // Has the pool's pods followed, and told to the sink.
  void attach(const std::string& id, EndpointSink& sink);
  // False: the pool is there (again), and nothing is done. True: it is forgotten, and its sink is not used.
  bool detach(const std::string& id);
  // An Event about the InferencePool.
  void warn(const std::string& id, std::string reason, std::string message);

  // Follows objects for plugins. As long as this.
  ObjectFollower& objects() { return *objects_; }

  // Whether the caller with that bearer token may use a path of ours (TokenReview, SubjectAccessReview; kept
  // for a minute). A coroutine of the caller's own loop.
  io::Task<kubernetes::Access> review(io::Loop& caller, std::string token, std::string verb, std::string path,
                                      io::CancelToken cancel);

  // --- any thread ---
  // The pool's definition and all its pods were seen; of several pools: all that there are were told of.
  bool pool_known() const;
  // Of several pools, this one's pods were seen.
  bool pods_known(const std::string& id) const;
  // Its pods are not known, and the server says that this lasts: we may not read them, say.
  bool pods_refused(const std::string& id) const;
  // Objectives and rewrites too, and what plugins wanted to be told of at first, where the cluster has them.
  bool complete() const;
  // Without an election always.
  bool leader() const;
  // {"cluster":…,"pool":"known"|"unknown"|"deleted","resources":[…]}; of several pools "pools" instead, each
  // with its name and resources of its own; where plugins are told of objects, "sources" (KubernetesObjects).
  std::string state_json() const;

 private:
  template <typename T>
  struct Seen {
    T object;
    bool terminating = false;
    kubernetes::ObjectIdentity identity;  // of pools
  };
  using Pools = kubernetes::Follower<Seen<config::InferencePool>>;
  using Pods = kubernetes::Follower<kubernetes::PodRecord>;
  using ConfigMaps = kubernetes::Follower<ConfigMapRecord>;
  using Objectives = kubernetes::Follower<Seen<config::InferenceObjective>>;
  using Rewrites = kubernetes::Follower<Seen<config::InferenceModelRewrite>>;

  KubernetesDiscovery(KubernetesDiscoveryOptions options, EndpointSink* sink, PoolListener& listener,
                      telemetry::MetricRegistry& metrics);
  Status prepare();
  // `judged` hears of every version of an object, the record where it could be read.
  template <typename T>
  static typename kubernetes::Store<Seen<T>>::Decode decode_with(
      std::function<Result<T>(const config::Node&)> decode,
      std::function<void(kubernetes::Json, const Result<T>&)> judged);
  // One pool, on the loop but for what mutex_ guards.
  struct Member;
  using Members = std::map<std::string, std::shared_ptr<Member>, std::less<>>;
  enum class PoolState : uint8_t { kUnknown, kKnown, kDeleted };

  kubernetes::ReflectorOptions query(const kubernetes::Resource& resource, const std::string& ns) const;
  const kubernetes::Resource& pool_resource() const;
  void begin();
  void follow_rules();
  std::shared_ptr<Member> add_member(const std::string& ns, const std::string& name);
  Member* find(std::string_view id) const;
  void follow_pods(Member& member);
  void follow_config(Member& member, const config::InferencePool& pool);
  void config_arrived(Member& member);
  void pools_arrived();
  void pool_arrived(Member& member, const Seen<config::InferencePool>* seen);
  void rules_arrived();
  void gather(Member& member);
  void tell_endpoints(Member& member);
  io::Task<void> bury(std::shared_ptr<Member> member);
  std::string member_json(const Member& member) const;
  // The objects that name a new pool have been judged as nobody's.
  void judge_again();
  static void tell(void* self);
  struct Review;
  io::Task<void> answer(std::shared_ptr<Review> review);
  bool names_pool(std::string_view ns, const config::PoolRef& ref) const;
  // The condition Accepted of an objective or rewrite of the pool.
  void judge(const OptionalKind& kind, kubernetes::Json object, kubernetes::Acceptance acceptance);

  const KubernetesDiscoveryOptions options_;
  EndpointSink* const sink_;
  PoolListener& listener_;
  telemetry::MetricRegistry& registry_;
  std::unique_ptr<kubernetes::Metrics> metrics_;
  io::LoopGroup loops_{1};
  std::unique_ptr<kubernetes::ApiClient> api_;
  std::unique_ptr<Pools> pools_;  // null: stand-alone
  std::unique_ptr<Objectives> objectives_;
  std::unique_ptr<Rewrites> rewrites_;
  std::unique_ptr<OptionalKind> objective_kind_;  // null: stand-alone, as all of these
  std::unique_ptr<OptionalKind> rewrite_kind_;
  std::unique_ptr<kubernetes::LeaderElection> election_;
  io::CancelSource election_ends_;  // on the loop
  std::unique_ptr<kubernetes::ConditionWriter> conditions_;
  std::unique_ptr<kubernetes::AccessReviews> reviews_;
  std::unique_ptr<KubernetesObjects> objects_;
  std::optional<io::Timer> gather_timer_;
  bool started_ = false;
  bool following_rules_ = false;                 // on the loop
  std::vector<std::shared_ptr<Member>> buried_;  // whose tasks end with the loop

  mutable std::mutex mutex_;  // what state tells
  Members members_;           // changed on the loop
  bool listed_ = false;
};

}  // namespace penstock::discovery
