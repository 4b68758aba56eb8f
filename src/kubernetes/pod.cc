#include "kubernetes/pod.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/strings.h"
#include "io/net.h"

namespace penstock::kubernetes {

namespace {

constexpr std::string_view kActivePorts = "llm-d.ai/active-ports";
constexpr std::string_view kLegacyActivePorts = "inference.networking.k8s.io/active-ports";

// The number an item begins with, as C's %d reads it.
std::optional<int64_t> leading_number(std::string_view text) {
  text = trim(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  if (digits == 0 || digits > 9) return std::nullopt;
  const auto value = static_cast<int64_t>(*parse_u64(text.substr(0, digits)));
  return negative ? -value : value;
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
         c == '.';
}
bool is_alphanumeric(char c) {
  return is_name_character(c) && c != '-' && c != '_' && c != '.';
}

bool is_label_value(std::string_view text) {
  if (text.empty()) return true;
  return text.size() <= 63 && is_alphanumeric(text.front()) && is_alphanumeric(text.back()) &&
         std::all_of(text.begin(), text.end(), is_name_character);
}

bool is_label_key(std::string_view text) {
  const size_t slash = text.find('/');
  const std::string_view name = slash == std::string_view::npos ? text : text.substr(slash + 1);
  if (name.empty() || !is_label_value(name)) return false;
  if (slash == std::string_view::npos) return true;
  const std::string_view prefix = text.substr(0, slash);
  return !prefix.empty() && prefix.size() <= 253 && std::all_of(prefix.begin(), prefix.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  });
}

// Requirements between commas that are in no parentheses.
std::vector<std::string_view> requirements(std::string_view text) {
  std::vector<std::string_view> out;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(') ++depth;
    if (text[i] == ')') --depth;
    if (text[i] != ',' || depth != 0) continue;
    out.push_back(trim(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  out.push_back(trim(text.substr(begin)));
  return out;
}

bool is_set_requirement(std::string_view text) {
  const size_t open = text.find('(');
  if (open == std::string_view::npos || !text.ends_with(')')) return false;
  std::string_view head = trim(text.substr(0, open));
  const size_t blank = head.find_first_of(" \t");
  if (blank == std::string_view::npos) return false;
  const std::string_view operation = trim(head.substr(blank));
  if (operation != "in" && operation != "notin") return false;
  if (!is_label_key(head.substr(0, blank))) return false;
  const std::string_view values = text.substr(open + 1, text.size() - open - 2);
  for (const std::string_view value : split(values, ',')) {
    if (!is_label_value(trim(value))) return false;
  }
  return true;
}

bool is_requirement(std::string_view text) {
  if (text.find('(') != std::string_view::npos) return is_set_requirement(text);
  if (text.starts_with('!')) return is_label_key(trim(text.substr(1)));
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return is_label_key(text);
  std::string_view key = text.substr(0, equals);
  std::string_view value = text.substr(equals + 1);
  if (key.ends_with('!')) {
    key.remove_suffix(1);
  } else if (value.starts_with('=')) {
    value.remove_prefix(1);
  }
  return is_label_key(trim(key)) && is_label_value(trim(value));
}

}  // namespace

void PackedLabels::add(std::string_view key, std::string_view value) {
  // NUL is in no label; what has one anyway would be read as two.
  if (key.find('\0') != std::string_view::npos || value.find('\0') != std::string_view::npos) return;
  text_.append(key).push_back('\0');
  text_.append(value).push_back('\0');
}

std::optional<std::string_view> PackedLabels::find(std::string_view key) const {
  std::optional<std::string_view> out;
  for_each([&](std::string_view k, std::string_view v) {
    if (k == key) out = v;
  });
  return out;
}

Result<PodRecord> decode_pod(Json object) {
  const Json metadata = object["metadata"];
  const Json status = object["status"];
  if (!metadata.is_object() || metadata["name"].text().empty())
    return Error{ErrorCode::kBadGateway, "a pod has no name"};
  PodRecord pod;
  pod.ip = status["podIP"].text();
  if (!pod.ip.empty() && !io::SocketAddress::from_ip(pod.ip, 1)) {
    return Error{ErrorCode::kBadGateway, fmt::format("podIP \"{}\" is no IP address", pod.ip)};
  }
  pod.terminating = metadata["deletionTimestamp"].present();
  bool decided = false;
  status["conditions"].for_each_item([&](Json condition) {
    if (decided || condition["type"].text() != "Ready") return;
    decided = true;
    pod.ready = condition["status"].text() == "True";
  });
  metadata["labels"].for_each_member(
      [&](std::string_view key, Json value) { pod.labels.add(key, value.text()); });
  const Json annotations = metadata["annotations"];
  for (const std::string_view name : {kActivePorts, kLegacyActivePorts}) {
    const Json value = annotations[name];
    if (!value.present()) continue;
    pod.active_ports = std::string(value.text());
    break;
  }
  return pod;
}

std::vector<size_t> active_ranks(const PodRecord& pod, std::span<const uint16_t> ports) {
  std::vector<size_t> out;
  std::vector<bool> active(ports.size(), !pod.active_ports.has_value());
  if (pod.active_ports) {
    for (const std::string_view item : split(*pod.active_ports, ',')) {
      const auto number = leading_number(item);
      if (!number) continue;
      const auto it = std::find(ports.begin(), ports.end(), *number);
      if (it != ports.end()) active[static_cast<size_t>(it - ports.begin())] = true;
    }
  }
  for (size_t i = 0; i < active.size(); ++i) {
    if (active[i]) out.push_back(i);
  }
  return out;
}

Status check_label_selector(std::string_view text) {
  for (const std::string_view requirement : requirements(text)) {
    if (!is_requirement(requirement))
      return invalid_config(
          fmt::format("label selector \"{}\": \"{}\" is no requirement", text, requirement));
  }
  return {};
}

std::string selector_text(const config::LabelMap& labels) {
  std::string out;
  for (const auto& [key, value] : labels) {
    out += fmt::format("{}{}={}", out.empty() ? "" : ",", key, value);
  }
  return out;
}

}  // namespace penstock::kubernetes
