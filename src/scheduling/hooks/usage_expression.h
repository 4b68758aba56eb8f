#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"

namespace penstock::scheduling {

// Token counts as expressions see them: the variable `usage`.
struct UsageValues {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  uint64_t total_tokens = 0;
  std::optional<uint64_t> cached_tokens;  // usage.prompt_tokens_details.cached_tokens
};

// An expression over one answer's token counts, in the part of CEL (https://github.com/google/cel-spec) that
// needs nothing else: literals, usage.<field>, usage["field"], has(usage.<field>), double(), int(), ! - * / %
// + < <= > >= == != && || ?: and parentheses. Counts are doubles; arithmetic between a double and an integer
// has no meaning, as in CEL (write 2.0), comparing them has. A field that is not there is an error of
// evaluation; && and || give what their other side decides.
// Bounded: kMaxBytes; kMaxDepth of parentheses, signs and choices within each other; kMaxHeight of operations
// on the results of others, as in a + b + c. Immutable, thread-safe.
class UsageExpression {
 public:
  static constexpr size_t kMaxBytes = 4096;
  static constexpr int kMaxDepth = 64;
  static constexpr int kMaxHeight = 256;
  using Value = std::variant<std::monostate, bool, int64_t, double, std::string>;

  // Errors say what is wrong and at which byte.
  static Result<UsageExpression> compile(std::string_view text);

  UsageExpression(UsageExpression&&) noexcept;
  UsageExpression& operator=(UsageExpression&&) noexcept;
  ~UsageExpression();

  // Error: the expression has no value for these counts.
  Result<Value> evaluate(const UsageValues& usage) const;

  struct Node;

 private:
  explicit UsageExpression(std::unique_ptr<Node> root);
  std::unique_ptr<Node> root_;
};

}  // namespace penstock::scheduling
