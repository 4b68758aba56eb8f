#include "discovery/kubernetes_discovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/strings.h"
#include "discovery/resource_json.h"
#include "io/run_on.h"
#include "kubernetes/timestamps.h"
#include "telemetry/log.h"

namespace penstock::discovery {

namespace {

using kubernetes::Acceptance;
using kubernetes::Json;
using kubernetes::Reason;
using kubernetes::ReflectorOptions;
using kubernetes::ReflectorState;
using kubernetes::Resource;

constexpr std::string_view kSource = "kubernetes";
constexpr std::string_view kInvalid = "Invalid";
constexpr Duration kBuryInterval = std::chrono::milliseconds(5);
constexpr Duration kReviewTimeout = std::chrono::seconds(10);

// What a pool's selector, ports, protocol, picker and configuration are taken from.
bool same_definition(const config::InferencePool& a, const config::InferencePool& b) {
  const auto annotation = [](const config::InferencePool& pool) {
    const auto found = pool.meta.annotations.find(kConfigAnnotation);
    return found == pool.meta.annotations.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
  return a.selector == b.selector && a.target_ports == b.target_ports && a.app_protocol == b.app_protocol &&
         a.endpoint_picker == b.endpoint_picker && annotation(a) == annotation(b);
}

Acceptance refused(const Error& error) {
  return {false, std::string(kInvalid), error.message};
}

// A rewrite works as it says but where only some of a rule's targets have weights.
Acceptance accepted(const config::InferenceModelRewrite& rewrite) {
  Acceptance out;
  for (const config::InferenceModelRewrite::Rule& rule : rewrite.rules) {
    const auto weighted = std::count_if(rule.targets.begin(), rule.targets.end(),
                                        [](const auto& target) { return target.weight.has_value(); });
    if (weighted != 0 && weighted != std::ssize(rule.targets))
      out.message = "targets without weights are not selected beside targets with weights";
  }
  return out;
}

std::string_view namespace_of(Json object) {
  return object["metadata"]["namespace"].text();
}

uint64_t creation_order(Json object) {
  const auto time = kubernetes::parse_time(object["metadata"]["creationTimestamp"].text());
  return time ? static_cast<uint64_t>(time->time_since_epoch().count()) : UINT64_MAX;
}

}  // namespace

struct KubernetesDiscovery::Member {
  std::string ns;
  std::string name;
  std::string id;
  // Where several pools are: whose series these are. Else the process's.
  std::unique_ptr<telemetry::MetricRegistry> registry;
  std::unique_ptr<kubernetes::Metrics> metrics;
  EndpointSink* sink = nullptr;
  std::unique_ptr<Pods> pods;
  std::unique_ptr<ConfigMaps> configs;
  std::vector<uint16_t> ports;
  std::string selector;
  bool selecting = false;
  bool dirty = false;  // its endpoints are to be told
  TimePoint dirty_since{};
  std::optional<config::InferencePool> told;
  kubernetes::ObjectIdentity identity;
  std::optional<ConfigReference> reference;
  std::optional<PoolConfig> config;

  // Under the discovery's mutex.
  PoolState state = PoolState::kUnknown;
  bool pods_told = false;
};

KubernetesDiscovery::KubernetesDiscovery(KubernetesDiscoveryOptions options, EndpointSink* sink,
                                         PoolListener& listener, telemetry::MetricRegistry& metrics)
    : options_(std::move(options)), sink_(sink), listener_(listener), registry_(metrics) {}

Result<std::unique_ptr<KubernetesDiscovery>> KubernetesDiscovery::create(KubernetesDiscoveryOptions options,
                                                                         EndpointSink* sink,
                                                                         PoolListener& listener,
                                                                         telemetry::MetricRegistry& metrics) {
  const bool of_pools = options.many || !options.pool_name.empty();
  if (options.many && !options.pool_selector.empty()) {
    if (Status status = kubernetes::check_label_selector(options.pool_selector); !status.ok())
      return std::move(status).error().wrap("pool selector");
  }
  if (!of_pools) {
    if (Status status = kubernetes::check_label_selector(options.selector); !status.ok())
      return std::move(status).error();
  } else if (options.pool_group != kubernetes::kPoolGroup && options.pool_group != kubernetes::kLegacyGroup) {
    return invalid_config(fmt::format("pool group \"{}\" is neither {} nor {}", options.pool_group,
                                      kubernetes::kPoolGroup, kubernetes::kLegacyGroup));
  }
  std::unique_ptr<KubernetesDiscovery> out(
      new KubernetesDiscovery(std::move(options), sink, listener, metrics));
  if (Status status = out->prepare(); !status.ok()) return status.error();
  return out;
}

template <typename T>
typename kubernetes::Store<KubernetesDiscovery::Seen<T>>::Decode KubernetesDiscovery::decode_with(
    std::function<Result<T>(const config::Node&)> decode,
    std::function<void(Json, const Result<T>&)> judged) {
  return [decode = std::move(decode), judged = std::move(judged)](Json object) -> Result<Seen<T>> {
    Result<T> read = decode(object.to_node());
    judged(object, read);
    if (!read.ok()) return std::move(read).error();
    read->meta.creation_order = creation_order(object);
    Seen<T> out{*std::move(read), object["metadata"]["deletionTimestamp"].present(), {}};
    if constexpr (std::is_same_v<T, config::InferencePool>) out.identity = kubernetes::identity_of(object);
    return out;
  };
}

const Resource& KubernetesDiscovery::pool_resource() const {
  return options_.pool_group == kubernetes::kLegacyGroup ? kubernetes::kLegacyInferencePools
                                                         : kubernetes::kInferencePools;
}

Status KubernetesDiscovery::prepare() {
  auto api = kubernetes::ApiClient::create(loops_.at(0), options_.cluster, registry_, options_.client);
  if (!api.ok()) return std::move(api).error();
  api_ = *std::move(api);
  metrics_ = std::make_unique<kubernetes::Metrics>(registry_);
  gather_timer_.emplace(loops_.at(0));
  reviews_ = std::make_unique<kubernetes::AccessReviews>(*api_);
  objects_ = std::make_unique<KubernetesObjects>(
      *api_, registry_, KubernetesObjects::Options{options_.watch, options_.look_again},
      [this] { listener_.state_changed(); });
  if (options_.election) {
    election_ = std::make_unique<kubernetes::LeaderElection>(*api_, *options_.election, [this](bool) {
      if (conditions_) conditions_->wake();
      listener_.state_changed();
    });
  }
  if (!options_.many) {
    Member& only = *add_member(options_.ns, options_.pool_name);
    only.sink = sink_;
    only.ports = options_.target_ports;
    only.selector = options_.selector;
    if (options_.pool_name.empty()) {
      only.state = PoolState::kKnown;
      return {};
    }
  }
  const auto told = [this] { listener_.state_changed(); };
  conditions_ = std::make_unique<kubernetes::ConditionWriter>(*api_, [this] { return leader(); });
  pools_ = std::make_unique<Pools>(
      *api_, *metrics_,
      decode_with<config::InferencePool>(
          [legacy = options_.pool_group == kubernetes::kLegacyGroup](const config::Node& node) {
            return config::decode_cluster_pool(node, legacy);
          },
          [this](Json object, const Result<config::InferencePool>& read) {
            if (read.ok()) return;
            conditions_->warn(pool_resource(), namespace_of(object), kubernetes::identity_of(object),
                              kInvalid, read.error().message);
          }),
      [this] { pools_arrived(); }, told);
  objectives_ = std::make_unique<Objectives>(
      *api_, *metrics_,
      decode_with<config::InferenceObjective>(
          config::decode_cluster_objective,
          [this](Json object, const Result<config::InferenceObjective>& read) {
            judge(*objective_kind_, object, read.ok() ? Acceptance() : refused(read.error()));
          }),
      [this] { rules_arrived(); }, told);
  rewrites_ = std::make_unique<Rewrites>(
      *api_, *metrics_,
      decode_with<config::InferenceModelRewrite>(
          config::decode_cluster_rewrite,
          [this](Json object, const Result<config::InferenceModelRewrite>& read) {
            judge(*rewrite_kind_, object, read.ok() ? accepted(*read) : refused(read.error()));
          }),
      [this] { rules_arrived(); }, told);
  const auto kind = [&](const Resource& preferred, const Resource& legacy, auto& follower) {
    const auto follow = [this, &follower](const Resource& resource) {
      follower->follow(query(resource, options_.all_namespaces ? "" : options_.ns));
    };
    const kubernetes::ReflectorOptions& times = options_.watch;
    return std::make_unique<OptionalKind>(
        *api_,
        OptionalKind::Options{preferred, legacy, options_.look_again, times.retry_base, times.retry_cap},
        follow, told);
  };
  objective_kind_ = kind(kubernetes::kObjectives, kubernetes::kLegacyObjectives, objectives_);
  rewrite_kind_ = kind(kubernetes::kRewrites, kubernetes::kLegacyRewrites, rewrites_);
  return {};
}

KubernetesDiscovery::~KubernetesDiscovery() {
  stop();
}

void KubernetesDiscovery::start() {
  started_ = true;
  loops_.start();
  loops_.at(0).post([this] { begin(); });
}

void KubernetesDiscovery::stop() {
  if (!std::exchange(started_, false)) return;
  loops_.stop();
}

void KubernetesDiscovery::release_leadership() {
  if (election_ && started_) loops_.at(0).post([this] { election_ends_.cancel(); });
}

bool KubernetesDiscovery::leader() const {
  return !election_ || election_->leader();
}

// A question of another loop's, and its answer.
struct KubernetesDiscovery::Review {
  explicit Review(io::Loop& caller) : home(caller.ref()), answered(caller) {}
  std::string token;
  std::string verb;
  std::string path;
  io::LoopRef home;
  io::Event answered;
  kubernetes::Access access = kubernetes::Access::kUnknown;  // written on the caller's loop
};

io::Task<void> KubernetesDiscovery::answer(std::shared_ptr<Review> review) {
  const kubernetes::Access access =
      co_await reviews_->review(review->token, review->verb, review->path, loops_.at(0).shutdown_token());
  review->home.post([review, access] {
    review->access = access;
    review->answered.set();
  });
}

io::Task<kubernetes::Access> KubernetesDiscovery::review(io::Loop& caller, std::string token,
                                                         std::string verb, std::string path,
                                                         io::CancelToken cancel) {
  const auto review = std::make_shared<Review>(caller);
  review->token = std::move(token);
  review->verb = std::move(verb);
  review->path = std::move(path);
  loops_.at(0).post([this, review] { io::spawn(loops_.at(0), answer(review)); });
  const Status status = co_await review->answered.wait(kReviewTimeout, cancel);
  co_return status.ok() ? review->access : kubernetes::Access::kUnknown;
}

ReflectorOptions KubernetesDiscovery::query(const Resource& resource, const std::string& ns) const {
  ReflectorOptions out = options_.watch;
  out.resource = resource;
  out.ns = ns;
  out.seed = std::random_device()();
  return out;
}

void KubernetesDiscovery::begin() {
  telemetry::log_info("following the cluster",
                      {{"cluster", options_.cluster.source},
                       {"server", io::join_host_port(options_.cluster.host, options_.cluster.port)},
                       {"namespace", options_.all_namespaces ? "all" : options_.ns}});
  if (election_) {
    election_ends_.follow(loops_.at(0).shutdown_token());
    io::spawn(loops_.at(0), election_->run(election_ends_.token()));
  }
  if (!pools_) return follow_pods(*members_.begin()->second);
  ReflectorOptions pools = query(pool_resource(), options_.all_namespaces ? "" : options_.ns);
  if (options_.many) {
    pools.label_selector = options_.pool_selector;
  } else {
    pools.field_selector = "metadata.name=" + options_.pool_name;
  }
  pools_->follow(std::move(pools));
  io::spawn(loops_.at(0), conditions_->run(loops_.at(0).shutdown_token()));
  // Of several pools it has to be known which there are: whose objects these are is asked as they come.
  if (!options_.many) follow_rules();
}

void KubernetesDiscovery::follow_rules() {
  if (std::exchange(following_rules_, true)) return;
  io::spawn(loops_.at(0), objective_kind_->run(loops_.at(0).shutdown_token()));
  io::spawn(loops_.at(0), rewrite_kind_->run(loops_.at(0).shutdown_token()));
}

std::shared_ptr<KubernetesDiscovery::Member> KubernetesDiscovery::add_member(const std::string& ns,
                                                                             const std::string& name) {
  auto member = std::make_shared<Member>();
  member->ns = ns;
  member->name = name;
  member->id = ns + "/" + name;
  if (options_.many) {
    member->registry =
        std::make_unique<telemetry::MetricRegistry>(registry_, std::string(kPoolLabel), member->id);
    member->metrics = std::make_unique<kubernetes::Metrics>(*member->registry);
  }
  Member* const self = member.get();  // outlives its followers
  member->pods = std::make_unique<Pods>(
      *api_, member->metrics ? *member->metrics : *metrics_, kubernetes::decode_pod,
      [this, self] { gather(*self); }, [this] { listener_.state_changed(); });
  const std::lock_guard lock(mutex_);
  members_[member->id] = member;
  return member;
}

KubernetesDiscovery::Member* KubernetesDiscovery::find(std::string_view id) const {
  const auto found = members_.find(id);
  return found == members_.end() ? nullptr : found->second.get();
}

void KubernetesDiscovery::follow_pods(Member& member) {
  if (member.selecting || member.sink == nullptr) return;
  member.selecting = true;
  ReflectorOptions pods = query(kubernetes::kPods, member.ns);
  pods.label_selector = member.selector;
  member.pods->follow(std::move(pods));
}

void KubernetesDiscovery::follow_config(Member& member, const config::InferencePool& pool) {
  auto reference = config_reference(pool);
  if (!reference.ok()) {
    member.reference.reset();
    if (member.configs) member.configs->end();
    member.config = PoolConfig{"annotation", std::nullopt, reference.error().message};
    return listener_.config_changed(member.id, *member.config);
  }
  if (*reference == member.reference && (member.config || !member.reference)) return;
  const bool same_map = *reference && member.reference && (*reference)->name == member.reference->name;
  member.reference = *reference;
  if (!member.reference) {
    member.config.reset();
    if (member.configs) member.configs->end();
    return;
  }
  if (!member.configs) {
    member.configs = std::make_unique<ConfigMaps>(
        *api_, *member.metrics, decode_config_map, [this, self = &member] { config_arrived(*self); },
        [this, self = &member] {
          config_arrived(*self);
          listener_.state_changed();
        });
  }
  if (same_map) return config_arrived(member);
  member.config.reset();
  ReflectorOptions query_of_map = query(kubernetes::kConfigMaps, member.ns);
  query_of_map.field_selector = "metadata.name=" + member.reference->name;
  member.configs->follow(std::move(query_of_map));
}

void KubernetesDiscovery::config_arrived(Member& member) {
  if (!member.reference) return;
  PoolConfig config;
  config.source = fmt::format("ConfigMap {}/{}", member.ns, member.reference->name);
  const auto state = member.configs->state();
  const ConfigMapRecord* map = nullptr;
  if (const auto* store = member.configs->current()) {
    store->for_each([&](const std::string&, const ConfigMapRecord& record) {
      if (record.name == member.reference->name) map = &record;
    });
  }
  if (map != nullptr) {
    auto text = config_entry(*map, member.reference->entry);
    if (text.ok()) {
      config.text = *std::move(text);
    } else {
      config.error = config.source + ": " + text.error().message;
    }
  } else if (member.configs->whole()) {
    config.error = config.source + " does not exist";
  } else if (state && state->trouble_at != kNever && !member.config) {
    config.error = config.source + ": " + state->message;
  } else {
    return;  // on its way, or the last one holds
  }
  if (member.config == config) return;
  member.config = config;
  listener_.config_changed(member.id, config);
}

void KubernetesDiscovery::pools_arrived() {
  std::map<std::string, const Seen<config::InferencePool>*, std::less<>> there;
  pools_->current()->for_each([&](const std::string&, const Seen<config::InferencePool>& seen) {
    if (!seen.terminating) there[seen.object.meta.full_name()] = &seen;
  });
  bool news = false;
  if (options_.many) {
    for (const auto& [id, seen] : there) {
      if (find(id) != nullptr) continue;
      add_member(seen->object.meta.ns, seen->object.meta.name);
      news = true;
    }
  }
  const Members members = members_;  // a listener may have one forgotten, later
  for (const auto& [id, member] : members) {
    const auto found = there.find(id);
    pool_arrived(*member, found == there.end() ? nullptr : found->second);
  }
  if (!options_.many) return;
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = !std::exchange(listed_, true);
  }
  if (first) {
    telemetry::log_info("InferencePools listed", {{"pools", there.size()}});
    listener_.pools_listed();
    follow_rules();
  } else if (news) {
    judge_again();
  }
  listener_.state_changed();
}

void KubernetesDiscovery::pool_arrived(Member& member, const Seen<config::InferencePool>* seen) {
  PoolState before = PoolState::kUnknown;
  {
    const std::lock_guard lock(mutex_);
    before = member.state;
    if (seen != nullptr) {
      member.state = PoolState::kKnown;
    } else if (member.state == PoolState::kKnown) {
      member.state = PoolState::kDeleted;
    }
  }
  if (seen == nullptr) {
    if (before == PoolState::kUnknown) {
      telemetry::log_warn("there is no such InferencePool yet",
                          {{"pool", member.name}, {"namespace", member.ns}, {"group", options_.pool_group}});
    } else if (before == PoolState::kKnown) {
      telemetry::log_warn(options_.many
                              ? "the InferencePool has been deleted or is selected no longer, what it said "
                                "last holds on for a while"
                              : "the InferencePool has been deleted, what it said last holds on",
                          {{"pool", member.name}, {"namespace", member.ns}});
      listener_.pool_changed(member.id, nullptr);
    }
    listener_.state_changed();
    return;
  }
  member.identity = seen->identity;
  const config::InferencePool& pool = seen->object;
  // Its status changes whenever a gateway looks at it.
  if (before == PoolState::kKnown && member.told && same_definition(*member.told, pool)) return;
  member.told = pool;
  const std::string selector = kubernetes::selector_text(pool.selector);
  std::string ports;
  for (const uint16_t port : pool.target_ports) ports += fmt::format("{}{}", ports.empty() ? "" : ",", port);
  telemetry::log_info(
      "InferencePool read",
      {{"pool", member.name}, {"namespace", member.ns}, {"selector", selector}, {"ports", ports}});
  listener_.pool_changed(member.id, &pool);
  if (options_.many) follow_config(member, pool);
  member.ports = pool.target_ports;
  if (member.selector != selector) member.selecting = false;
  member.selector = selector;
  follow_pods(member);
  gather(member);
  listener_.state_changed();
}

bool KubernetesDiscovery::names_pool(std::string_view ns, const config::PoolRef& ref) const {
  return ref.group == options_.pool_group && find(fmt::format("{}/{}", ns, ref.name)) != nullptr;
}

void KubernetesDiscovery::judge(const OptionalKind& kind, Json object, Acceptance acceptance) {
  // An object that can't be read may still say whose it is.
  config::PoolRef ref;
  const Json said = object["spec"]["poolRef"];
  ref.group = said["group"].text_or(ref.group);
  ref.name = said["name"].text();
  const std::string_view ns = namespace_of(object);
  if (!kind.followed() || !names_pool(ns, ref) || object["metadata"]["deletionTimestamp"].present()) return;
  conditions_->want(*kind.followed(), ns, object, acceptance);
}

void KubernetesDiscovery::judge_again() {
  objective_kind_->follow_again();
  rewrite_kind_->follow_again();
}

void KubernetesDiscovery::rules_arrived() {
  config::Manifests rules;
  const auto take = [&](const auto& follower, auto& out) {
    if (follower->current() == nullptr) return;
    follower->current()->for_each([&](const std::string&, const auto& seen) {
      if (!seen.terminating && names_pool(seen.object.meta.ns, seen.object.pool)) out.push_back(seen.object);
    });
  };
  take(objectives_, rules.objectives);
  take(rewrites_, rules.rewrites);
  listener_.rules_changed(rules);
}

void KubernetesDiscovery::gather(Member& member) {
  if (!std::exchange(member.dirty, true)) member.dirty_since = SystemClock().now();
  if (!gather_timer_->armed()) gather_timer_->arm(options_.gather, &KubernetesDiscovery::tell, this);
}

void KubernetesDiscovery::tell(void* self) {
  auto& discovery = *static_cast<KubernetesDiscovery*>(self);
  for (const auto& [id, member] : discovery.members_) {
    if (std::exchange(member->dirty, false)) discovery.tell_endpoints(*member);
  }
}

void KubernetesDiscovery::tell_endpoints(Member& member) {
  if (member.sink == nullptr || member.pods->current() == nullptr || member.ports.empty()) return;
  std::vector<DiscoveredEndpoint> all;
  member.pods->current()->for_each([&](const std::string& name, const kubernetes::PodRecord& pod) {
    if (!pod.serves()) return;
    DiscoveredEndpoint endpoint;
    endpoint.ns = member.ns;
    endpoint.name = name;
    endpoint.address = pod.ip;
    pod.labels.for_each([&](std::string_view key, std::string_view value) {
      endpoint.labels.insert_or_assign(std::string(key), std::string(value));
    });
    for (const size_t rank : kubernetes::active_ranks(pod, member.ports)) {
      endpoint.port = member.ports[rank];
      endpoint.rank = static_cast<int>(rank);
      all.push_back(endpoint);
    }
  });
  member.sink->endpoints(kSource, all);
  (member.metrics ? *member.metrics : *metrics_)
      .apply_seconds.observe(to_seconds(SystemClock().now() - member.dirty_since));
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = !std::exchange(member.pods_told, true);
  }
  if (first) listener_.state_changed();
}

void KubernetesDiscovery::attach(const std::string& id, EndpointSink& sink) {
  loops_.at(0).post([this, id, &sink] {
    Member* const member = find(id);
    if (member == nullptr) return;
    member->sink = &sink;
    follow_pods(*member);
    gather(*member);
  });
}

bool KubernetesDiscovery::detach(const std::string& id) {
  const Result<bool> gone = io::run_on(
      loops_.at(0),
      [this, id]() -> Result<bool> {
        const auto found = members_.find(id);
        if (found == members_.end()) return true;
        const std::shared_ptr<Member> member = found->second;
        {
          const std::lock_guard lock(mutex_);
          if (member->state != PoolState::kDeleted) return false;
          members_.erase(found);
        }
        member->sink = nullptr;
        member->reference.reset();
        member->pods->end();
        if (member->configs) member->configs->end();
        io::spawn(loops_.at(0), bury(member));
        return true;
      },
      std::chrono::minutes(1));
  return gone.ok() && *gone;
}

io::Task<void> KubernetesDiscovery::bury(std::shared_ptr<Member> member) {
  const io::CancelToken token = loops_.at(0).shutdown_token();
  while (!member->pods->idle() || (member->configs && !member->configs->idle())) {
    (void)co_await loops_.at(0).sleep(kBuryInterval, token);
    if (token.cancelled()) {
      buried_.push_back(member);
      co_return;
    }
  }
}

void KubernetesDiscovery::warn(const std::string& id, std::string reason, std::string message) {
  loops_.at(0).post([this, id, reason = std::move(reason), message = std::move(message)] {
    const Member* const member = find(id);
    if (member == nullptr) return;
    conditions_->warn(pool_resource(), member->ns, member->identity, reason, message);
  });
}

bool KubernetesDiscovery::pool_known() const {
  const std::lock_guard lock(mutex_);
  if (options_.many) return listed_;
  const Member& only = *members_.begin()->second;
  return only.state != PoolState::kUnknown && only.pods_told;
}

bool KubernetesDiscovery::pods_known(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const Member* const member = find(id);
  return member != nullptr && member->pods_told;
}

bool KubernetesDiscovery::pods_refused(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const Member* const member = find(id);
  if (member == nullptr || member->pods_told) return false;
  const auto state = member->pods->state();
  return state && state->reason == Reason::kForbidden;
}

bool KubernetesDiscovery::complete() const {
  if (!pool_known() || !objects_->settled()) return false;
  if (!pools_) return true;
  const auto known = [](const OptionalKind::State& kind, const std::optional<ReflectorState>& state) {
    // Who may not read them serves without; state and log name the verb that is missing.
    return kind.looked &&
           (kind.absent || (state && (state->complete || state->reason == Reason::kForbidden)));
  };
  return known(objective_kind_->state(), objectives_->state()) &&
         known(rewrite_kind_->state(), rewrites_->state());
}

std::string KubernetesDiscovery::member_json(const Member& member) const {
  const std::string_view word = member.state == PoolState::kKnown     ? "known"
                                : member.state == PoolState::kDeleted ? "deleted"
                                                                      : "unknown";
  if (!options_.many) return fmt::format(R"("pool":"{}",)", word);
  return fmt::format(R"({{"pool":{},"state":"{}","resources":[{}]}})", json_quote(member.id), word,
                     resource_json(kubernetes::kPods, member.pods->state()));
}

std::string KubernetesDiscovery::state_json() const {
  const std::lock_guard lock(mutex_);
  std::string out =
      fmt::format(R"({{"cluster":{},"server":{},"namespace":{},)", json_quote(options_.cluster.source),
                  json_quote(io::join_host_port(options_.cluster.host, options_.cluster.port)),
                  json_quote(options_.all_namespaces ? "" : options_.ns));
  if (!options_.many) out += member_json(*members_.begin()->second);
  if (election_) out += fmt::format(R"("leader":{},)", leader());
  if (options_.many) {
    out += R"("pools":[)";
    for (const auto& [id, member] : members_) {
      if (out.back() == '}') out += ',';
      out += member_json(*member);
    }
    out += "],";
  }
  out += R"("resources":[)";
  if (pools_) out += resource_json(pool_resource(), pools_->state());
  if (!options_.many) {
    if (pools_) out += ",";
    out += resource_json(kubernetes::kPods, members_.begin()->second->pods->state());
  }
  if (pools_) {
    out += "," + resource_json(*objective_kind_, objectives_->state());
    out += "," + resource_json(*rewrite_kind_, rewrites_->state());
  }
  out += "]";
  if (const std::string sources = objects_->state_json(); !sources.empty())
    out += fmt::format(R"(,"sources":[{}])", sources);
  return out + "}";
}

}  // namespace penstock::discovery
