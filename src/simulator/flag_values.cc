#include "simulator/flag_values.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"

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
      if (scalar.is_null())
        return invalid_config(fmt::format("--{}: expected {}, got \"{}\"", name, doc->type, value));
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

namespace {

template <typename T>
void fail_outside(config::Binder& b, std::string_view name, const T& value, const T& low, const T& high) {
  b.fail(name, fmt::format("{} is not between {} and {}", value, low, high));
}

}  // namespace

void within(config::Binder& b, std::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) fail_outside(b, name, value, low, high);
}

void within(config::Binder& b, std::string_view name, double value, double low, double high) {
  if (!(value >= low && value <= high)) fail_outside(b, name, value, low, high);
}

void within(config::Binder& b, std::string_view name, Duration value, Duration low, Duration high) {
  if (value < low || value > high)
    fail_outside(b, name, format_duration(value), format_duration(low), format_duration(high));
}

}  // namespace penstock::simulator
