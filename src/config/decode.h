#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "config/node.h"
#include "config/params.h"

// Small helpers for the documents of this room: errors of many objects are collected and told at once.
namespace penstock::config {

// "<message> (line N)"; just the message where there is no line.
inline std::string with_line(std::string message, int line) {
  return line > 0 ? fmt::format("{} (line {})", message, line) : message;
}

// "string "abc"": kind and value as messages show them, the value cut where it is long.
std::string shown_with_kind(const Node& node);

class Errors {
 public:
  explicit Errors(Binder::Unknown unknown = Binder::Unknown::kRefused) : unknown_(unknown) {}
  // What decode_object() does with members that nobody asks for.
  Binder::Unknown unknown() const { return unknown_; }
  void add(std::string message) { messages_.push_back(std::move(message)); }
  void add(const Status& status) {
    if (!status.ok()) messages_.push_back(status.error().message);
  }
  void add(const std::string& path, std::string_view message, int line) {
    messages_.push_back(with_line(fmt::format("{}: {}", path, message), line));
  }
  bool empty() const { return messages_.empty(); }
  size_t size() const { return messages_.size(); }
  // All messages joined by "; ". REQUIRES: !empty().
  Error joined() const {
    std::string all;
    for (const std::string& message : messages_) {
      if (!all.empty()) all.append("; ");
      all.append(message);
    }
    return invalid_config(std::move(all));
  }

 private:
  Binder::Unknown unknown_;
  std::vector<std::string> messages_;
};

// Calls each(item, "<path>[i]") for the items of a list; null and absent are empty lists.
template <typename Each>
void for_each_item(const Node* list, const std::string& path, Errors& errors, Each&& each) {
  if (list == nullptr || list->is_null()) return;
  if (!list->is_list()) {
    errors.add(path, fmt::format("expected list, got {}", shown_with_kind(*list)), list->line);
    return;
  }
  for (size_t i = 0; i < list->items.size(); ++i) {
    each(list->items[i], fmt::format("{}[{}]", path, i));
  }
}

// Decodes one object with case-sensitive names, as Kubernetes objects have them.
template <typename Bind>
void decode_object(const Node* node, const std::string& path, Errors& errors, Bind&& bind) {
  errors.add(decode_params(node, path, std::forward<Bind>(bind), Binder::Case::kSensitive, errors.unknown()));
}

// "<a>.<b>", or "<b>" where a is empty.
inline std::string join_path(std::string_view a, std::string_view b) {
  return a.empty() ? std::string(b) : fmt::format("{}.{}", a, b);
}

}  // namespace penstock::config
