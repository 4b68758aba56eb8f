#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace penstock::config {

// One value of a parsed YAML or JSON document, with where it stood. Maps keep their order. A document
// tree is small (configuration), immutable after parsing and owned by value.
struct Node {
  enum class Kind : uint8_t { kNull, kBool, kInt, kDouble, kString, kList, kMap };

  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;      // kInt
  double number = 0;        // kInt and kDouble
  std::string text;         // the scalar as written (kString: its value)
  std::vector<Node> items;  // kList
  struct Member;
  std::vector<Member> members;  // kMap; duplicate keys are refused by the parser
  int line = 0;                 // 1-based; 0: not from a document
  int key_line = 0;             // of a map's member: where its key stands
  int column = 0;

  bool is_null() const { return kind == Kind::kNull; }
  bool is_map() const { return kind == Kind::kMap; }
  bool is_list() const { return kind == Kind::kList; }
  // The member of this name, case-sensitive, or nullptr.
  const Node* find(std::string_view name) const;
  // Compact JSON with keys in ascending order: how effective configurations print parameters.
  std::string to_json() const;
  static std::string_view kind_name(Kind kind);
};
// One entry of a map. A struct of its own: clang can't complete a pair that contains the type it is in.
struct Node::Member {
  std::string first;
  Node second;
};

// Whether two values say the same, wherever they stood. Order of a map's members counts.
bool same_value(const Node& a, const Node& b);
// About what a value takes in memory, itself included.
size_t memory_bytes(const Node& node);

// Parses one YAML or JSON document. Errors name line and column: syntax, duplicate keys, aliases that
// expand beyond `max_nodes`, text beyond `max_bytes`. `source` is the file name or flag used in messages.
struct ParseLimits {
  size_t max_bytes = 4 << 20;
  size_t max_nodes = 200000;
  int max_depth = 64;
};
Result<Node> parse_document(std::string_view text, std::string_view source, const ParseLimits& limits = {});
// The same for a stream of documents separated by "---"; empty documents are left out.
Result<std::vector<Node>> parse_documents(std::string_view text, std::string_view source,
                                          const ParseLimits& limits = {});

}  // namespace penstock::config
