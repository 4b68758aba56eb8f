#include "scheduling/filters/label_selector_filter.h"

#include <algorithm>
#include <optional>

namespace penstock::scheduling {

namespace {

constexpr size_t kMaxName = 63;
constexpr size_t kMaxPrefix = 253;

bool is_alnum(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Letters, digits, '-', '_' and '.', beginning and ending with a letter or digit, at most 63 bytes.
bool is_name(std::string_view text) {
  if (text.empty() || text.size() > kMaxName || !is_alnum(text.front()) || !is_alnum(text.back()))
    return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return is_alnum(c) || c == '-' || c == '_' || c == '.'; });
}

// DNS subdomain: lower-case labels between dots.
bool is_subdomain(std::string_view text) {
  if (text.empty() || text.size() > kMaxPrefix) return false;
  for (const std::string_view part : split(text, '.')) {
    if (part.empty() || part.front() == '-' || part.back() == '-') return false;
    for (const char c : part) {
      if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-')) return false;
    }
  }
  return true;
}

bool is_label_key(std::string_view key) {
  const size_t slash = key.find('/');
  if (slash == std::string_view::npos) return is_name(key);
  return is_subdomain(key.substr(0, slash)) && is_name(key.substr(slash + 1));
}

bool is_label_value(std::string_view value) {
  return value.empty() || is_name(value);
}

std::optional<LabelRequirement::Operator> parse_operator(std::string_view text) {
  if (text == "In") return LabelRequirement::Operator::kIn;
  if (text == "NotIn") return LabelRequirement::Operator::kNotIn;
  if (text == "Exists") return LabelRequirement::Operator::kExists;
  if (text == "DoesNotExist") return LabelRequirement::Operator::kDoesNotExist;
  return std::nullopt;
}

void add(config::Binder& b, std::string_view field, LabelRequirement requirement,
         LabelSelectorFilter::Params& p) {
  if (!is_label_key(requirement.key)) b.fail(field, "\"" + requirement.key + "\" is not a label key");
  for (const std::string& value : requirement.values) {
    if (!is_label_value(value)) b.fail(field, "\"" + value + "\" is not a label value");
  }
  p.requirements.push_back(std::move(requirement));
}

void read_labels(config::Binder& b, const config::Node& labels, LabelSelectorFilter::Params& p) {
  if (!labels.is_map()) {
    b.fail("matchLabels", "must be an object of strings");
    return;
  }
  for (const auto& [key, value] : labels.members) {
    if (value.kind != config::Node::Kind::kString) {
      b.fail("matchLabels", "the value of \"" + key + "\" must be a string");
      continue;
    }
    add(b, "matchLabels", {key, LabelRequirement::Operator::kIn, {value.text}}, p);
  }
}

// One {key, operator, values} object.
void read_expression(config::Binder& b, const config::Node& node, LabelSelectorFilter::Params& p) {
  constexpr std::string_view kField = "matchExpressions";
  std::string op;
  LabelRequirement requirement;
  const Status status = config::decode_params(&node, "matchExpressions[]", [&](config::Binder& e) {
    e.field("key", requirement.key, "", "");
    e.field("operator", op, "", "");
    e.field("values", requirement.values, "", "");
  });
  if (!node.is_map() || !status.ok()) {
    b.fail(kField, status.ok() ? "must be a list of objects" : status.error().message);
    return;
  }
  const auto parsed = parse_operator(op);
  if (!parsed.has_value()) {
    b.fail(kField, "\"" + op + "\" is not a valid label selector operator");
    return;
  }
  requirement.op = *parsed;
  const bool wants_values =
      *parsed == LabelRequirement::Operator::kIn || *parsed == LabelRequirement::Operator::kNotIn;
  if (wants_values == requirement.values.empty()) {
    b.fail(kField, wants_values ? "values must be non-empty for In and NotIn"
                                : "values must be empty for Exists and DoesNotExist");
    return;
  }
  add(b, kField, std::move(requirement), p);
}

}  // namespace

bool LabelRequirement::holds(const Endpoint& endpoint) const {
  const auto it = endpoint.labels.find(key);
  const bool present = it != endpoint.labels.end();
  const bool listed = present && std::find(values.begin(), values.end(), it->second) != values.end();
  switch (op) {
    case Operator::kIn:
      return listed;
    case Operator::kNotIn:
      return !listed;
    case Operator::kExists:
      return present;
    case Operator::kDoesNotExist:
      return !present;
  }
  return false;
}

void LabelSelectorFilter::bind(config::Binder& b, Params& p) {
  const config::Node* labels = nullptr;
  const config::Node* expressions = nullptr;
  b.node("matchLabels", labels, "Label values that must all be there, as an object of strings.");
  b.node("matchExpressions", expressions,
         "List of requirements {key, operator, values}; operator is In, NotIn, Exists or DoesNotExist.");
  if (b.describing()) return;
  if (labels != nullptr && !labels->is_null()) read_labels(b, *labels, p);
  if (expressions == nullptr || expressions->is_null()) return;
  if (!expressions->is_list()) {
    b.fail("matchExpressions", "must be a list of objects");
    return;
  }
  for (const config::Node& node : expressions->items) read_expression(b, node, p);
}

size_t LabelSelectorFilter::filter(SchedulingContext& ctx, std::span<Candidate> inout) const {
  const auto kept = std::remove_if(inout.begin(), inout.end(), [&](Candidate c) {
    const Endpoint& endpoint = *ctx.pool.endpoints[c];
    return !std::all_of(requirements_.begin(), requirements_.end(),
                        [&](const LabelRequirement& r) { return r.holds(endpoint); });
  });
  return static_cast<size_t>(kept - inout.begin());
}

}  // namespace penstock::scheduling
