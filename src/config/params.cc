#include "config/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/strings.h"
#include "base/units.h"
#include "config/decode.h"

namespace penstock::config {

namespace {

std::string where(const Node* node) {
  return node != nullptr && node->line > 0 ? fmt::format(" (line {})", node->line) : std::string();
}

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (const std::string& part : parts) {
    if (!out.empty()) out.append(separator);
    out.append(part);
  }
  return out;
}

std::string written(double value) {
  return fmt::format("{}", value);
}

}  // namespace

std::string shown_with_kind(const Node& node) {
  if (node.is_null()) return "null";
  constexpr size_t kMaxShown = 80;
  std::string text = node.to_json();
  if (text.size() > kMaxShown) {
    size_t end = kMaxShown;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // whole characters
    text = text.substr(0, end) + "…";
  }
  return fmt::format("{} {}", Node::kind_name(node.kind), text);
}

Binder::Binder(const Node* node, std::string path, Case match, Unknown unknown)
    : node_(node), path_(std::move(path)), match_(match), unknown_(unknown) {
  if (node_ != nullptr && node_->is_null()) node_ = nullptr;
  if (node_ != nullptr && !node_->is_map()) {
    errors_.push_back(fmt::format("{}: expected object, got {}{}", path_.empty() ? "document" : path_,
                                  shown_with_kind(*node_), where(node_)));
    node_ = nullptr;
  }
}

Binder::Binder() : describing_(true) {}

const Node* Binder::take(std::string_view name) {
  known_.emplace_back(name);
  if (node_ == nullptr) return nullptr;
  const Node* found = nullptr;
  for (const auto& [key, value] : node_->members) {
    const bool same = match_ == Case::kInsensitive ? ascii_iequals(key, name) : key == name;
    if (!same) continue;
    if (found != nullptr) fail(name, fmt::format("given twice in different spellings, \"{}\" again", key));
    found = &value;
  }
  return found == nullptr || found->is_null() ? nullptr : found;
}

bool Binder::present(std::string_view name) const {
  if (node_ == nullptr) return false;
  return std::any_of(node_->members.begin(), node_->members.end(), [&](const auto& member) {
    const bool same = match_ == Case::kInsensitive ? ascii_iequals(member.first, name) : member.first == name;
    return same && !member.second.is_null();
  });
}

void Binder::fail(std::string_view name, std::string_view message) {
  const Node* node = nullptr;
  if (node_ != nullptr) {
    for (const auto& [key, value] : node_->members) {
      if (match_ == Case::kInsensitive ? ascii_iequals(key, name) : key == name) node = &value;
    }
  }
  if (node == nullptr) node = node_;
  // What comes from an object within says its own path from here, and its line.
  const bool within =
      !name.empty() && message.starts_with(name) && message.find_first_of(".:[", name.size()) == name.size();
  const size_t last = message.rfind("(line ");
  const bool placed =
      last != std::string_view::npos && (within || message.find(')', last) == message.size() - 1);
  const std::string said = within ? std::string(message) : fmt::format("{}: {}", name, message);
  errors_.push_back(fmt::format("{}{}{}{}", path_, path_.empty() || name.empty() ? "" : ".", said,
                                placed ? std::string() : where(node)));
}

void Binder::type_error(std::string_view name, const Node& node, std::string_view wanted) {
  fail(name, fmt::format("expected {}, got {}", wanted, shown_with_kind(node)));
}

void Binder::describe(std::string_view name, std::string_view type, std::string default_value,
                      std::string_view unit, std::string_view doc) {
  docs_.push_back(ParamDoc{std::string(name), std::string(type), std::move(default_value), std::string(unit),
                           std::string(doc)});
}

void Binder::field(std::string_view name, bool& out, std::string_view unit, std::string_view doc) {
  if (describing_) return describe(name, "bool", out ? "true" : "false", unit, doc);
  const Node* node = take(name);
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kBool) return type_error(name, *node, "bool");
  out = node->boolean;
}

void Binder::field(std::string_view name, int& out, std::string_view unit, std::string_view doc) {
  if (describing_) return describe(name, "int", fmt::format("{}", out), unit, doc);
  int64_t wide = out;
  field(name, wide, unit, doc);
  if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) {
    return fail(name, fmt::format("{} is out of range", wide));
  }
  out = static_cast<int>(wide);
}

void Binder::field(std::string_view name, int64_t& out, std::string_view unit, std::string_view doc) {
  if (describing_) return describe(name, "int", fmt::format("{}", out), unit, doc);
  const Node* node = take(name);
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kInt) return type_error(name, *node, "int");
  out = node->integer;
}

void Binder::field(std::string_view name, double& out, std::string_view unit, std::string_view doc) {
  if (describing_) return describe(name, "number", written(out), unit, doc);
  const Node* node = take(name);
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kInt && node->kind != Node::Kind::kDouble) {
    return type_error(name, *node, "number");
  }
  out = node->number;
}

void Binder::field(std::string_view name, std::string& out, std::string_view unit, std::string_view doc) {
  if (describing_) return describe(name, "string", out, unit, doc);
  const Node* node = take(name);
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kString) return type_error(name, *node, "string");
  out = node->text;
}

void Binder::field(std::string_view name, std::optional<int64_t>& out, std::string_view unit,
                   std::string_view doc) {
  if (describing_) return describe(name, "int", out ? fmt::format("{}", *out) : "", unit, doc);
  const Node* node = take(name);
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kInt) return type_error(name, *node, "int");
  out = node->integer;
}

void Binder::field(std::string_view name, std::optional<double>& out, std::string_view unit,
                   std::string_view doc) {
  if (describing_) return describe(name, "number", out ? written(*out) : "", unit, doc);
  const Node* node = take(name);
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kInt && node->kind != Node::Kind::kDouble) {
    return type_error(name, *node, "number");
  }
  out = node->number;
}

void Binder::field(std::string_view name, std::optional<bool>& out, std::string_view unit,
                   std::string_view doc) {
  if (describing_) return describe(name, "bool", out ? (*out ? "true" : "false") : "", unit, doc);
  const Node* node = take(name);
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kBool) return type_error(name, *node, "bool");
  out = node->boolean;
}

void Binder::field(std::string_view name, std::optional<std::string>& out, std::string_view unit,
                   std::string_view doc) {
  if (describing_) return describe(name, "string", out.value_or(""), unit, doc);
  const Node* node = take(name);
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kString) return type_error(name, *node, "string");
  out = node->text;
}

void Binder::field(std::string_view name, Duration& out, std::string_view unit, std::string_view doc) {
  if (describing_) return describe(name, "duration", format_duration(out), unit, doc);
  const Node* node = take(name);
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kString) return type_error(name, *node, "duration (such as \"200ms\")");
  const Result<Duration> parsed = parse_duration(node->text);
  if (!parsed) return fail(name, parsed.error().message);
  out = *parsed;
}

void Binder::field(std::string_view name, std::vector<std::string>& out, std::string_view unit,
                   std::string_view doc) {
  if (describing_) {
    return describe(name, "list of string", out.empty() ? "" : "[" + joined(out, ", ") + "]", unit, doc);
  }
  const Node* node = take(name);
  if (node == nullptr) return;
  if (!node->is_list()) return type_error(name, *node, "list of string");
  std::vector<std::string> texts;
  for (size_t i = 0; i < node->items.size(); ++i) {
    const Node& item = node->items[i];
    if (item.kind != Node::Kind::kString) {
      return fail(name, fmt::format("[{}]: expected string, got {}", i, shown_with_kind(item)));
    }
    texts.push_back(item.text);
  }
  out = std::move(texts);
}

void Binder::quantity(std::string_view name, int64_t& out, std::string_view unit, std::string_view doc) {
  if (describing_) return describe(name, "quantity", fmt::format("{}", out), unit, doc);
  const Node* node = take(name);
  if (node == nullptr) return;
  const bool number = node->kind == Node::Kind::kInt || node->kind == Node::Kind::kDouble;
  if (!number && node->kind != Node::Kind::kString) {
    return type_error(name, *node, "quantity (such as \"64Mi\")");
  }
  if (node->kind == Node::Kind::kInt) {
    out = node->integer;
    return;
  }
  const Result<int64_t> parsed = parse_quantity(node->text);
  if (!parsed) return fail(name, parsed.error().message);
  out = *parsed;
}

void Binder::node(std::string_view name, const Node*& out, std::string_view doc) {
  if (describing_) return describe(name, "object", "", "", doc);
  out = take(name);
}

Status Binder::finish() {
  if (node_ != nullptr && unknown_ == Unknown::kRefused) {
    for (const auto& [key, value] : node_->members) {
      const bool known = std::any_of(known_.begin(), known_.end(), [&](const std::string& name) {
        return match_ == Case::kInsensitive ? ascii_iequals(name, key) : name == key;
      });
      if (known) continue;
      const std::string line = value.key_line > 0 ? fmt::format(" (line {})", value.key_line) : std::string();
      errors_.push_back(fmt::format("{}unknown field \"{}\"{}{}", path_.empty() ? "" : path_ + ": ", key,
                                    line, known_.empty() ? "" : ", known: " + joined(known_, ", ")));
    }
  }
  if (errors_.empty()) return {};
  return invalid_config(joined(errors_, "; "));
}

}  // namespace penstock::config
