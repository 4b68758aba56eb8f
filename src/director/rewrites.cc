#include "director/rewrites.h"

#include <algorithm>

namespace penstock::director {

namespace {

RewriteTable::Rule make_rule(const RewriteObject& object, const RewriteObject::Rule& rule) {
  RewriteTable::Rule out{object.name, rule.targets, 0};
  for (const RewriteObject::Target& target : rule.targets) out.total_weight += target.weight.value_or(0);
  return out;
}

}  // namespace

RewriteTable::RewriteTable(std::vector<RewriteObject> objects) {
  std::sort(objects.begin(), objects.end(), [](const RewriteObject& a, const RewriteObject& b) {
    return a.order != b.order ? a.order < b.order : a.name < b.name;
  });
  for (const RewriteObject& object : objects) {
    for (const RewriteObject::Rule& rule : object.rules) {
      const auto weighted = std::count_if(rule.targets.begin(), rule.targets.end(),
                                          [](const auto& t) { return t.weight.value_or(0) > 0; });
      if (weighted != 0 && weighted != static_cast<std::ptrdiff_t>(rule.targets.size())) {
        mixed_weights_ = true;
      }
      if (rule.generic && !generic_) generic_ = make_rule(object, rule);
      for (const std::string& model : rule.models) exact_.try_emplace(model, make_rule(object, rule));
    }
  }
}

const RewriteTable::Rule* RewriteTable::find(std::string_view model) const {
  if (const auto it = exact_.find(model); it != exact_.end()) return &it->second;
  return generic_ ? &*generic_ : nullptr;
}

std::string_view RewriteTable::Rule::choose(Random& random) const {
  if (targets.empty()) return {};
  if (targets.size() == 1) return targets[0].model;
  if (total_weight == 0) return targets[random.below(static_cast<uint32_t>(targets.size()))].model;
  // Weights are at most 10^6 each and few, so their sum fits 32 bits.
  uint64_t left = random.below(static_cast<uint32_t>(std::min<uint64_t>(total_weight, UINT32_MAX)));
  for (const RewriteObject::Target& target : targets) {
    const uint64_t weight = target.weight.value_or(0);
    if (left < weight) return target.model;
    left -= weight;
  }
  return targets.back().model;
}

std::vector<std::string_view> RewriteTable::model_names() const {
  std::vector<std::string_view> names;
  const auto add_targets = [&names](const Rule& rule) {
    for (const RewriteObject::Target& target : rule.targets) names.emplace_back(target.model);
  };
  for (const auto& [model, rule] : exact_) {
    names.emplace_back(model);
    add_targets(rule);
  }
  if (generic_) add_targets(*generic_);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace penstock::director
