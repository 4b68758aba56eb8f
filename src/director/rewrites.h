#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/random.h"

namespace penstock::director {

// One InferenceModelRewrite object of a pool. `order` is its creation order: smaller is older.
struct RewriteObject {
  struct Target {
    std::string model;
    std::optional<uint32_t> weight;
  };
  struct Rule {
    std::vector<std::string> models;  // exact names; empty together with `generic`: never matches
    bool generic = false;             // the rule had no matches
    std::vector<Target> targets;
  };
  std::string name;
  uint64_t order = 0;
  std::vector<Rule> rules;
};

// The model rewrite rules of one pool. An exact rule beats a generic one; among equals the oldest object
// wins, then the first rule in the object. Immutable, shared by all loops.
// Contract: InferenceModelRewrite of llm-d.ai/v1alpha2.
class RewriteTable {
 public:
  struct Rule {
    std::string object_name;
    std::vector<RewriteObject::Target> targets;
    uint64_t total_weight = 0;  // 0: no target has a weight, all are equally likely
    // The model this request gets: by weight; targets without one are never chosen when another has one.
    // Empty when the rule has no targets.
    std::string_view choose(Random& random) const;
  };

  RewriteTable() = default;
  explicit RewriteTable(std::vector<RewriteObject> objects);

  // The rule for a model name as the client wrote it (may be empty), or nullptr.
  const Rule* find(std::string_view model) const;
  bool empty() const { return exact_.empty() && !generic_; }
  // Every model name the rules mention: metric labels that never fold.
  std::vector<std::string_view> model_names() const;
  // True where a rule's targets are weighted in part only; worth a warning when loading.
  bool has_mixed_weights() const { return mixed_weights_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view v) const { return std::hash<std::string_view>()(v); }
  };
  std::unordered_map<std::string, Rule, Hash, std::equal_to<>> exact_;
  std::optional<Rule> generic_;
  bool mixed_weights_ = false;
};

// What the manifests say about requests of one pool: rewrites and objectives. Swapped as a whole.
struct PoolRules {
  RewriteTable rewrites;
  std::map<std::string, int, std::less<>> objective_priorities;  // InferenceObjective name -> priority

  // Unknown names have priority 0.
  int priority_of(std::string_view objective) const {
    const auto it = objective_priorities.find(objective);
    return it == objective_priorities.end() ? 0 : it->second;
  }
};

}  // namespace penstock::director
