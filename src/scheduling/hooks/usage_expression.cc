#include "scheduling/hooks/usage_expression.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "base/strings.h"

namespace penstock::scheduling {

namespace {

using Value = UsageExpression::Value;

enum class Op : uint8_t {
  kLiteral,
  kUsage,  // the variable itself
  kField,  // text of the first child
  kHas,    // whether the field of the first child is there
  kDouble,
  kInt,
  kNot,
  kNegate,
  kMultiply,
  kDivide,
  kRemainder,
  kAdd,
  kSubtract,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kEqual,
  kNotEqual,
  kAnd,
  kOr,
  kChoose,
};

Error evaluation_error(std::string message) {
  return Error{ErrorCode::kInvalidConfig, std::move(message)};
}

}  // namespace

struct UsageExpression::Node {
  Op op = Op::kLiteral;
  Value literal;
  std::string text;
  std::vector<std::unique_ptr<Node>> children;
  int height = 1;  // of the tree below, itself counted
};

namespace {

using Node = UsageExpression::Node;
using NodePtr = std::unique_ptr<Node>;

NodePtr make_node(Op op, NodePtr a = nullptr, NodePtr b = nullptr, NodePtr c = nullptr) {
  auto out = std::make_unique<Node>();
  out->op = op;
  for (NodePtr* child : {&a, &b, &c}) {
    if (*child == nullptr) continue;
    out->height = std::max(out->height, (*child)->height + 1);
    out->children.push_back(std::move(*child));
  }
  return out;
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

struct BinaryOp {
  std::string_view text;
  Op op;
};
// By rising precedence; of one level the longer texts first.
constexpr std::array<BinaryOp, 1> kOrs{{{"||", Op::kOr}}};
constexpr std::array<BinaryOp, 1> kAnds{{{"&&", Op::kAnd}}};
constexpr std::array<BinaryOp, 6> kRelations{{{"<=", Op::kLessEqual},
                                              {">=", Op::kGreaterEqual},
                                              {"==", Op::kEqual},
                                              {"!=", Op::kNotEqual},
                                              {"<", Op::kLess},
                                              {">", Op::kGreater}}};
constexpr std::array<BinaryOp, 2> kSums{{{"+", Op::kAdd}, {"-", Op::kSubtract}}};
constexpr std::array<BinaryOp, 3> kProducts{
    {{"*", Op::kMultiply}, {"/", Op::kDivide}, {"%", Op::kRemainder}}};
constexpr std::array<std::span<const BinaryOp>, 5> kLevels{kOrs, kAnds, kRelations, kSums, kProducts};

// Recursive descent. The first error wins; after it every step returns nullptr.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  NodePtr run() {
    NodePtr out = choose();
    skip_blanks();
    if (out != nullptr && at_ != text_.size()) return fail("unexpected text");
    return out;
  }
  const std::string& error() const { return error_; }

 private:
  NodePtr fail(std::string_view what) {
    if (error_.empty()) error_ = std::string(what) + " at byte " + std::to_string(at_);
    return nullptr;
  }
  void skip_blanks() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  bool take(std::string_view token) {
    skip_blanks();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  NodePtr choose() {
    if (++depth_ > UsageExpression::kMaxDepth) return fail("nested too deeply");
    NodePtr condition = binary(0);
    if (condition != nullptr && take("?")) {
      NodePtr yes = choose();
      if (yes == nullptr) return nullptr;
      if (!take(":")) return fail("':' expected");
      NodePtr no = choose();
      if (no == nullptr) return nullptr;
      condition = make_node(Op::kChoose, std::move(condition), std::move(yes), std::move(no));
    }
    --depth_;
    return condition;
  }

  NodePtr binary(size_t level) {
    if (level == kLevels.size()) return unary();
    NodePtr left = binary(level + 1);
    while (left != nullptr) {
      const BinaryOp* found = nullptr;
      for (const BinaryOp& op : kLevels[level]) {
        if (take(op.text)) {
          found = &op;
          break;
        }
      }
      if (found == nullptr) break;
      NodePtr right = binary(level + 1);
      if (right == nullptr) return nullptr;
      left = make_node(found->op, std::move(left), std::move(right));
      if (left->height > UsageExpression::kMaxHeight) return fail("too many operations");
    }
    return left;
  }

  NodePtr unary() {
    if (++depth_ > UsageExpression::kMaxDepth) return fail("nested too deeply");
    NodePtr out;
    if (take("!")) {
      out = unary();
      if (out != nullptr) out = make_node(Op::kNot, std::move(out));
    } else if (take("-")) {
      out = unary();
      if (out != nullptr) out = make_node(Op::kNegate, std::move(out));
    } else {
      out = member();
    }
    --depth_;
    return out;
  }

  NodePtr member() {
    NodePtr out = primary();
    while (out != nullptr) {
      std::string name;
      if (take(".")) {
        skip_blanks();
        name = word();
        if (name.empty()) return fail("a field's name expected");
      } else if (take("[")) {
        skip_blanks();
        if (!string_literal(name)) return fail("a field's name in quotes expected");
        if (!take("]")) return fail("']' expected");
      } else {
        break;
      }
      out = make_node(Op::kField, std::move(out));
      out->text = std::move(name);
      if (out->height > UsageExpression::kMaxHeight) return fail("too many fields");
    }
    return out;
  }

  NodePtr primary() {
    skip_blanks();
    if (at_ == text_.size()) return fail("the expression ends too early");
    if (take("(")) {
      NodePtr out = choose();
      if (out != nullptr && !take(")")) return fail("')' expected");
      return out;
    }
    const char c = text_[at_];
    if (c == '"' || c == '\'') {
      auto out = std::make_unique<Node>();
      std::string value;
      if (!string_literal(value)) return fail("the text has no end");
      out->literal = std::move(value);
      return out;
    }
    if (is_digit(c) || c == '.') return number();
    const std::string name = word();
    if (name.empty()) return fail("unexpected character");
    return named(name);
  }

  NodePtr named(const std::string& name) {
    auto literal = std::make_unique<Node>();
    if (name == "true" || name == "false") {
      literal->literal = name == "true";
      return literal;
    }
    if (name == "null") return literal;
    if (name == "usage") return make_node(Op::kUsage);
    const Op call = name == "has" ? Op::kHas : name == "double" ? Op::kDouble : Op::kInt;
    if (name != "has" && name != "double" && name != "int")
      return fail("undeclared reference to '" + name + "'");
    if (!take("(")) return fail("'(' expected after " + name);
    NodePtr argument = choose();
    if (argument == nullptr) return nullptr;
    if (!take(")")) return fail("')' expected");
    if (call == Op::kHas && argument->op != Op::kField) return fail("has() takes a field");
    return make_node(call, std::move(argument));
  }

  NodePtr number() {
    const size_t begin = at_;
    bool is_double = false;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      const bool exponent_sign = (c == '+' || c == '-') && (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E');
      if (c == '.' || c == 'e' || c == 'E') is_double = true;
      if (!is_digit(c) && c != '.' && c != 'e' && c != 'E' && !(is_double && at_ > begin && exponent_sign))
        break;
      ++at_;
    }
    const std::string_view text = text_.substr(begin, at_ - begin);
    auto out = std::make_unique<Node>();
    if (is_double) {
      const auto value = parse_double(text);
      if (!value) return fail("not a number");
      out->literal = *value;
    } else {
      const auto value = parse_i64(text);
      if (!value) return fail("not a number");
      out->literal = *value;
    }
    return out;
  }

  std::string word() {
    const size_t begin = at_;
    if (at_ < text_.size() && is_digit(text_[at_])) return {};
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  // Without escapes but for the backslash before any character.
  bool string_literal(std::string& out) {
    if (at_ == text_.size() || (text_[at_] != '"' && text_[at_] != '\'')) return false;
    const char quote = text_[at_++];
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) ++at_;
      out += text_[at_++];
    }
    if (at_ == text_.size()) return false;
    ++at_;
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  std::string error_;
};

// --- evaluation ---------------------------------------------------------------------------------------

// What `usage`, or a path into it, stands for.
enum class Place : uint8_t { kRoot, kDetails, kNumber, kMissing };

struct Found {
  Place place = Place::kMissing;
  double number = 0;
};

Found find_field(const Node& node, const UsageValues& usage) {
  if (node.op == Op::kUsage) return {Place::kRoot, 0};
  if (node.op != Op::kField) return {};
  const Found parent = find_field(*node.children[0], usage);
  if (parent.place == Place::kRoot) {
    if (node.text == "prompt_tokens") return {Place::kNumber, static_cast<double>(usage.prompt_tokens)};
    if (node.text == "completion_tokens")
      return {Place::kNumber, static_cast<double>(usage.completion_tokens)};
    if (node.text == "total_tokens") return {Place::kNumber, static_cast<double>(usage.total_tokens)};
    if (node.text == "prompt_tokens_details" && usage.cached_tokens) return {Place::kDetails, 0};
  }
  if (parent.place == Place::kDetails && node.text == "cached_tokens")
    return {Place::kNumber, static_cast<double>(*usage.cached_tokens)};
  return {};
}

Result<Value> evaluate(const Node& node, const UsageValues& usage);

std::optional<double> as_double(const Value& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* number = std::get_if<int64_t>(&value)) return static_cast<double>(*number);
  return std::nullopt;
}

Result<Value> no_overload() {
  return evaluation_error("no such overload");
}

Result<Value> integer_arithmetic(Op op, int64_t a, int64_t b) {
  int64_t out = 0;
  bool bad = false;
  switch (op) {
    case Op::kAdd:
      bad = __builtin_add_overflow(a, b, &out);
      break;
    case Op::kSubtract:
      bad = __builtin_sub_overflow(a, b, &out);
      break;
    case Op::kMultiply:
      bad = __builtin_mul_overflow(a, b, &out);
      break;
    default:
      bad = b == 0 || (a == std::numeric_limits<int64_t>::min() && b == -1);
      if (!bad) out = op == Op::kDivide ? a / b : a % b;
  }
  if (bad) return evaluation_error("integer overflow or division by zero");
  return Value(out);
}

Result<Value> arithmetic(Op op, const Value& a, const Value& b) {
  if (std::holds_alternative<int64_t>(a) && std::holds_alternative<int64_t>(b))
    return integer_arithmetic(op, std::get<int64_t>(a), std::get<int64_t>(b));
  if (op == Op::kAdd && std::holds_alternative<std::string>(a) && std::holds_alternative<std::string>(b))
    return Value(std::get<std::string>(a) + std::get<std::string>(b));
  if (!std::holds_alternative<double>(a) || !std::holds_alternative<double>(b)) return no_overload();
  const double x = std::get<double>(a);
  const double y = std::get<double>(b);
  switch (op) {
    case Op::kAdd:
      return Value(x + y);
    case Op::kSubtract:
      return Value(x - y);
    case Op::kMultiply:
      return Value(x * y);
    case Op::kDivide:
      return Value(x / y);
    default:
      return no_overload();
  }
}

Result<Value> compare(Op op, const Value& a, const Value& b) {
  const auto x = as_double(a);
  const auto y = as_double(b);
  if (op == Op::kEqual || op == Op::kNotEqual) {
    const bool equal = x && y ? *x == *y : a == b;
    return Value(equal == (op == Op::kEqual));
  }
  const auto ordered = [op](const auto& l, const auto& r) {
    switch (op) {
      case Op::kLess:
        return l < r;
      case Op::kLessEqual:
        return l <= r;
      case Op::kGreater:
        return l > r;
      default:
        return l >= r;
    }
  };
  if (x && y) return Value(ordered(*x, *y));
  if (std::holds_alternative<std::string>(a) && std::holds_alternative<std::string>(b))
    return Value(ordered(std::get<std::string>(a), std::get<std::string>(b)));
  return no_overload();
}

// `decisive`: the value of one side that decides whatever the other is, even an error.
Result<Value> logic(const Node& node, const UsageValues& usage, bool decisive) {
  const Result<Value> left = evaluate(*node.children[0], usage);
  const bool* l = left.ok() ? std::get_if<bool>(&*left) : nullptr;
  if (l != nullptr && *l == decisive) return Value(decisive);
  const Result<Value> right = evaluate(*node.children[1], usage);
  const bool* r = right.ok() ? std::get_if<bool>(&*right) : nullptr;
  if (r != nullptr && *r == decisive) return Value(decisive);
  if (l != nullptr && r != nullptr) return Value(!decisive);
  if (!left.ok()) return left;
  if (!right.ok()) return right;
  return no_overload();
}

Result<Value> convert(Op op, const Value& value) {
  if (op == Op::kDouble) {
    const auto number = as_double(value);
    return number ? Result<Value>(Value(*number)) : no_overload();
  }
  if (std::holds_alternative<int64_t>(value)) return value;
  const auto* number = std::get_if<double>(&value);
  if (number == nullptr) return no_overload();
  if (!(std::abs(*number) < 9.2e18)) return evaluation_error("out of the range of integers");
  return Value(static_cast<int64_t>(*number));
}

Result<Value> evaluate(const Node& node, const UsageValues& usage) {
  switch (node.op) {
    case Op::kLiteral:
      return node.literal;
    case Op::kUsage:
      return Value();
    case Op::kField: {
      const Found found = find_field(node, usage);
      if (found.place == Place::kMissing) return evaluation_error("no such key: " + node.text);
      return found.place == Place::kNumber ? Value(found.number) : Value();
    }
    case Op::kHas:
      return Value(find_field(*node.children[0], usage).place != Place::kMissing);
    case Op::kAnd:
      return logic(node, usage, false);
    case Op::kOr:
      return logic(node, usage, true);
    default:
      break;
  }
  const Result<Value> first = evaluate(*node.children[0], usage);
  if (!first.ok()) return first;
  switch (node.op) {
    case Op::kNot:
      if (const bool* truth = std::get_if<bool>(&*first)) return Value(!*truth);
      return no_overload();
    case Op::kNegate:
      if (const auto* number = std::get_if<double>(&*first)) return Value(-*number);
      if (const auto* number = std::get_if<int64_t>(&*first))
        return integer_arithmetic(Op::kSubtract, 0, *number);
      return no_overload();
    case Op::kDouble:
    case Op::kInt:
      return convert(node.op, *first);
    case Op::kChoose:
      if (const bool* truth = std::get_if<bool>(&*first))
        return evaluate(*node.children[*truth ? 1 : 2], usage);
      return no_overload();
    default:
      break;
  }
  const Result<Value> second = evaluate(*node.children[1], usage);
  if (!second.ok()) return second;
  return node.op >= Op::kLess ? compare(node.op, *first, *second) : arithmetic(node.op, *first, *second);
}

}  // namespace

UsageExpression::UsageExpression(std::unique_ptr<Node> root) : root_(std::move(root)) {}
UsageExpression::UsageExpression(UsageExpression&&) noexcept = default;
UsageExpression& UsageExpression::operator=(UsageExpression&&) noexcept = default;
UsageExpression::~UsageExpression() = default;

Result<UsageExpression> UsageExpression::compile(std::string_view text) {
  if (text.size() > kMaxBytes) return evaluation_error("the expression is too long");
  Parser parser(text);
  std::unique_ptr<Node> root = parser.run();
  if (root == nullptr || !parser.error().empty()) return evaluation_error(parser.error());
  return UsageExpression(std::move(root));
}

Result<UsageExpression::Value> UsageExpression::evaluate(const UsageValues& usage) const {
  return scheduling::evaluate(*root_, usage);
}

}  // namespace penstock::scheduling
