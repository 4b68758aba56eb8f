#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/node.h"
#include "inference/plugin.h"
#include "scheduling/scheduler.h"
#include "telemetry/metrics.h"

namespace penstock::scheduling {

// Slots handed out in the order they are asked for; every key resolves.
class TestSlots final : public SlotResolver {
 public:
  AttributeSlot slot(const DataKey& key) const override {
    return slots_.emplace(key.text(), static_cast<AttributeSlot>(slots_.size())).first->second;
  }

 private:
  mutable std::map<std::string, AttributeSlot> slots_;
};

// A pool of endpoints named ns/e0, ns/e1, … with fresh zero signals, and one request to decide. For tests
// and benchmarks only.
class TestPool {
 public:
  static constexpr size_t kSlots = 16;

  explicit TestPool(size_t endpoints) {
    pool.pool_name = "pool";
    pool.pool_namespace = "ns";
    pool.epoch = 7;
    signals.resize(endpoints);
    signals.epoch = 9;
    for (size_t i = 0; i < endpoints; ++i) {
      auto endpoint = std::make_shared<Endpoint>();
      endpoint->slot = static_cast<EndpointSlot>(i);
      endpoint->ns = "ns";
      endpoint->name = "e" + std::to_string(i);
      endpoint->id = "ns/" + endpoint->name;
      endpoint->host_port = "10.0.0." + std::to_string(i) + ":8000";
      endpoint->live = std::make_shared<EndpointLive>();
      endpoints_.push_back(endpoint);
      pool.endpoints.push_back(endpoint);
      candidates.push_back(static_cast<Candidate>(i));
      for (size_t s = 0; s < kSignalCount; ++s) set(static_cast<Signal>(s), i, 0);
      signals.lora_rows[i].state = SignalState::kFresh;
      signals.lora_rows[i].observed_at = now;
    }
    request.request_id = "req-1";
    request.target_model = "model";
    restart();
  }

  Endpoint& endpoint(size_t i) { return *endpoints_[i]; }
  void set(Signal signal, size_t i, double value, SignalState state = SignalState::kFresh) {
    const auto row = static_cast<size_t>(signal);
    signals.value[row][i] = value;
    signals.state[row][i] = state;
    signals.observed_at[row][i] =
        state == SignalState::kNeverSeen || state == SignalState::kNameMissing ? kNever : now;
  }
  void set_all(Signal signal, const std::vector<double>& values) {
    for (size_t i = 0; i < values.size(); ++i) set(signal, i, values[i]);
  }

  // A fresh context for the next decision: attributes empty, arena reset, randomness from `seed`.
  SchedulingContext& restart(uint64_t seed = 1) {
    arena.reset();
    attributes.emplace(arena, kSlots, candidates.size());
    random.emplace(seed);
    context.emplace(SchedulingContext{request, pool, signals, *attributes, arena, *random, now, candidates});
    return *context;
  }

  // Scores of one scorer over all candidates, unclamped.
  std::vector<double> score(const Scorer& scorer) {
    std::vector<double> out(candidates.size(), -1);
    scorer.score(*context, candidates, out);
    return out;
  }
  std::string explain(const Scorer& scorer, Candidate c) {
    std::string out;
    scorer.explain(*context, c, out);
    return out;
  }
  // Ids of what a filter keeps.
  std::vector<std::string> keep(const Filter& filter) {
    std::vector<Candidate> list(candidates);
    list.resize(filter.filter(*context, list));
    std::vector<std::string> out;
    for (const Candidate c : list) out.push_back(pool.endpoints[c]->name);
    return out;
  }

  TimePoint now = TimePoint(std::chrono::seconds(1000));
  InferenceRequest request;
  PoolSnapshot pool;
  SignalView signals;
  Arena arena;
  std::optional<AttributeTable> attributes;
  std::optional<Random> random;
  std::optional<SchedulingContext> context;
  std::vector<Candidate> candidates;
  TestSlots slots;

 private:
  std::vector<std::shared_ptr<Endpoint>> endpoints_;
};

// Makes a plugin through the registry, as the loader does; parameters are a YAML document or "".
inline Result<std::unique_ptr<Plugin>> make_plugin(std::string_view type, std::string_view parameters = "",
                                                   std::string_view name = "") {
  static telemetry::MetricRegistry metrics;
  static const ManualClock clock;
  for (const PluginDescriptor& descriptor : scheduling_plugins()) {
    if (descriptor.type != type) continue;
    config::Node node;
    if (!parameters.empty()) {
      auto parsed = config::parse_document(parameters, "test");
      if (!parsed.ok()) return parsed.error();
      node = std::move(parsed).value();
    }
    auto plugin = descriptor.create(
        {name.empty() ? type : name, parameters.empty() ? nullptr : &node, "parameters", metrics, clock, 1});
    if (plugin.ok()) (*plugin)->set_identity(std::string(name.empty() ? type : name), std::string(type));
    return plugin;
  }
  return Error{ErrorCode::kInvalidConfig, "plugin type '" + std::string(type) + "' is not registered"};
}

// The same as one of its roles. REQUIRES: it can be made and has the role.
template <typename Role>
std::unique_ptr<Plugin> make_as(std::string_view type, const Role*& role, std::string_view parameters = "",
                                const SlotResolver* slots = nullptr, std::string_view name = "") {
  auto plugin = make_plugin(type, parameters, name);
  if (!plugin.ok()) return nullptr;
  if (slots != nullptr) (*plugin)->bind_slots(*slots);
  role = dynamic_cast<const Role*>(plugin->get());
  return std::move(plugin).value();
}

}  // namespace penstock::scheduling
