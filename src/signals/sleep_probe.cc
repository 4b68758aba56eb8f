#include "signals/sleep_probe.h"

#include <cstddef>

#include "config/node.h"

namespace penstock::signals {

std::optional<bool> parse_sleep_answer(std::string_view body) {
  if (body.size() > kMaxSleepAnswer || !body.starts_with('{')) return std::nullopt;
  const auto document = config::parse_document(body, "is_sleeping");
  if (!document.ok() || !document->is_map()) return std::nullopt;
  const config::Node* member = document->find("is_sleeping");
  if (member == nullptr || member->kind != config::Node::Kind::kBool) return std::nullopt;
  return member->boolean;
}

}  // namespace penstock::signals
