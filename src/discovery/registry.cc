#include "discovery/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace penstock::discovery {

namespace {

std::string join_host_port(const std::string& address, uint16_t port) {
  const bool v6 = address.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", address, port) : fmt::format("{}:{}", address, port);
}

bool same_meaning(const Endpoint& a, const Endpoint& b) {
  return a.ns == b.ns && a.name == b.name && a.address == b.address && a.port == b.port &&
         a.metrics_host == b.metrics_host && a.rank == b.rank && a.tls == b.tls && a.tls_name == b.tls_name &&
         a.labels == b.labels && a.engine == b.engine && a.draining == b.draining;
}

Endpoint make_endpoint(const DiscoveredEndpoint& from, std::string id, uint16_t port, int rank) {
  Endpoint e;
  e.ns = from.ns;
  e.name = from.name;
  e.id = std::move(id);
  e.address = from.address;
  e.port = port;
  e.host_port = join_host_port(from.address, port);
  e.metrics_host = from.metrics_host.empty() ? e.host_port : from.metrics_host;
  e.rank = rank;
  e.tls = from.tls;
  e.tls_name = from.tls_name;
  e.labels = from.labels;
  e.engine = from.engine;
  e.draining = from.draining;
  return e;
}

bool selected(const std::map<std::string, std::string, std::less<>>& selector,
              const DiscoveredEndpoint& endpoint) {
  return std::all_of(selector.begin(), selector.end(), [&](const auto& wanted) {
    const auto it = endpoint.labels.find(wanted.first);
    return it != endpoint.labels.end() && it->second == wanted.second;
  });
}

}  // namespace

std::optional<EndpointSlot> SlotAllocator::take(TimePoint now) {
  const std::lock_guard lock(mutex_);
  while (!resting_.empty() && resting_.front().until <= now) {
    free_.push_back(resting_.front().slot);
    std::push_heap(free_.begin(), free_.end(), std::greater<>());
    resting_.pop_front();
  }
  EndpointSlot slot = 0;
  if (!free_.empty()) {
    std::pop_heap(free_.begin(), free_.end(), std::greater<>());
    slot = free_.back();
    free_.pop_back();
  } else if (next_ < limit_) {
    slot = static_cast<EndpointSlot>(next_++);
  } else {
    return std::nullopt;
  }
  ++in_use_;
  return slot;
}

void SlotAllocator::give_back(EndpointSlot slot, TimePoint now) {
  const std::lock_guard lock(mutex_);
  resting_.push_back({slot, now + grace_});
  --in_use_;
}

size_t SlotAllocator::in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

Pool::Pool(PoolOptions options, SlotAllocator& slots, const Clock& clock)
    : name_(std::move(options.name)),
      ns_(std::move(options.ns)),
      max_endpoints_(options.max_endpoints),
      slots_(slots),
      clock_(clock),
      selector_(std::move(options.selector)),
      target_ports_(std::move(options.target_ports)) {
  auto empty = std::make_shared<PoolSnapshot>();
  empty->pool_name = name_;
  empty->pool_namespace = ns_;
  empty->epoch = 1;
  snapshot_ = std::move(empty);
}

Pool::~Pool() {
  for (const auto& endpoint : snapshot_->endpoints) {
    for (EndpointListener* listener : listeners_) listener->endpoint_removed(endpoint);
    slots_.give_back(endpoint->slot, clock_.now());
  }
}

std::shared_ptr<const PoolSnapshot> Pool::snapshot() const {
  const std::lock_guard lock(snapshot_mutex_);
  return snapshot_;
}

std::vector<std::string> Pool::apply(std::string_view source, std::vector<DiscoveredEndpoint> endpoints) {
  const std::lock_guard lock(writer_);
  const auto it = std::find_if(sources_.begin(), sources_.end(),
                               [&](const auto& known) { return known.first == source; });
  if (it != sources_.end()) {
    it->second = std::move(endpoints);
  } else {
    sources_.emplace_back(source, std::move(endpoints));
  }
  return rebuild();
}

std::vector<std::string> Pool::reconfigure(std::map<std::string, std::string, std::less<>> selector,
                                           std::vector<uint16_t> target_ports) {
  const std::lock_guard lock(writer_);
  selector_ = std::move(selector);
  target_ports_ = std::move(target_ports);
  return rebuild();
}

void Pool::add_listener(EndpointListener* listener) {
  const std::lock_guard lock(writer_);
  listeners_.push_back(listener);
  for (const auto& endpoint : snapshot()->endpoints) listener->endpoint_added(endpoint);
}

void Pool::remove_listener(EndpointListener* listener) {
  const std::lock_guard lock(writer_);
  std::erase(listeners_, listener);
}

std::vector<std::string> Pool::rebuild() {
  std::vector<std::string> problems;
  std::map<std::string, Endpoint> wanted;
  const auto add = [&](const DiscoveredEndpoint& from, std::string id, uint16_t port, int rank) {
    if (wanted.contains(id)) {
      problems.push_back(fmt::format("endpoint \"{}\" is named twice, the first one stays", id));
    } else if (wanted.size() >= max_endpoints_) {
      problems.push_back(
          fmt::format("endpoint \"{}\": the pool already has {} endpoints, its limit", id, max_endpoints_));
    } else {
      Endpoint made = make_endpoint(from, id, port, rank);
      wanted.emplace(std::move(id), std::move(made));
    }
  };
  for (const auto& [source, endpoints] : sources_) {
    for (const DiscoveredEndpoint& from : endpoints) {
      if (!selected(selector_, from)) continue;
      const std::string id = from.ns + "/" + from.name;
      if (from.port && from.rank) {
        add(from, fmt::format("{}-rank-{}", id, *from.rank), *from.port, *from.rank);
      } else if (from.port) {
        add(from, id, *from.port, 0);
      } else if (target_ports_.empty()) {
        problems.push_back(
            fmt::format("endpoint \"{}\" names no port and pool \"{}\" has no targetPorts", id, name_));
      } else if (target_ports_.size() == 1) {
        add(from, id, target_ports_.front(), 0);
      } else {
        for (size_t rank = 0; rank < target_ports_.size(); ++rank)
          add(from, fmt::format("{}-rank-{}", id, rank), target_ports_[rank], static_cast<int>(rank));
      }
    }
  }

  const TimePoint now = clock_.now();
  const std::shared_ptr<const PoolSnapshot> old = snapshot();
  std::map<std::string_view, std::shared_ptr<const Endpoint>> present;
  for (const auto& endpoint : old->endpoints) present.emplace(endpoint->id, endpoint);

  auto next = std::make_shared<PoolSnapshot>();
  next->pool_name = name_;
  next->pool_namespace = ns_;
  next->epoch = old->epoch + 1;
  std::vector<std::shared_ptr<const Endpoint>> added;
  std::vector<std::pair<std::shared_ptr<const Endpoint>, std::shared_ptr<const Endpoint>>> updated;
  for (auto& [id, draft] : wanted) {
    const auto it = present.find(id);
    // The same name at another address is another server: nothing that is known of the old one (load,
    // failures, prefixes, signals) is true of it. The old one stays in `present`, to be removed.
    if (it == present.end() || it->second->host_port != draft.host_port) {
      const auto slot = slots_.take(now);
      if (!slot) {
        problems.push_back(fmt::format("endpoint \"{}\": no endpoint slot is left", id));
        continue;
      }
      draft.slot = *slot;
      draft.live = std::make_shared<EndpointLive>();
      added.push_back(std::make_shared<const Endpoint>(std::move(draft)));
      next->endpoints.push_back(added.back());
      continue;
    }
    std::shared_ptr<const Endpoint> before = std::move(it->second);
    present.erase(it);
    if (same_meaning(*before, draft)) {
      next->endpoints.push_back(std::move(before));
      continue;
    }
    draft.slot = before->slot;
    draft.live = before->live;
    updated.emplace_back(before, std::make_shared<const Endpoint>(std::move(draft)));
    next->endpoints.push_back(updated.back().second);
  }
  if (added.empty() && updated.empty() && present.empty()) return problems;

  const uint64_t epoch = next->epoch;
  {
    const std::lock_guard lock(snapshot_mutex_);
    snapshot_ = std::move(next);
  }
  epoch_.store(epoch, std::memory_order_release);

  for (EndpointListener* listener : listeners_) {
    for (const auto& [id, endpoint] : present) listener->endpoint_removed(endpoint);
    for (const auto& [before, after] : updated) listener->endpoint_updated(before, after);
    for (const auto& endpoint : added) listener->endpoint_added(endpoint);
  }
  for (const auto& [id, endpoint] : present) slots_.give_back(endpoint->slot, now);
  return problems;
}

}  // namespace penstock::discovery
