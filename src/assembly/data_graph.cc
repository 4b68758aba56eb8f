#include "assembly/data_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "flowcontrol/policies.h"

namespace penstock::assembly {

namespace {

struct DefaultProducer {
  std::string_view key;
  std::string_view type;
};
constexpr std::array<DefaultProducer, 7> kDefaultProducers{{
    {"PrefixCacheMatchInfoDataKey/approx-prefix-cache-producer", "approx-prefix-cache-producer"},
    {"InFlightLoadDataKey/inflight-load-producer", "inflight-load-producer"},
    {"UncachedRequestTokensDataKey/inflight-load-producer", "inflight-load-producer"},
    {"LatencyPredictionInfoDataKey/predicted-latency-producer", "predicted-latency-producer"},
    {"MultiModalEncoderCacheMatchInfoKey/mm-embeddings-cache-producer", "mm-embeddings-cache-producer"},
    {"TokenizedPrompt/token-producer", "token-producer"},
    {"SessionIDDataKey/session-id-producer", "session-id-producer"},
}};

template <typename T>
bool is(const Plugin& plugin) {
  return dynamic_cast<const T*>(&plugin) != nullptr;
}

// When a plugin runs in a request's life: 0 while queued, 1 around scheduling, 2 inside it, -1 elsewhere.
int layer_of(const Plugin& plugin) {
  if (is<flowcontrol::FairnessPolicy>(plugin) || is<flowcontrol::OrderingPolicy>(plugin)) return 0;
  if (is<DataProducer>(plugin) || is<Admitter>(plugin) || is<PreRequest>(plugin) || is<ResponseHook>(plugin))
    return 1;
  if (is<ProfileHandler>(plugin) || is<Filter>(plugin) || is<Scorer>(plugin) || is<Picker>(plugin)) return 2;
  return -1;
}

const DataUse* find_use(const std::vector<DataUse>& uses, const DataKey& key) {
  const auto found =
      std::find_if(uses.begin(), uses.end(), [&](const DataUse& use) { return use.key == key; });
  return found == uses.end() ? nullptr : &*found;
}

}  // namespace

std::string_view default_producer_of(std::string_view text) {
  for (const DefaultProducer& entry : kDefaultProducers) {
    if (entry.key == text) return entry.type;
  }
  return {};
}

DataGraph::DataGraph(const std::vector<const Plugin*>& plugins) {
  for (const Plugin* plugin : plugins) {
    Node node{plugin, {}, layer_of(*plugin)};
    plugin->declare_data(node.data);
    if (node.data.consumes.empty() && node.data.produces.empty()) continue;
    index_.emplace(plugin, nodes_.size());
    nodes_.push_back(std::move(node));
  }
}

bool DataGraph::is_produced(const DataKey& key) const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [&](const Node& node) { return find_use(node.data.produces, key) != nullptr; });
}

std::vector<DataGraph::MissingKey> DataGraph::missing(bool required) const {
  std::vector<MissingKey> out;
  for (const Node& node : nodes_) {
    for (const DataUse& use : node.data.consumes) {
      if (use.required == required && !is_produced(use.key)) out.push_back({use.key, node.plugin});
    }
  }
  return out;
}

std::vector<DataGraph::MissingKey> DataGraph::missing() const {
  return missing(true);
}
std::vector<DataGraph::MissingKey> DataGraph::missing_optional() const {
  return missing(false);
}

Result<DataGraph::Edges> DataGraph::required_edges() const {
  Edges edges(nodes_.size());
  for (size_t c = 0; c < nodes_.size(); ++c) {
    for (size_t p = 0; p < nodes_.size(); ++p) {
      if (p == c) continue;
      bool needs = false;
      for (const DataUse& use : nodes_[c].data.consumes) {
        const DataUse* made = find_use(nodes_[p].data.produces, use.key);
        if (made == nullptr) continue;
        // Optional or not: who reads a column reads it as its own type.
        if (made->value_type != use.value_type) {
          return invalid_config("data type mismatch between produced and consumed data for key: " +
                                use.key.text());
        }
        if (!use.required) continue;
        needs = true;
        if (nodes_[p].layer > nodes_[c].layer) {
          return invalid_config(
              fmt::format("invalid plugin layer execution order: producer {} needs to be "
                          "executed before consumer {}",
                          nodes_[p].plugin->typed_name(), nodes_[c].plugin->typed_name()));
        }
      }
      if (needs) edges[c].push_back(p);
    }
  }
  return edges;
}

DataGraph::Edges DataGraph::with_optional_edges(Edges edges) const {
  for (size_t c = 0; c < nodes_.size(); ++c) {
    for (size_t p = 0; p < nodes_.size(); ++p) {
      if (p == c) continue;
      const bool uses = std::any_of(
          nodes_[c].data.consumes.begin(), nodes_[c].data.consumes.end(), [&](const DataUse& use) {
            return !use.required && find_use(nodes_[p].data.produces, use.key) != nullptr;
          });
      if (uses) edges[c].push_back(p);
    }
  }
  return edges;
}

std::optional<std::vector<size_t>> DataGraph::sorted(const Edges& edges) const {
  std::vector<size_t> open_needs(nodes_.size());
  std::vector<std::vector<size_t>> needed_by(nodes_.size());
  for (size_t node = 0; node < nodes_.size(); ++node) {
    open_needs[node] = edges[node].size();
    for (const size_t need : edges[node]) needed_by[need].push_back(node);
  }
  // Of the nodes that may run, the first in order goes next.
  std::set<size_t> ready;
  for (size_t node = 0; node < nodes_.size(); ++node) {
    if (open_needs[node] == 0) ready.insert(node);
  }
  std::vector<size_t> out;
  while (!ready.empty()) {
    const size_t node = *ready.begin();
    ready.erase(ready.begin());
    out.push_back(node);
    for (const size_t user : needed_by[node]) {
      if (--open_needs[user] == 0) ready.insert(user);
    }
  }
  if (out.size() < nodes_.size()) return std::nullopt;
  return out;
}

Error DataGraph::cycle(const Edges& edges) const {
  // Whoever needs nobody is in no circle; what is left after dropping those, again and again, is one or
  // needs one.
  std::vector<bool> out(nodes_.size());
  for (bool dropped = true; dropped;) {
    dropped = false;
    for (size_t node = 0; node < nodes_.size(); ++node) {
      const auto open = [&](size_t need) { return !out[need]; };
      if (out[node] || std::any_of(edges[node].begin(), edges[node].end(), open)) continue;
      out[node] = dropped = true;
    }
  }
  std::vector<std::string> names;
  for (size_t node = 0; node < nodes_.size(); ++node) {
    if (!out[node]) names.push_back(nodes_[node].plugin->typed_name());
  }
  return invalid_config(fmt::format(
      "cycle detected: graph is not a DAG: each of {} needs another's data first", fmt::join(names, ", ")));
}

Result<std::vector<const DataProducer*>> DataGraph::order() const {
  Result<Edges> edges = required_edges();
  if (!edges) return std::move(edges).error();
  std::optional<std::vector<size_t>> numbers = sorted(with_optional_edges(*edges));
  if (!numbers) numbers = sorted(*edges);
  if (!numbers) return cycle(*edges);
  std::vector<const DataProducer*> out;
  for (const size_t number : *numbers) {
    if (const auto* producer = dynamic_cast<const DataProducer*>(nodes_[number].plugin))
      out.push_back(producer);
  }
  return out;
}

std::vector<DataKey> DataGraph::attribute_keys() const {
  std::vector<DataKey> out;
  for (const Node& node : nodes_) {
    if (!is<DataProducer>(*node.plugin) && !is<ProfileHandler>(*node.plugin)) continue;
    for (const DataUse& use : node.data.produces) {
      if (std::find(out.begin(), out.end(), use.key) == out.end()) out.push_back(use.key);
    }
  }
  return out;
}

const DataDeclaration& DataGraph::declaration(const Plugin& plugin) const {
  const auto found = index_.find(&plugin);
  return found == index_.end() ? none_ : nodes_[found->second].data;
}

}  // namespace penstock::assembly
