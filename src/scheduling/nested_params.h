#pragma once

#include <string>
#include <string_view>

#include "config/params.h"

namespace penstock::scheduling {

// An object within a plugin's parameters, decoded by `bind(Binder&)` as strictly as they are. Returns false
// when it is absent, or while describing.
template <typename Bind>
bool nested(config::Binder& b, std::string_view name, std::string_view doc, Bind&& bind) {
  const config::Node* node = nullptr;
  b.node(name, node, doc);
  if (node == nullptr || node->is_null() || b.describing()) return false;
  if (!node->is_map()) {
    b.fail(name, "must be an object");
    return true;
  }
  const Status status = config::decode_params(node, std::string(name), bind);
  if (!status.ok()) b.fail(name, status.error().message);
  return true;
}

// A list of objects within a plugin's parameters; `bind(Binder&)` is called for each.
template <typename Bind>
bool nested_list(config::Binder& b, std::string_view name, std::string_view doc, Bind&& bind) {
  const config::Node* node = nullptr;
  b.node(name, node, doc);
  if (node == nullptr || node->is_null() || b.describing()) return false;
  if (!node->is_list()) {
    b.fail(name, "must be a list of objects");
    return true;
  }
  for (size_t i = 0; i < node->items.size(); ++i) {
    const std::string path = std::string(name) + "[" + std::to_string(i) + "]";
    if (!node->items[i].is_map()) {
      b.fail(name, path + ": must be an object");
      continue;
    }
    const Status status = config::decode_params(&node->items[i], path, bind);
    if (!status.ok()) b.fail(name, status.error().message);
  }
  return true;
}

}  // namespace penstock::scheduling
