#pragma once

#include <optional>

#include "inference/plugin.h"
#include "scheduling/hooks/usage_expression.h"

namespace penstock::scheduling {

// `request-attribute-reporter`: at the end of an answer reports one number, computed from its token counts
// (scheduling/hooks/usage_expression.h), to the data plane as dynamic metadata. Nothing is reported where the
// condition is not true, the result is no number, or it is 0 or -1 after cutting off its fraction.
// Examples: "usage.prompt_tokens" with 10 prompt tokens: envoy.lb/<name> = 10; with 0: nothing; "'x'":
// nothing.
class RequestAttributeReporter final : public ResponseHook {
 public:
  static constexpr std::string_view kType = "request-attribute-reporter";
  struct Params {
    std::string ns = "envoy.lb";
    std::string key;
    std::string expression;
    std::string condition;
  };
  static void bind(config::Binder& b, Params& p);
  static Result<std::unique_ptr<Plugin>> create(Params params, const PluginFactoryContext& context);

  RequestAttributeReporter(Params params, UsageExpression expression,
                           std::optional<UsageExpression> condition);

  void on_response(const ResponseEvent& event, ResponseEdits& edits) const override;

 private:
  Params params_;
  UsageExpression expression_;
  std::optional<UsageExpression> condition_;
};

}  // namespace penstock::scheduling
