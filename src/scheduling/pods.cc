#include "scheduling/pods.h"

namespace penstock::scheduling {

namespace {

using config::Node;

const Node* find(const Node* node, std::string_view name) {
  return node == nullptr || !node->is_map() ? nullptr : node->find(name);
}

std::string_view text_of(const Node* node) {
  return node != nullptr && node->kind == Node::Kind::kString ? std::string_view(node->text)
                                                              : std::string_view();
}

bool is_ready(const Node& pod) {
  const Node* deleted = find(find(&pod, "metadata"), "deletionTimestamp");
  if (deleted != nullptr && !deleted->is_null()) return false;
  const Node* conditions = find(find(&pod, "status"), "conditions");
  if (conditions == nullptr || !conditions->is_list()) return false;
  for (const Node& condition : conditions->items) {
    if (text_of(find(&condition, "type")) == "Ready") return text_of(find(&condition, "status")) == "True";
  }
  return false;
}

}  // namespace

std::vector<std::string> pod_fields() {
  return {"metadata.deletionTimestamp", "metadata.labels", "spec.hostname", "status.conditions"};
}

std::vector<Pod> ready_pods(const NotifiedObjects& all) {
  std::vector<Pod> out;
  for (const auto& one : all) {
    const NotifiedObject& object = *one;
    if (!is_ready(object.object)) continue;
    Pod& pod = out.emplace_back();
    pod.ns = object.ns;
    pod.name = object.name;
    pod.hostname = text_of(find(find(&object.object, "spec"), "hostname"));
    const Node* labels = find(find(&object.object, "metadata"), "labels");
    if (labels == nullptr || !labels->is_map()) continue;
    for (const Node::Member& label : labels->members) pod.labels[label.first] = text_of(&label.second);
  }
  return out;
}

}  // namespace penstock::scheduling
