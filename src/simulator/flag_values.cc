#include "simulator/flag_values.h"

#include <algorithm>

namespace penstock::simulator {

Result<config::Node> node_of_flags(FlagValues flags, const std::vector<config::ParamDoc>& docs) {
  config::Node node;
  node.kind = config::Node::Kind::kMap;
  for (const auto& [name, value] : flags) {
    const auto doc = std::find_if(docs.begin(), docs.end(), [&](const auto& d) { return d.name == name; });
    if (doc == docs.end()) return invalid_config("--" + name + ": no such flag");
    config::Node text;
    text.kind = config::Node::Kind::kString;
    text.text = value;
    const auto known = std::find_if(node.members.begin(), node.members.end(),
                                    [&](const auto& m) { return m.first == name; });
    if (doc->type.starts_with("list")) {
      if (known == node.members.end()) {
        config::Node list;
        list.kind = config::Node::Kind::kList;
        list.items.push_back(std::move(text));
        node.members.emplace_back(name, std::move(list));
      } else {
        known->second.items.push_back(std::move(text));
      }
      continue;
    }
    config::Node scalar = std::move(text);
    if (doc->type != "string" && doc->type != "duration") {
      Result<config::Node> parsed = config::parse_document(value, "--" + name);
      if (!parsed) return std::move(parsed).error();
      scalar = std::move(parsed).value();
      scalar.line = 0;  // a flag has none
    }
    if (known != node.members.end()) {
      known->second = std::move(scalar);
    } else {
      node.members.emplace_back(name, std::move(scalar));
    }
  }
  return node;
}

}  // namespace penstock::simulator
