#include "discovery/kubernetes_discovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/strings.h"
#include "kubernetes/timestamps.h"
#include "telemetry/log.h"

namespace penstock::discovery {

namespace {

using kubernetes::Acceptance;
using kubernetes::Failure;
using kubernetes::Json;
using kubernetes::Reason;
using kubernetes::ReflectorOptions;
using kubernetes::ReflectorState;
using kubernetes::Resource;

constexpr std::string_view kSource = "kubernetes";
constexpr std::string_view kInvalid = "Invalid";
constexpr Duration kReviewTimeout = std::chrono::seconds(10);

// Whether a discovery document lists the resource.
bool lists(const std::string& body, const Resource& resource) {
  kubernetes::JsonDocument document;
  const Result<Json> json = document.parse(body);
  if (!json.ok()) return false;
  bool found = false;
  (*json)["resources"].for_each_item([&](Json item) { found |= item["name"].text() == resource.plural; });
  return found;
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

uint64_t creation_order(Json object) {
  const auto time = kubernetes::parse_time(object["metadata"]["creationTimestamp"].text());
  return time ? static_cast<uint64_t>(time->time_since_epoch().count()) : UINT64_MAX;
}

std::string resource_json(std::string_view name, std::string_view version,
                          const std::optional<ReflectorState>& state, bool absent,
                          const std::string& trouble) {
  std::string out = fmt::format(R"({{"resource":{},"version":{},)", json_quote(name), json_quote(version));
  if (absent) return out + R"("state":"absent"})";
  if (!state) {
    return out + fmt::format(R"("state":"unknown","error":{}}})", json_quote(trouble));
  }
  const TimePoint now = SystemClock().now();
  const std::string_view word = !state->complete              ? (state->absent ? "absent" : "unknown")
                                : state->trouble_at != kNever ? "stale"
                                                              : "followed";
  out += fmt::format(R"("state":"{}","objects":{})", word, state->objects);
  if (state->heard_at != kNever)
    out += fmt::format(R"(,"silent_s":{:.1f})", to_seconds(now - state->heard_at));
  if (state->trouble_at != kNever) {
    out += fmt::format(R"(,"trouble_s":{:.1f},"reason":"{}","error":{})", to_seconds(now - state->trouble_at),
                       kubernetes::reason_name(state->reason), json_quote(state->message));
  }
  return out + "}";
}

}  // namespace

KubernetesDiscovery::KubernetesDiscovery(KubernetesDiscoveryOptions options, EndpointSink& sink,
                                         PoolListener& listener)
    : options_(std::move(options)),
      sink_(sink),
      listener_(listener),
      ports_(options_.target_ports),
      objective_kind_{kubernetes::kObjectives, kubernetes::kLegacyObjectives, {}, {}, false, false, {}},
      rewrite_kind_{kubernetes::kRewrites, kubernetes::kLegacyRewrites, {}, {}, false, false, {}} {}

Result<std::unique_ptr<KubernetesDiscovery>> KubernetesDiscovery::create(KubernetesDiscoveryOptions options,
                                                                         EndpointSink& sink,
                                                                         PoolListener& listener,
                                                                         telemetry::MetricRegistry& metrics) {
  if (options.pool_name.empty()) {
    if (Status status = kubernetes::check_label_selector(options.selector); !status.ok())
      return std::move(status).error();
  } else if (options.pool_group != kubernetes::kPoolGroup && options.pool_group != kubernetes::kLegacyGroup) {
    return invalid_config(fmt::format("pool group \"{}\" is neither {} nor {}", options.pool_group,
                                      kubernetes::kPoolGroup, kubernetes::kLegacyGroup));
  }
  std::unique_ptr<KubernetesDiscovery> out(new KubernetesDiscovery(std::move(options), sink, listener));
  if (Status status = out->prepare(metrics); !status.ok()) return status.error();
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
    return Seen<T>{*std::move(read), object["metadata"]["deletionTimestamp"].present()};
  };
}

Status KubernetesDiscovery::prepare(telemetry::MetricRegistry& metrics) {
  auto api = kubernetes::ApiClient::create(loops_.at(0), options_.cluster, metrics, options_.client);
  if (!api.ok()) return std::move(api).error();
  api_ = *std::move(api);
  metrics_ = std::make_unique<kubernetes::Metrics>(metrics);
  gather_timer_.emplace(loops_.at(0));
  reviews_ = std::make_unique<kubernetes::AccessReviews>(*api_);
  if (options_.election) {
    election_ = std::make_unique<kubernetes::LeaderElection>(*api_, *options_.election, [this](bool) {
      if (conditions_) conditions_->wake();
      listener_.state_changed();
    });
  }
  const auto told = [this] { listener_.state_changed(); };
  pods_ = std::make_unique<Pods>(*api_, *metrics_, kubernetes::decode_pod, [this] { gather(); }, told);
  if (options_.pool_name.empty()) {
    pool_state_ = PoolState::kKnown;
    return {};
  }
  const bool legacy = options_.pool_group == kubernetes::kLegacyGroup;
  conditions_ = std::make_unique<kubernetes::ConditionWriter>(*api_, [this] { return leader(); });
  const Resource& pool = legacy ? kubernetes::kLegacyInferencePools : kubernetes::kInferencePools;
  pools_ = std::make_unique<Pools>(
      *api_, *metrics_,
      decode_with<config::InferencePool>(
          [legacy](const config::Node& node) { return config::decode_cluster_pool(node, legacy); },
          [this, pool](Json object, const Result<config::InferencePool>& read) {
            if (!read.ok()) conditions_->warn(pool, options_.ns, object, kInvalid, read.error().message);
          }),
      [this] { pool_arrived(); }, told);
  objectives_ = std::make_unique<Objectives>(
      *api_, *metrics_,
      decode_with<config::InferenceObjective>(
          config::decode_cluster_objective,
          [this](Json object, const Result<config::InferenceObjective>& read) {
            judge(objective_kind_, object, read.ok() ? Acceptance() : refused(read.error()));
          }),
      [this] { rules_arrived(); }, told);
  rewrites_ = std::make_unique<Rewrites>(
      *api_, *metrics_,
      decode_with<config::InferenceModelRewrite>(
          config::decode_cluster_rewrite,
          [this](Json object, const Result<config::InferenceModelRewrite>& read) {
            judge(rewrite_kind_, object, read.ok() ? accepted(*read) : refused(read.error()));
          }),
      [this] { rules_arrived(); }, told);
  objective_kind_.follow = [this](ReflectorOptions o) { objectives_->follow(std::move(o)); };
  rewrite_kind_.follow = [this](ReflectorOptions o) { rewrites_->follow(std::move(o)); };
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

ReflectorOptions KubernetesDiscovery::query(const Resource& resource) const {
  ReflectorOptions out = options_.watch;
  out.resource = resource;
  out.ns = options_.ns;
  out.seed = std::random_device()();
  return out;
}

void KubernetesDiscovery::begin() {
  telemetry::log_info("following the cluster",
                      {{"cluster", options_.cluster.source},
                       {"server", io::join_host_port(options_.cluster.host, options_.cluster.port)},
                       {"namespace", options_.ns}});
  if (election_) {
    election_ends_.follow(loops_.at(0).shutdown_token());
    io::spawn(loops_.at(0), election_->run(election_ends_.token()));
  }
  if (!pools_) return follow_pods(options_.selector);
  ReflectorOptions pool =
      query(options_.pool_group == kubernetes::kLegacyGroup ? kubernetes::kLegacyInferencePools
                                                            : kubernetes::kInferencePools);
  pool.field_selector = "metadata.name=" + options_.pool_name;
  pools_->follow(std::move(pool));
  io::spawn(loops_.at(0), conditions_->run(loops_.at(0).shutdown_token()));
  io::spawn(loops_.at(0), follow_kind(objective_kind_));
  io::spawn(loops_.at(0), follow_kind(rewrite_kind_));
}

void KubernetesDiscovery::follow_pods(const std::string& selector) {
  if (std::exchange(selecting_, true) && selector_ == selector) return;
  selector_ = selector;
  ReflectorOptions pods = query(kubernetes::kPods);
  pods.label_selector = selector;
  pods_->follow(std::move(pods));
}

void KubernetesDiscovery::pool_arrived() {
  const config::InferencePool* pool = nullptr;
  pools_->current()->for_each([&](const std::string& key, const Seen<config::InferencePool>& seen) {
    if (key == options_.pool_name && !seen.terminating) pool = &seen.object;
  });
  PoolState before = PoolState::kUnknown;
  {
    const std::lock_guard lock(mutex_);
    before = pool_state_;
    if (pool != nullptr) {
      pool_state_ = PoolState::kKnown;
    } else if (pool_state_ == PoolState::kKnown) {
      pool_state_ = PoolState::kDeleted;
    }
  }
  if (pool == nullptr) {
    if (before == PoolState::kUnknown) {
      telemetry::log_warn(
          "there is no such InferencePool yet",
          {{"pool", options_.pool_name}, {"namespace", options_.ns}, {"group", options_.pool_group}});
    } else if (before == PoolState::kKnown) {
      telemetry::log_warn("the InferencePool has been deleted, what it said last holds on",
                          {{"pool", options_.pool_name}, {"namespace", options_.ns}});
      listener_.pool_changed(nullptr);
    }
    listener_.state_changed();
    return;
  }
  const std::string selector = kubernetes::selector_text(pool->selector);
  // Its status changes whenever a gateway looks at it.
  if (before == PoolState::kKnown && selector == selector_ && pool->target_ports == ports_ &&
      pool->app_protocol == app_protocol_) {
    return;
  }
  std::string ports;
  for (const uint16_t port : pool->target_ports) ports += fmt::format("{}{}", ports.empty() ? "" : ",", port);
  telemetry::log_info("InferencePool read",
                      {{"pool", options_.pool_name}, {"selector", selector}, {"ports", ports}});
  app_protocol_ = pool->app_protocol;
  listener_.pool_changed(pool);
  ports_ = pool->target_ports;
  follow_pods(selector);
  gather();
  listener_.state_changed();
}

bool KubernetesDiscovery::names_pool(const config::PoolRef& ref) const {
  return ref.name == options_.pool_name && ref.group == options_.pool_group;
}

void KubernetesDiscovery::judge(const Kind& kind, Json object, Acceptance acceptance) {
  // An object that can't be read may still say whose it is.
  config::PoolRef ref;
  const Json said = object["spec"]["poolRef"];
  ref.group = said["group"].text_or(ref.group);
  ref.name = said["name"].text();
  if (!kind.followed || !names_pool(ref) || object["metadata"]["deletionTimestamp"].present()) return;
  conditions_->want(*kind.followed, options_.ns, object, acceptance);
}

void KubernetesDiscovery::rules_arrived() {
  config::Manifests rules;
  const auto take = [&](const auto& follower, auto& out) {
    if (follower->current() == nullptr) return;
    follower->current()->for_each([&](const std::string&, const auto& seen) {
      if (!seen.terminating && names_pool(seen.object.pool)) out.push_back(seen.object);
    });
  };
  take(objectives_, rules.objectives);
  take(rewrites_, rules.rewrites);
  listener_.rules_changed(rules);
}

void KubernetesDiscovery::gather() {
  if (gather_timer_->armed()) return;
  gathering_since_ = SystemClock().now();
  gather_timer_->arm(options_.gather, &KubernetesDiscovery::tell, this);
}

void KubernetesDiscovery::tell(void* self) {
  static_cast<KubernetesDiscovery*>(self)->tell_endpoints();
}

void KubernetesDiscovery::tell_endpoints() {
  if (pods_->current() == nullptr || ports_.empty()) return;
  std::vector<DiscoveredEndpoint> all;
  pods_->current()->for_each([&](const std::string& name, const kubernetes::PodRecord& pod) {
    if (!pod.serves()) return;
    DiscoveredEndpoint endpoint;
    endpoint.ns = options_.ns;
    endpoint.name = name;
    endpoint.address = pod.ip;
    pod.labels.for_each([&](std::string_view key, std::string_view value) {
      endpoint.labels.insert_or_assign(std::string(key), std::string(value));
    });
    for (const size_t rank : kubernetes::active_ranks(pod, ports_)) {
      endpoint.port = ports_[rank];
      endpoint.rank = static_cast<int>(rank);
      all.push_back(endpoint);
    }
  });
  sink_.endpoints(kSource, all);
  metrics_->apply_seconds.observe(to_seconds(SystemClock().now() - gathering_since_));
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = !std::exchange(pods_told_, true);
  }
  if (first) listener_.state_changed();
}

io::Task<Failure> KubernetesDiscovery::look_for(Kind& kind, io::CancelToken token,
                                                std::optional<Resource>& found) {
  for (const Resource& resource : {kind.preferred, kind.legacy}) {
    const kubernetes::Answer answer =
        co_await api_->get_path(kubernetes::discovery_path(resource.group, resource.version), token);
    if (!answer.ok() && answer.failure.reason != Reason::kNotFound) co_return answer.failure;
    if (!answer.ok() || !lists(answer.body, resource)) continue;
    found = resource;
    break;
  }
  co_return Failure();
}

io::Task<void> KubernetesDiscovery::follow_kind(Kind& kind) {
  const io::CancelToken token = loops_.at(0).shutdown_token();
  Backoff backoff(options_.watch.retry_base, options_.watch.retry_cap, std::random_device()());
  while (!token.cancelled()) {
    std::optional<Resource> found;
    const Failure failure = co_await look_for(kind, token, found);
    if (token.cancelled()) break;
    if (!failure.ok()) {
      bool news = false;
      {
        const std::lock_guard lock(mutex_);
        news = kind.trouble.empty() && !kind.looked;
        kind.trouble = failure.message;
      }
      if (news) {
        telemetry::log_warn("it is not known whether the cluster has a resource",
                            {{"resource", kind.preferred.plural}, {"error", failure.message}});
      }
      (void)co_await loops_.at(0).sleep(backoff.next(), token);
      continue;
    }
    backoff.reset();
    const bool first = !kind.looked;
    const bool moved = found && kind.followed != found;
    {
      const std::lock_guard lock(mutex_);
      kind.looked = true;
      kind.trouble.clear();
      kind.absent = !found;
      if (moved) kind.followed = found;
    }
    if (!found && first) {
      telemetry::log_warn("the cluster does not have an optional resource; it is used when it comes",
                          {{"resource", kubernetes::full_name(kind.preferred)}});
    }
    if (moved) {
      if (found == kind.legacy) {
        telemetry::log_warn("DEPRECATION: objects of a deprecated API group are used",
                            {{"resource", kubernetes::full_name(kind.legacy)},
                             {"instead", kubernetes::full_name(kind.preferred)}});
      }
      kind.follow(query(*found));
    }
    if (first || moved) listener_.state_changed();
    (void)co_await loops_.at(0).sleep(options_.look_again, token);
  }
}

bool KubernetesDiscovery::pool_known() const {
  const std::lock_guard lock(mutex_);
  return pool_state_ != PoolState::kUnknown && pods_told_;
}

bool KubernetesDiscovery::complete() const {
  if (!pool_known()) return false;
  if (!pools_) return true;
  const auto known = [&](const Kind& kind, const std::optional<ReflectorState>& state) {
    const std::lock_guard lock(mutex_);
    // Who may not read them serves without; state and log name the verb that is missing.
    return kind.looked &&
           (kind.absent || (state && (state->complete || state->reason == Reason::kForbidden)));
  };
  return known(objective_kind_, objectives_->state()) && known(rewrite_kind_, rewrites_->state());
}

std::string KubernetesDiscovery::state_json() const {
  PoolState pool = PoolState::kUnknown;
  {
    const std::lock_guard lock(mutex_);
    pool = pool_state_;
  }
  const std::string_view word = pool == PoolState::kKnown     ? "known"
                                : pool == PoolState::kDeleted ? "deleted"
                                                              : "unknown";
  std::string out = fmt::format(R"({{"cluster":{},"server":{},"namespace":{},"pool":"{}",)",
                                json_quote(options_.cluster.source),
                                json_quote(io::join_host_port(options_.cluster.host, options_.cluster.port)),
                                json_quote(options_.ns), word);
  if (election_) out += fmt::format(R"("leader":{},)", leader());
  out += R"("resources":[)";
  if (pools_) {
    const bool legacy = options_.pool_group == kubernetes::kLegacyGroup;
    const Resource& resource = legacy ? kubernetes::kLegacyInferencePools : kubernetes::kInferencePools;
    out +=
        resource_json(resource.plural, kubernetes::api_version(resource), pools_->state(), false, "") + ",";
  }
  out += resource_json("pods", "v1", pods_->state(), false, "");
  const auto add = [&](const Kind& kind, const std::optional<ReflectorState>& state) {
    const std::lock_guard lock(mutex_);
    const Resource& resource = kind.followed ? *kind.followed : kind.preferred;
    out += "," + resource_json(resource.plural, kubernetes::api_version(resource), state,
                               kind.absent && !kind.followed, kind.trouble);
  };
  if (pools_) {
    add(objective_kind_, objectives_->state());
    add(rewrite_kind_, rewrites_->state());
  }
  return out + "]}";
}

}  // namespace penstock::discovery
