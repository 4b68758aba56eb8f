#include "extproc/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "config/node.h"
#include "discovery/source.h"
#include "telemetry/log.h"

namespace penstock::extproc {

namespace {

constexpr std::string_view kBadConfig = "BadConfiguration";

}  // namespace

FleetMetrics::FleetMetrics(telemetry::MetricRegistry& registry)
    : pools(
          registry.gauge({.name = "penstock_pools",
                          .help = "Pools of a picker of several, by state: serving, deleted (serves on for a "
                                  "while), unconfigured (its configuration can't be used, or is not there).",
                          .labels = {"state"}})),
      config_loads(
          registry.counter({.name = "penstock_pool_config_loads_total",
                            .help = "Configurations of pools of a picker of several that were taken (ok) "
                                    "or refused (error).",
                            .labels = {"inference_pool", "result"}})),
      config_current(
          registry.gauge({.name = "penstock_pool_config_current",
                          .help = "1: the pool's configuration is what the cluster says, 0: it can't be "
                                  "used, and the last good one holds, if there was one.",
                          .labels = {"inference_pool"}})) {}

struct Fleet::Member {
  std::string id;
  // Of the thread.
  config::InferencePool pool;  // as it was last seen
  bool wants_config = false;
  std::optional<discovery::PoolConfig> config;
  bool stale = false;  // what it serves by is not what it should
  std::unique_ptr<discovery::PoolSink> sink;
  PoolHandle handle;
  std::vector<PoolHandle> former;  // of times before it had gone: with streams that have not ended
  TimePoint remove_at = kNever;    // it is deleted

  // Under the fleet's mutex.
  std::shared_ptr<assembly::PoolRuntime> runtime;  // null: does not serve
  bool deleted = false;
  std::string config_source;
  std::string error;
};

Fleet::Fleet(assembly::Foundation& base, Door& door, FleetOptions options, OpenPort open_port,
             std::function<void()> changed)
    : base_(base),
      door_(door),
      options_(std::move(options)),
      open_port_(std::move(open_port)),
      changed_(std::move(changed)),
      metrics_(base.metrics) {
  door_.choose_among({});
}

Fleet::~Fleet() {
  stop();
}

void Fleet::start(discovery::KubernetesDiscovery& cluster) {
  cluster_ = &cluster;
  thread_ = std::thread([this] { work(); });
}

void Fleet::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(queue_mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  for (auto& [port, server] : ports_) server->stop();
  for (auto& server : closing_) server->stop();
  ports_.clear();
  closing_.clear();
}

void Fleet::post(Job job) {
  {
    const std::lock_guard lock(queue_mutex_);
    queue_.push_back(std::move(job));
  }
  wake_.notify_one();
}

void Fleet::work() {
  bool under_way = false;
  for (;;) {
    std::deque<Job> jobs;
    {
      std::unique_lock lock(queue_mutex_);
      const auto due = [this] { return stopping_ || !queue_.empty(); };
      if (under_way) {
        wake_.wait_for(lock, options_.look, due);
      } else {
        wake_.wait(lock, due);
      }
      if (stopping_) return;
      jobs.swap(queue_);
      state_posted_ = false;
    }
    const std::lock_guard lock(base_.changes);
    for (const Job& job : jobs) job();
    under_way = look_after();
  }
}

void Fleet::pool_changed(const std::string& id, const config::InferencePool* pool) {
  const std::shared_ptr<const config::InferencePool> seen =
      pool == nullptr ? nullptr : std::make_shared<config::InferencePool>(*pool);
  post([this, id, seen] {
    if (seen == nullptr) {
      const auto found = members_.find(id);
      if (found == members_.end()) return;
      Member& member = *found->second;
      member.remove_at = base_.clock.now() + options_.linger;
      const std::lock_guard lock(mutex_);
      member.deleted = true;
      return;
    }
    const std::shared_ptr<Member> kept = member_of(id);
    Member& member = *kept;
    member.pool = *seen;
    member.remove_at = kNever;
    {
      const std::lock_guard lock(mutex_);
      member.deleted = false;
    }
    const bool wants = seen->meta.annotations.contains(discovery::kConfigAnnotation);
    if (!wants) member.config.reset();
    member.stale |= member.runtime == nullptr || member.wants_config != wants;
    member.wants_config = wants;
    if (member.runtime) member.runtime->set_app_protocol(seen->app_protocol);
    update(member);
    name_pools();
  });
}

// As it is there; new, or with its former life where that has not ended.
std::shared_ptr<Fleet::Member> Fleet::member_of(const std::string& id) {
  if (const auto found = members_.find(id); found != members_.end()) return found->second;
  std::shared_ptr<Member> member;
  const auto former =
      std::find_if(leaving_.begin(), leaving_.end(), [&](const auto& other) { return other->id == id; });
  if (former == leaving_.end()) {
    member = std::make_shared<Member>();
    member->id = id;
  } else {
    member = std::move(*former);
    leaving_.erase(former);
    member->config.reset();
    member->stale = true;
    admit(*member);
  }
  const std::lock_guard lock(mutex_);
  members_.emplace(id, member);
  return member;
}

void Fleet::config_changed(const std::string& id, const discovery::PoolConfig& config) {
  post([this, id, config] {
    const auto found = members_.find(id);
    if (found == members_.end() || !found->second->wants_config) return;
    found->second->config = config;
    found->second->stale = true;
    update(*found->second);
    name_pools();
  });
}

void Fleet::rules_changed(const config::Manifests& rules) {
  post([this, rules] {
    rules_ = rules;
    for (const auto& [id, member] : members_) {
      if (!member->runtime) continue;
      const director::Pool& pool = member->runtime->pool();
      member->runtime->set_rules(assembly::pool_rules(rules_, pool.ns, pool.name));
    }
  });
}

void Fleet::pools_listed() {
  post([this] { listed_ = true; });
}

void Fleet::state_changed() {
  {
    const std::lock_guard lock(queue_mutex_);
    if (std::exchange(state_posted_, true)) return;
    queue_.emplace_back([] {});  // look_after() does the rest
  }
  wake_.notify_one();
}

Result<assembly::PoolSpec> Fleet::spec_of(const Member& member) const {
  assembly::PoolSpec spec;
  spec.settings = options_.pool;
  spec.settings.name = member.pool.meta.name;
  spec.settings.ns = member.pool.meta.ns;
  spec.app_protocol = member.pool.app_protocol;
  spec.told_endpoints = true;
  spec.api_server = true;
  if (!member.wants_config) return spec;
  auto document = config::parse_document(*member.config->text, member.config->source);
  if (!document.ok()) return std::move(document).error();
  spec.settings.config_file.clear();
  spec.settings.config_inline = *std::move(document);
  return spec;
}

Status Fleet::make(Member& member) {
  auto spec = spec_of(member);
  if (!spec.ok()) return std::move(spec).error();
  auto made = base_.add_pool_with_metrics(*std::move(spec), discovery::kPoolLabel);
  if (!made.ok()) return std::move(made).error();
  {
    const std::lock_guard lock(mutex_);
    member.runtime = *std::move(made);
  }
  member.runtime->follow_objects(cluster_->objects());
  member.sink =
      std::make_unique<discovery::PoolSink>(std::vector<discovery::Pool*>{&member.runtime->members()});
  admit(member);
  return {};
}

// Streams and endpoints may come to what it is made of.
void Fleet::admit(Member& member) {
  assembly::PoolRuntime& runtime = *member.runtime;
  runtime.set_rules(assembly::pool_rules(rules_, runtime.pool().ns, runtime.pool().name));
  DoorPool pool;
  pool.pool = &runtime.pool();
  pool.members = &runtime.members();
  pool.signals = base_.signals.get();
  pool.freshness_budget = runtime.freshness_budget();
  pool.metrics = &runtime.metrics();
  member.handle = door_.add(pool);
  cluster_->attach(member.id, *member.sink);
}

// The pool as it is told of now: made, or its configuration taken.
void Fleet::update(Member& member) {
  if (!member.stale) return;
  if (member.wants_config && !member.config) return;  // on its way
  member.stale = false;
  if (member.wants_config && !member.config->text)
    return configured(member, invalid_config(member.config->error));
  if (!member.runtime) return configured(member, make(member));
  auto spec = spec_of(member);
  configured(member, spec.ok() ? member.runtime->reload(*std::move(spec)) : Status(std::move(spec).error()));
}

void Fleet::configured(Member& member, Status status) {
  const std::string error = status.ok() ? std::string() : status.error().message;
  metrics_.config_loads.update({member.id, status.ok() ? "ok" : "error"},
                               [](auto& counter) { counter.add(); });
  metrics_.config_current.update({member.id}, [&](auto& gauge) { gauge.set(status.ok() ? 1 : 0); });
  {
    const std::lock_guard lock(mutex_);
    member.config_source = member.wants_config ? member.config->source : "process";
    member.error = error;
  }
  if (status.ok()) {
    telemetry::log_info("configuration of a pool taken",
                        {{"pool", member.id}, {"config", member.config_source}});
    return;
  }
  telemetry::log_error(member.runtime ? "a pool's configuration can't be used, the last good one holds"
                                      : "a pool's configuration can't be used, the pool does not serve",
                       {{"pool", member.id}, {"error", error}});
  cluster_->warn(member.id, std::string(kBadConfig), error);
}

Status Fleet::reload(config::PoolSettings settings) {
  options_.pool = std::move(settings);
  Status first;
  for (const auto& [id, member] : members_) {
    member->stale = true;
    update(*member);
    if (first.ok() && !member->error.empty()) first = invalid_config(member->error).wrap("pool " + id);
  }
  name_pools();
  return first;
}

void Fleet::name_pools() {
  std::vector<Door::NamedPool> pools;
  for (const auto& [id, member] : members_) {
    if (!member->runtime) continue;
    PoolNames names;
    names.ns = member->pool.meta.ns;
    names.name = member->pool.meta.name;
    const auto& picker = member->pool.endpoint_picker;
    if (picker && picker->group.empty() && picker->kind == "Service") {
      names.service = picker->name;
      names.port = picker->port;
    }
    pools.push_back({member->handle, std::move(names)});
  }
  door_.choose_among(std::move(pools));
  open_ports();
}

void Fleet::open_ports() {
  if (!open_port_ || options_.first_port == 0) return;
  std::set<uint16_t> wanted;
  for (const auto& [id, member] : members_) {
    const auto& picker = member->pool.endpoint_picker;
    if (!member->runtime || !picker || !picker->port) continue;
    if (*picker->port >= options_.first_port && *picker->port <= options_.last_port)
      wanted.insert(*picker->port);
  }
  for (auto it = ports_.begin(); it != ports_.end();) {
    if (wanted.contains(it->first)) {
      ++it;
      continue;
    }
    it->second->begin_drain();
    closing_.push_back(std::move(it->second));
    it = ports_.erase(it);
  }
  std::set<uint16_t> missing;
  for (const uint16_t port : wanted) {
    if (ports_.contains(port)) continue;
    auto opened = open_port_(port);
    if (opened.ok()) {
      ports_.emplace(port, *std::move(opened));
      continue;
    }
    missing.insert(port);
    if (missing_ports_.contains(port)) continue;
    telemetry::log_error("the port of a pool can't be listened on, it is tried again",
                         {{"port", port}, {"error", opened.error().message}});
  }
  missing_ports_ = std::move(missing);
}

// It has been deleted long enough.
void Fleet::take_away(Member& member) {
  const std::string id = member.id;
  const std::shared_ptr<Member> kept = members_.find(id)->second;
  {
    const std::lock_guard lock(mutex_);
    members_.erase(id);
  }
  metrics_.config_loads.remove({id, "ok"});
  metrics_.config_loads.remove({id, "error"});
  metrics_.config_current.remove({id});
  if (kept->runtime) {
    name_pools();
    door_.leave(kept->handle);
    kept->former.push_back(std::move(kept->handle));
    leaving_.push_back(kept);
  }
  telemetry::log_info("a pool that was deleted is served no longer", {{"pool", id}});
}

// No stream is left of the times before it had gone.
bool Fleet::left(Member& member) {
  std::erase_if(member.former, [&](const PoolHandle& handle) { return door_.left(handle); });
  return member.former.empty();
}

bool Fleet::look_after() {
  const TimePoint now = base_.clock.now();
  bool under_way = false;
  std::vector<std::shared_ptr<Member>> members;
  for (const auto& [id, member] : members_) members.push_back(member);
  for (const std::shared_ptr<Member>& member : members) {
    if (member->remove_at == kNever) continue;
    under_way = true;
    // Where it has come back meanwhile, word of that is on its way.
    if (now >= member->remove_at && cluster_->detach(member->id)) take_away(*member);
  }
  for (const auto& [id, member] : members_) under_way |= !left(*member);
  std::erase_if(leaving_, [&](const std::shared_ptr<Member>& member) {
    if (!left(*member)) return false;
    base_.remove_pool(member->runtime);
    return true;
  });
  std::erase_if(closing_, [](const auto& server) {
    if (server->stats().open_exchanges != 0) return false;
    server->stop();
    return true;
  });
  if (!missing_ports_.empty()) open_ports();
  under_way |= !leaving_.empty() || !closing_.empty() || !missing_ports_.empty();
  if (listed_ && !settled_) {
    const bool all = std::all_of(members_.begin(), members_.end(), [&](const auto& entry) {
      const Member& member = *entry.second;
      if (!member.runtime) return !member.error.empty();
      return cluster_->pods_known(member.id) || cluster_->pods_refused(member.id);
    });
    const std::lock_guard lock(mutex_);
    settled_ = all;
  }
  count();
  changed_();
  return under_way;
}

void Fleet::count() {
  size_t serving = 0;
  size_t deleted = 0;
  size_t unconfigured = 0;
  for (const auto& [id, member] : members_) {
    size_t& kind = !member->runtime ? unconfigured : member->deleted ? deleted : serving;
    ++kind;
  }
  metrics_.pools.with({"serving"}).set(static_cast<double>(serving));
  metrics_.pools.with({"deleted"}).set(static_cast<double>(deleted));
  metrics_.pools.with({"unconfigured"}).set(static_cast<double>(unconfigured));
}

bool Fleet::settled() const {
  const std::lock_guard lock(mutex_);
  return settled_;
}

std::map<std::string, HealthInputs> Fleet::health() const {
  std::map<std::string, HealthInputs> out;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, member] : members_) {
    HealthInputs& inputs = out[id];
    inputs.pool_known = member->runtime != nullptr && cluster_->pods_known(id);
    inputs.protocol_ok = member->runtime == nullptr || member->runtime->protocol_ok();
    inputs.plugins_ready = member->runtime != nullptr;
  }
  return out;
}

std::string Fleet::configurations_json() const {
  std::string out = "[";
  const std::lock_guard lock(mutex_);
  for (const auto& [id, member] : members_) {
    const std::string_view state = member->error.empty() ? member->runtime ? "current" : "waiting"
                                   : member->runtime     ? "former"
                                                         : "none";
    out += fmt::format(R"({}{{"pool":{},"config":{},"state":"{}","deleted":{})", out.size() > 1 ? "," : "",
                       json_quote(id), json_quote(member->config_source), state, member->deleted);
    if (!member->error.empty()) out += fmt::format(R"(,"error":{})", json_quote(member->error));
    out += '}';
  }
  return out + "]";
}

}  // namespace penstock::extproc
