#include "config/node.h"

#include <fmt/format.h>
#include <yaml-cpp/emitterstyle.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <exception>
#include <map>
#include <sstream>

#include "base/strings.h"

namespace penstock::config {

namespace {

constexpr std::string_view kMergeKey = "<<";
constexpr std::string_view kYamlTag = "tag:yaml.org,2002:";

template <size_t N>
bool one_of(std::string_view text, const std::array<std::string_view, N>& words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// YAML 1.1 integers as Kubernetes reads them: decimal, 0x, 0o, 0b and a leading 0 for octal, with "_"
// between digits.
std::optional<int64_t> plain_integer(std::string_view text) {
  std::string digits;
  digits.reserve(text.size());
  for (const char c : text) {
    if (c != '_') digits.push_back(c);
  }
  std::string_view rest = digits;
  bool negative = false;
  if (!rest.empty() && (rest.front() == '-' || rest.front() == '+')) {
    negative = rest.front() == '-';
    rest.remove_prefix(1);
  }
  if (rest.empty() || !is_digit(rest.front())) return std::nullopt;
  int base = 10;
  if (rest.size() > 1 && rest.front() == '0') {
    const char mark = ascii_lower(rest[1]);
    base = mark == 'x' ? 16 : mark == 'b' ? 2 : 8;
    rest.remove_prefix(mark == 'x' || mark == 'b' || mark == 'o' ? 2 : 1);
  }
  uint64_t magnitude = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), magnitude, base);
  if (error != std::errc() || end != rest.data() + rest.size()) return std::nullopt;
  constexpr uint64_t kMax = 9223372036854775807ULL;
  if (magnitude > kMax + (negative ? 1 : 0)) return std::nullopt;
  return negative ? static_cast<int64_t>(0 - magnitude) : static_cast<int64_t>(magnitude);
}

// [-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?
bool looks_like_number(std::string_view text) {
  size_t i = 0;
  const auto digits = [&] {
    const size_t begin = i;
    while (i < text.size() && is_digit(text[i])) ++i;
    return i > begin;
  };
  const auto at = [&](char c) { return i < text.size() && text[i] == c; };
  if (at('-') || at('+')) ++i;
  const bool whole = digits();
  bool part = false;
  if (at('.')) {
    ++i;
    part = digits();
  }
  if (!whole && !part) return false;
  if (at('e') || at('E')) {
    ++i;
    if (at('-') || at('+')) ++i;
    if (!digits()) return false;
  }
  return i == text.size();
}

bool is_special_float(std::string_view text) {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  const std::string lower = ascii_lower(text);
  return lower == ".inf" || lower == ".nan";
}

// Fills kind and value of a scalar whose text is set. False: a number JSON has no form for.
bool resolve_plain(Node& node) {
  static constexpr std::array<std::string_view, 5> kNulls{"", "~", "null", "Null", "NULL"};
  // YAML 1.1's words, without its one-letter ones: "y" and "n" are more often names than truths.
  static constexpr std::array<std::string_view, 9> kTrue{"yes",  "Yes", "YES", "true", "True",
                                                         "TRUE", "on",  "On",  "ON"};
  static constexpr std::array<std::string_view, 9> kFalse{"no",    "No",  "NO",  "false", "False",
                                                          "FALSE", "off", "Off", "OFF"};
  if (one_of(node.text, kNulls)) {
    node.kind = Node::Kind::kNull;
  } else if (one_of(node.text, kTrue) || one_of(node.text, kFalse)) {
    node.kind = Node::Kind::kBool;
    node.boolean = one_of(node.text, kTrue);
  } else if (const auto whole = plain_integer(node.text)) {
    node.kind = Node::Kind::kInt;
    node.integer = *whole;
    node.number = static_cast<double>(*whole);
  } else if (is_special_float(node.text)) {
    return false;
  } else if (looks_like_number(node.text)) {
    std::string_view digits = node.text;
    if (digits.front() == '+') digits.remove_prefix(1);
    const auto number = parse_double(digits);
    if (!number || !std::isfinite(*number)) return false;
    node.kind = Node::Kind::kDouble;
    node.number = *number;
  } else {
    node.kind = Node::Kind::kString;
  }
  return true;
}

struct Refusal {
  int line;
  int column;
  std::string message;
};

size_t count_nodes(const Node& node) {
  size_t total = 1;
  for (const Node& item : node.items) total += count_nodes(item);
  for (const auto& [key, value] : node.members) total += count_nodes(value);
  return total;
}

int depth_of(const Node& node) {
  int deepest = 0;
  for (const Node& item : node.items) deepest = std::max(deepest, depth_of(item));
  for (const auto& [key, value] : node.members) deepest = std::max(deepest, depth_of(value));
  return deepest + 1;
}

// Builds the tree from yaml-cpp's events. Throws Refusal, caught in parse_stream below: yaml-cpp has no
// other way to stop a parse.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const ParseLimits& limits) : limits_(limits) {}

  bool has_root() const { return has_root_; }
  Node take_root() {
    has_root_ = false;
    anchors_.clear();
    return std::move(root_);
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(make(mark), anchor, mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) refuse(mark, "an alias inside its own anchor");
    check_budget(count_nodes(found->second), mark);
    if (static_cast<int>(open_.size()) + depth_of(found->second) > limits_.max_depth) too_deep(mark);
    place(found->second, mark);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Node node = make(mark);
    node.text = value;
    node.kind = Node::Kind::kString;
    const bool core = tag.starts_with(kYamlTag);
    const std::string_view type = core ? std::string_view(tag).substr(kYamlTag.size()) : std::string_view();
    if (tag.empty() || tag == "?" || (core && type != "str")) {
      if (core && type != "int" && type != "float" && type != "bool" && type != "null") {
        refuse(mark, fmt::format("unsupported tag \"{}\"", tag));
      }
      if (!resolve_plain(node)) refuse(mark, fmt::format("\"{}\" is not a number JSON can hold", value));
    } else if (tag != "!" && !core) {
      refuse(mark, fmt::format("unsupported tag \"{}\"", tag));
    }
    add(std::move(node), anchor, mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Node::Kind::kList, mark, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Node::Kind::kMap, mark, anchor);
  }
  void OnMapEnd() override {
    merge(open_.back());
    close();
  }

 private:
  struct Open {
    Node node;
    YAML::anchor_t anchor = 0;
    YAML::Mark mark;
    bool has_key = false;
    std::string key;
    YAML::Mark key_mark;
    std::map<std::string, int, std::less<>> lines;  // of the keys so far
    std::vector<Node> merged;
  };

  [[noreturn]] static void refuse(const YAML::Mark& mark, std::string message) {
    throw Refusal{mark.line + 1, mark.column + 1, std::move(message)};
  }
  [[noreturn]] void too_deep(const YAML::Mark& mark) const {
    refuse(mark, fmt::format("nested more than {} levels deep", limits_.max_depth));
  }
  static Node make(const YAML::Mark& mark) {
    Node node;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }
  void check_budget(size_t nodes, const YAML::Mark& mark) {
    nodes_ += nodes;
    if (nodes_ > limits_.max_nodes) refuse(mark, fmt::format("more than {} values", limits_.max_nodes));
  }
  void open(Node::Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    check_budget(1, mark);
    if (static_cast<int>(open_.size()) >= limits_.max_depth) too_deep(mark);
    Open entry;
    entry.node = make(mark);
    entry.node.kind = kind;
    entry.anchor = anchor;
    entry.mark = mark;
    if (!open_.empty() && open_.back().node.is_map() && !open_.back().has_key) {
      refuse(mark, "a list or map cannot be a key; is a bracket left open?");
    }
    open_.push_back(std::move(entry));
  }
  void close() {
    Open entry = std::move(open_.back());
    open_.pop_back();
    if (entry.anchor != 0) anchors_[entry.anchor] = entry.node;
    place(std::move(entry.node), entry.mark);
  }
  void add(Node node, YAML::anchor_t anchor, const YAML::Mark& mark) {
    check_budget(1, mark);
    if (anchor != 0) anchors_[anchor] = node;
    place(std::move(node), mark);
  }
  void place(Node node, const YAML::Mark& mark) {
    if (open_.empty()) {
      root_ = std::move(node);
      has_root_ = true;
      return;
    }
    Open& parent = open_.back();
    if (parent.node.is_list()) {
      parent.node.items.push_back(std::move(node));
    } else if (!parent.has_key) {
      set_key(parent, node, mark);
    } else {
      parent.has_key = false;
      if (parent.key == kMergeKey) {
        collect_merge(parent, std::move(node), mark);
      } else {
        node.key_line = parent.key_mark.line + 1;
        parent.node.members.emplace_back(std::move(parent.key), std::move(node));
      }
    }
  }
  static void set_key(Open& parent, const Node& node, const YAML::Mark& mark) {
    if (node.is_null()) refuse(mark, "a key must not be null");
    if (node.is_map() || node.is_list()) refuse(mark, "a list or map cannot be a key");
    const auto [known, fresh] = parent.lines.emplace(node.text, mark.line + 1);
    if (!fresh) {
      refuse(mark, fmt::format("key \"{}\" already set at line {}", node.text, known->second));
    }
    parent.key = node.text;
    parent.key_mark = mark;
    parent.has_key = true;
  }
  static void collect_merge(Open& parent, Node node, const YAML::Mark& mark) {
    if (node.is_map()) {
      parent.merged.push_back(std::move(node));
    } else if (node.is_list()) {
      for (Node& item : node.items) {
        if (!item.is_map()) refuse(mark, "\"<<\" merges maps only");
        parent.merged.push_back(std::move(item));
      }
    } else {
      refuse(mark, "\"<<\" merges maps only");
    }
  }
  // YAML 1.1 merge keys: what the map sets itself wins, then the first of the merged maps.
  static void merge(Open& entry) {
    for (Node& source : entry.merged) {
      for (auto& [key, value] : source.members) {
        if (entry.lines.emplace(key, value.line).second) {
          entry.node.members.emplace_back(key, std::move(value));
        }
      }
    }
  }

  const ParseLimits& limits_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, Node> anchors_;
  size_t nodes_ = 0;
  Node root_;
  bool has_root_ = false;
};

Error at(std::string_view source, int line, int column, std::string_view message) {
  return invalid_config(fmt::format("{}: line {}, column {}: {}", source, line, column, message));
}

// YAML forbids control characters, and yaml-cpp takes byte 4 for the end of its input.
std::optional<Error> refuse_control_bytes(std::string_view text, std::string_view source) {
  int line = 1;
  size_t line_start = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n') {
      ++line;
      line_start = i + 1;
    } else if (byte == 0x7F || (byte < 0x20 && byte != '\t' && byte != '\r')) {
      return at(source, line, static_cast<int>(i - line_start) + 1,
                fmt::format("control character 0x{:02x}", byte));
    }
  }
  return std::nullopt;
}

// Whether line `number`, counted from 0, has a tab before its first other character.
bool indented_with_tab(std::string_view text, int number) {
  const std::vector<std::string_view> lines = split(text, '\n');
  if (number < 0 || static_cast<size_t>(number) >= lines.size()) return false;
  const std::string_view line = lines[static_cast<size_t>(number)];
  const size_t first = line.find_first_not_of(' ');
  return first != std::string_view::npos && line[first] == '\t';
}

Result<std::vector<Node>> parse_stream(std::string_view text, std::string_view source,
                                       const ParseLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return invalid_config(
        fmt::format("{}: {} bytes, more than the {} allowed", source, text.size(), limits.max_bytes));
  }
  if (auto refused = refuse_control_bytes(text, source)) return *std::move(refused);
  std::vector<Node> documents;
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder builder(limits);
    Node last;
    while (parser.HandleNextDocument(builder)) {
      if (!builder.has_root()) continue;
      Node root = builder.take_root();
      // At text that can begin nothing ("," on a line of its own) yaml-cpp reports empty documents for ever.
      if (root.is_null() && root.line == last.line && root.column == last.column) {
        return at(source, root.line, root.column, "unexpected text");
      }
      last.line = root.line;
      last.column = root.column;
      if (!root.is_null()) documents.push_back(std::move(root));
    }
  } catch (const Refusal& refusal) {
    return at(source, refusal.line, refusal.column, refusal.message);
  } catch (const YAML::Exception& error) {
    return at(source, error.mark.line + 1, error.mark.column + 1,
              error.msg + (indented_with_tab(text, error.mark.line) ? "; YAML is indented with blanks, this "
                                                                      "line begins with a tab"
                                                                    : ""));
  } catch (const std::exception& error) {
    return invalid_config(fmt::format("{}: {}", source, error.what()));
  }
  return documents;
}

void append_json(std::string& out, const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      out.append("null");
      return;
    case Node::Kind::kBool:
      out.append(node.boolean ? "true" : "false");
      return;
    case Node::Kind::kInt:
      out.append(fmt::format("{}", node.integer));
      return;
    case Node::Kind::kDouble:
      out.append(fmt::format("{}", node.number));
      return;
    case Node::Kind::kString:
      append_json_quoted(out, node.text);
      return;
    case Node::Kind::kList:
      out.push_back('[');
      for (const Node& item : node.items) {
        if (&item != &node.items.front()) out.push_back(',');
        append_json(out, item);
      }
      out.push_back(']');
      return;
    case Node::Kind::kMap: {
      std::vector<const Node::Member*> sorted;
      sorted.reserve(node.members.size());
      for (const auto& member : node.members) sorted.push_back(&member);
      std::sort(sorted.begin(), sorted.end(),
                [](const auto* a, const auto* b) { return a->first < b->first; });
      out.push_back('{');
      for (const auto* member : sorted) {
        if (member != sorted.front()) out.push_back(',');
        append_json_quoted(out, member->first);
        out.push_back(':');
        append_json(out, member->second);
      }
      out.push_back('}');
      return;
    }
  }
}

}  // namespace

const Node* Node::find(std::string_view name) const {
  for (const auto& [key, value] : members) {
    if (key == name) return &value;
  }
  return nullptr;
}

bool same_value(const Node& a, const Node& b) {
  const auto same_member = [](const Node::Member& x, const Node::Member& y) {
    return x.first == y.first && same_value(x.second, y.second);
  };
  return a.kind == b.kind && a.text == b.text && a.boolean == b.boolean &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), same_value) &&
         std::equal(a.members.begin(), a.members.end(), b.members.begin(), b.members.end(), same_member);
}

size_t memory_bytes(const Node& node) {
  const auto heap = [](const std::string& text) {
    return text.capacity() > std::string().capacity() ? text.capacity() + 1 : 0;
  };
  size_t bytes = sizeof(Node) + heap(node.text);
  for (const Node& item : node.items) bytes += memory_bytes(item);
  for (const Node::Member& member : node.members)
    bytes += sizeof(std::string) + heap(member.first) + memory_bytes(member.second);
  return bytes;
}

std::string Node::to_json() const {
  std::string out;
  append_json(out, *this);
  return out;
}

std::string_view Node::kind_name(Kind kind) {
  static constexpr std::array<std::string_view, 7> kNames{"null",   "bool", "int",   "number",
                                                          "string", "list", "object"};
  return kNames[static_cast<size_t>(kind)];
}

Result<Node> parse_document(std::string_view text, std::string_view source, const ParseLimits& limits) {
  Result<std::vector<Node>> documents = parse_stream(text, source, limits);
  if (!documents) return std::move(documents).error();
  if (documents->empty()) return Node{};
  if (documents->size() > 1) {
    const Node& second = (*documents)[1];
    return at(source, second.line, second.column, "one document expected, a second one begins here");
  }
  return std::move(documents->front());
}

Result<std::vector<Node>> parse_documents(std::string_view text, std::string_view source,
                                          const ParseLimits& limits) {
  return parse_stream(text, source, limits);
}

}  // namespace penstock::config
