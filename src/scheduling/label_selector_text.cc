#include "scheduling/label_selector_text.h"

#include <algorithm>

#include "base/strings.h"

namespace penstock::scheduling {

namespace {

using Operator = LabelRequirement::Operator;

// Requirements are separated by commas outside of parentheses.
std::vector<std::string_view> split_requirements(std::string_view text) {
  std::vector<std::string_view> out;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '(') ++depth;
    if (i < text.size() && text[i] == ')') --depth;
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    out.push_back(trim(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  return out;
}

bool is_key(std::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '/';
  });
}

Error bad(std::string_view requirement) {
  return Error{ErrorCode::kInvalidConfig,
               "\"" + std::string(requirement) + "\" is not a label selector requirement"};
}

Result<LabelRequirement> parse_requirement(std::string_view text) {
  LabelRequirement out;
  if (text.starts_with('!')) {
    out.key = std::string(trim(text.substr(1)));
    out.op = Operator::kDoesNotExist;
  } else if (const size_t open = text.find('('); open != std::string_view::npos) {
    if (!text.ends_with(')')) return bad(text);
    const std::string_view head = trim(text.substr(0, open));
    const size_t blank = head.find_last_of(" \t");
    if (blank == std::string_view::npos) return bad(text);
    const std::string_view word = head.substr(blank + 1);
    if (word != "in" && word != "notin") return bad(text);
    out.op = word == "in" ? Operator::kIn : Operator::kNotIn;
    out.key = std::string(trim(head.substr(0, blank)));
    for (const std::string_view value : split(text.substr(open + 1, text.size() - open - 2), ','))
      out.values.emplace_back(trim(value));
  } else if (const size_t equals = text.find('='); equals != std::string_view::npos) {
    const bool negated = equals > 0 && text[equals - 1] == '!';
    out.op = negated ? Operator::kNotIn : Operator::kIn;
    out.key = std::string(trim(text.substr(0, negated ? equals - 1 : equals)));
    std::string_view value = text.substr(equals + 1);
    if (!negated && value.starts_with('=')) value.remove_prefix(1);
    out.values.emplace_back(trim(value));
    if (out.values[0].find('=') != std::string::npos) return bad(text);
  } else {
    out.key = std::string(text);
    out.op = Operator::kExists;
  }
  if (!is_key(out.key)) return bad(text);
  return out;
}

}  // namespace

Result<std::vector<LabelRequirement>> parse_label_selector(std::string_view text) {
  std::vector<LabelRequirement> out;
  if (trim(text).empty()) return out;
  for (const std::string_view part : split_requirements(text)) {
    Result<LabelRequirement> requirement = parse_requirement(part);
    if (!requirement.ok()) return std::move(requirement).error();
    out.push_back(std::move(requirement).value());
  }
  return out;
}

}  // namespace penstock::scheduling
