#include "discovery/kubernetes_objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/strings.h"
#include "discovery/optional_kind.h"
#include "discovery/resource_json.h"
#include "io/loop.h"
#include "kubernetes/follower.h"
#include "telemetry/log.h"

namespace penstock::discovery {

namespace {

using kubernetes::Json;
using kubernetes::Resource;

constexpr Duration kBuryInterval = std::chrono::milliseconds(5);
// Of the time that telling took, how long nothing is told after it.
constexpr int kRest = 9;

// An object as it is kept.
struct Kept {
  std::shared_ptr<const NotifiedObject> object;
  size_t size = 0;

  size_t bytes() const { return size; }
  friend bool operator==(const Kept& a, const Kept& b) {
    return a.object == b.object ||
           (a.object && b.object && config::same_value(a.object->object, b.object->object));
  }
};

config::Node text_node(std::string_view text) {
  config::Node out;
  out.kind = config::Node::Kind::kString;
  out.text = text;
  return out;
}

void set_member(config::Node& map, std::string_view name, config::Node value) {
  for (config::Node::Member& member : map.members) {
    if (member.first != name) continue;
    member.second = std::move(value);
    return;
  }
  map.members.push_back({std::string(name), std::move(value)});
}

Kept keep(const ObjectQuery& query, Json object) {
  NotifiedObject out;
  out.ns = object["metadata"]["namespace"].text();
  out.name = object["metadata"]["name"].text();
  if (query.fields.empty()) {
    out.object = object.to_node();
    for (config::Node::Member& member : out.object.members) {
      if (member.first != "metadata") continue;
      std::erase_if(member.second.members, [](const auto& field) { return field.first == "managedFields"; });
    }
  } else {
    std::vector<std::string> fields{"metadata.name", "metadata.namespace"};
    fields.insert(fields.end(), query.fields.begin(), query.fields.end());
    out.object = object.to_node(fields);
  }
  // Items of a list have neither.
  const std::string& group = query.kind.group;
  set_member(out.object, "apiVersion",
             text_node(group.empty() ? query.kind.version : group + "/" + query.kind.version));
  set_member(out.object, "kind", text_node(query.kind.kind));
  Kept kept;
  kept.size = sizeof(NotifiedObject) + out.ns.capacity() + out.name.capacity() + memory_bytes(out.object);
  kept.object = std::make_shared<const NotifiedObject>(std::move(out));
  return kept;
}

}  // namespace

// One feed's place among those that are told.
struct KubernetesObjects::Listener {
  std::mutex calling;
  std::function<void()> changed;  // empty: it has ended; under `calling`
};

// One query, on the loop but for what says otherwise.
struct KubernetesObjects::Watched {
  Watched(KubernetesObjects& objects, ObjectQuery asked, std::string name)
      : owner(objects),
        query(std::move(asked)),
        label(std::move(name)),
        registry(objects.registry_, std::string(kSourceLabel), label),
        metrics(registry),
        gather(objects.api_.loop()),
        follower(
            objects.api_, metrics, [this](Json object) -> Result<Kept> { return keep(query, object); },
            [this] { arrived(); }, objects.state_changed_),
        kind(
            objects.api_, kind_options(), [this](const Resource& resource) { follow(resource); },
            objects.state_changed_) {}

  OptionalKind::Options kind_options() const {
    OptionalKind::Options out;
    out.preferred = {query.kind.group, query.kind.version, "", query.kind.kind};
    out.look_again = owner.options_.look_again;
    out.retry_base = owner.options_.watch.retry_base;
    out.retry_cap = owner.options_.watch.retry_cap;
    return out;
  }
  void follow(const Resource& resource) {
    kubernetes::ReflectorOptions watch = owner.options_.watch;
    watch.resource = resource;
    if (resource.namespaced) watch.ns = query.ns;
    watch.max_objects = query.max_objects;
    watch.max_bytes = query.max_bytes;
    watch.seed = std::random_device()();
    follower.follow(std::move(watch));
  }
  void arrived() {
    if (gather.armed()) return;
    changed_at = SystemClock().now();
    // Who sees that they are known finds that plugins were told.
    if (objects() == nullptr) return owner.tell(*this);
    gather.arm(std::max<Duration>(owner.options_.gather, kRest * last_cost), &Watched::due, this);
  }
  static void due(void* self) {
    auto& watched = *static_cast<Watched*>(self);
    watched.owner.tell(watched);
  }
  // Any thread.
  std::shared_ptr<const NotifiedObjects> objects() const {
    const std::lock_guard lock(mutex);
    return picture;
  }
  std::string state_json() const {
    const std::string resource = resource_json(kind, follower.state());
    return fmt::format(R"({{"source":{},{})", json_quote(label), resource.substr(1));
  }
  // What there is has been seen, or it is known why not.
  bool settled() const {
    const OptionalKind::State there = kind.state();
    if (!there.looked) return !there.trouble.empty();
    const auto state = follower.state();
    return there.absent || (state && (state->complete || state->trouble_at != kNever));
  }

  KubernetesObjects& owner;
  const ObjectQuery query;
  const std::string label;
  telemetry::MetricRegistry registry;
  kubernetes::Metrics metrics;
  io::Timer gather;
  kubernetes::Follower<Kept> follower;
  OptionalKind kind;
  io::CancelSource cancel;
  bool looking = false;    // the kind's task runs
  TimePoint changed_at{};  // the first change that has not been told
  Duration last_cost{0};
  std::vector<std::shared_ptr<Listener>> listeners;  // under the owner's mutex
  mutable std::mutex mutex;
  std::shared_ptr<const NotifiedObjects> picture;  // under `mutex`
};

class KubernetesObjects::Feed final : public ObjectFeed {
 public:
  Feed(Watched& watched, std::shared_ptr<Listener> listener)
      : watched_(watched), listener_(std::move(listener)) {}
  ~Feed() override { watched_.owner.leave(watched_, listener_); }
  std::shared_ptr<const NotifiedObjects> objects() const override { return watched_.objects(); }
  std::string state_json() const override { return watched_.state_json(); }

 private:
  Watched& watched_;  // stays as long as it has the listener
  const std::shared_ptr<Listener> listener_;
};

KubernetesObjects::KubernetesObjects(kubernetes::ApiClient& api, telemetry::MetricRegistry& registry,
                                     Options options, std::function<void()> state_changed)
    : api_(api),
      registry_(registry),
      options_(std::move(options)),
      state_changed_(std::move(state_changed)) {}

KubernetesObjects::~KubernetesObjects() = default;

std::string KubernetesObjects::label_of(const ObjectQuery& query) const {
  const std::string name = query.kind.text() + (query.ns.empty() ? "" : " in " + query.ns);
  std::string label = name;
  const auto taken = [&](const auto& list) {
    return std::any_of(list.begin(), list.end(), [&](const auto& other) { return other->label == label; });
  };
  for (int number = 2; taken(watched_) || taken(ended_); ++number)
    label = fmt::format("{} #{}", name, number);
  return label;
}

std::unique_ptr<ObjectFeed> KubernetesObjects::follow(ObjectQuery query, std::function<void()> changed) {
  auto listener = std::make_shared<Listener>();
  listener->changed = std::move(changed);
  const std::lock_guard lock(mutex_);
  Watched* watched = nullptr;
  for (const auto& one : watched_) {
    if (one->query == query) watched = one.get();
  }
  if (watched == nullptr) {
    std::string label = label_of(query);
    watched =
        watched_.emplace_back(std::make_unique<Watched>(*this, std::move(query), std::move(label))).get();
    api_.loop().post([this, watched] { begin(*watched); });
  }
  watched->listeners.push_back(listener);
  return std::make_unique<Feed>(*watched, std::move(listener));
}

void KubernetesObjects::begin(Watched& watched) {
  telemetry::log_info("objects are followed for plugins", {{"source", watched.label}});
  watched.cancel.follow(api_.loop().shutdown_token());
  watched.looking = true;
  const auto look = [](Watched& self, io::CancelToken token) -> io::Task<void> {
    co_await self.kind.run(token);
    self.looking = false;
  };
  io::spawn(api_.loop(), look(watched, watched.cancel.token()));
}

void KubernetesObjects::leave(Watched& watched, const std::shared_ptr<Listener>& listener) {
  {
    const std::lock_guard lock(listener->calling);
    listener->changed = nullptr;
  }
  const std::lock_guard lock(mutex_);
  std::erase(watched.listeners, listener);
  if (!watched.listeners.empty()) return;
  const auto found =
      std::find_if(watched_.begin(), watched_.end(), [&](const auto& one) { return one.get() == &watched; });
  ended_.push_back(std::move(*found));
  watched_.erase(found);
  api_.loop().post([this, &watched] {
    telemetry::log_info("objects are followed no longer, no plugin wants them", {{"source", watched.label}});
    watched.cancel.cancel();
    watched.follower.end();
    io::spawn(api_.loop(), bury(watched));
    state_changed_();
  });
}

io::Task<void> KubernetesObjects::bury(Watched& watched) {
  const io::CancelToken token = api_.loop().shutdown_token();
  while (watched.looking || !watched.follower.idle()) {
    (void)co_await api_.loop().sleep(kBuryInterval, token);
    if (token.cancelled()) co_return;
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(ended_, [&](const auto& one) { return one.get() == &watched; });
}

void KubernetesObjects::tell(Watched& watched) {
  const kubernetes::Store<Kept>* store = watched.follower.current();
  if (store == nullptr) return;
  const SystemClock clock;
  const TimePoint began = clock.now();
  auto all = std::make_shared<NotifiedObjects>();
  all->reserve(store->size());
  store->for_each([&](const std::string&, const Kept& kept) { all->push_back(kept.object); });
  sort_objects(*all);
  bool first = false;
  {
    const std::lock_guard lock(watched.mutex);
    first = watched.picture == nullptr;
    watched.picture = all;
  }
  if (first)
    telemetry::log_info("plugins are told of objects", {{"source", watched.label}, {"objects", all->size()}});
  std::vector<std::shared_ptr<Listener>> listeners;
  {
    const std::lock_guard lock(mutex_);
    listeners = watched.listeners;
  }
  for (const auto& listener : listeners) {
    const std::lock_guard lock(listener->calling);
    if (listener->changed) listener->changed();
  }
  const TimePoint told = clock.now();
  watched.last_cost = told - began;
  watched.metrics.apply_seconds.observe(to_seconds(told - watched.changed_at));
}

bool KubernetesObjects::settled() const {
  if (settled_) return true;
  const std::lock_guard lock(mutex_);
  if (!std::all_of(watched_.begin(), watched_.end(), [](const auto& one) { return one->settled(); }))
    return false;
  settled_ = true;
  return true;
}

std::string KubernetesObjects::state_json() const {
  std::string out;
  const std::lock_guard lock(mutex_);
  for (const auto& one : watched_) out += (out.empty() ? "" : ",") + one->state_json();
  return out;
}

}  // namespace penstock::discovery
