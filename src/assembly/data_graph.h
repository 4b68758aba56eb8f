#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "inference/data_key.h"
#include "inference/plugin.h"

namespace penstock::assembly {

// The type that makes a piece of data when a configuration names no producer for it; "" for none.
// `text` is DataKey::text().
std::string_view default_producer_of(std::string_view text);

// Which plugin's data which other plugin uses. Nodes are the plugins that make or use data.
class DataGraph {
 public:
  // In the order that decides ties. Plugins outlive the graph.
  explicit DataGraph(const std::vector<const Plugin*>& plugins);

  struct MissingKey {
    DataKey key;
    const Plugin* consumer = nullptr;
  };
  // Required keys nobody produces, in order of their consumers.
  std::vector<MissingKey> missing() const;
  // Optional keys nobody produces.
  std::vector<MissingKey> missing_optional() const;

  // Checks value types (of optional needs too), layers and cycles, and orders the data producers so that each
  // comes after those whose data it needs. Optional needs order them too where that makes no cycle (the
  // reference leaves their order to chance). Errors: "data type mismatch between produced and consumed data
  // for key: <key>", "invalid plugin layer execution order: producer <p> needs to be executed before consumer
  // <c>", "cycle detected: graph is not a DAG".
  Result<std::vector<const DataProducer*>> order() const;

  // All keys made by data producers and profile handlers, in order: each gets an attribute slot.
  std::vector<DataKey> attribute_keys() const;
  const DataDeclaration& declaration(const Plugin& plugin) const;

 private:
  struct Node {
    const Plugin* plugin;
    DataDeclaration data;
    int layer;
  };
  // edges[i]: the nodes that node i needs.
  using Edges = std::vector<std::vector<size_t>>;

  bool is_produced(const DataKey& key) const;
  std::vector<MissingKey> missing(bool required) const;
  Result<Edges> required_edges() const;
  Edges with_optional_edges(Edges edges) const;
  Error cycle(const Edges& edges) const;
  // Node numbers with needs first; nothing when there is a cycle.
  std::optional<std::vector<size_t>> sorted(const Edges& edges) const;

  std::vector<Node> nodes_;
  std::map<const Plugin*, size_t> index_;
  DataDeclaration none_;
};

}  // namespace penstock::assembly
