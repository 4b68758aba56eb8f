#include "scheduling/hooks/request_attribute_reporter.h"

#include <cmath>

#include "scheduling/nested_params.h"
#include "telemetry/log.h"

namespace penstock::scheduling {

void RequestAttributeReporter::bind(config::Binder& b, Params& p) {
  size_t entries = 0;
  nested_list(
      b, "attributes",
      "One {key: {namespace, name}, expression, condition}: what is reported where (namespace envoy.lb "
      "where absent), and when.",
      [&](config::Binder& a) {
        ++entries;
        nested(a, "key", "", [&](config::Binder& k) {
          k.field("namespace", p.ns, "", "");
          k.field("name", p.key, "", "");
        });
        a.field("expression", p.expression, "", "");
        a.field("condition", p.condition, "", "");
      });
  if (b.describing()) return;
  if (p.ns.empty()) p.ns = "envoy.lb";
  if (entries != 1) {
    b.fail("attributes", "attributes must contain exactly one entry");
    return;
  }
  if (p.key.empty()) b.fail("attributes", "attributeKey.name cannot be empty");
  if (p.expression.empty()) b.fail("attributes", "attributes[0].expression cannot be empty");
}

Result<std::unique_ptr<Plugin>> RequestAttributeReporter::create(Params params,
                                                                 const PluginFactoryContext& context) {
  const auto compiled = [&](std::string_view field, const std::string& text) -> Result<UsageExpression> {
    Result<UsageExpression> out = UsageExpression::compile(text);
    if (out.ok()) return out;
    return Error{ErrorCode::kInvalidConfig, context.path + ".attributes[0]." + std::string(field) +
                                                ": failed to compile \"" + text +
                                                "\": " + out.error().message};
  };
  Result<UsageExpression> expression = compiled("expression", params.expression);
  if (!expression.ok()) return std::move(expression).error();
  std::optional<UsageExpression> condition;
  if (!params.condition.empty()) {
    Result<UsageExpression> made = compiled("condition", params.condition);
    if (!made.ok()) return std::move(made).error();
    condition = std::move(made).value();
  }
  return std::unique_ptr<Plugin>(std::make_unique<RequestAttributeReporter>(
      std::move(params), std::move(expression).value(), std::move(condition)));
}

RequestAttributeReporter::RequestAttributeReporter(Params params, UsageExpression expression,
                                                   std::optional<UsageExpression> condition)
    : params_(std::move(params)), expression_(std::move(expression)), condition_(std::move(condition)) {}

void RequestAttributeReporter::on_response(const ResponseEvent& event, ResponseEdits& edits) const {
  if (event.kind != ResponseEvent::Kind::kEnd) return;
  const UsageValues usage{event.prompt_tokens, event.completion_tokens, event.total_tokens,
                          event.cached_tokens};
  if (condition_) {
    const Result<UsageExpression::Value> holds = condition_->evaluate(usage);
    if (!holds.ok() || !std::holds_alternative<bool>(*holds) || !std::get<bool>(*holds)) return;
  }
  const Result<UsageExpression::Value> value = expression_.evaluate(usage);
  if (!value.ok()) {
    telemetry::log_debug("request-attribute-reporter: the expression has no value",
                         {{"plugin", std::string_view(name())}, {"error", value.error().message}});
    return;
  }
  double number = 0;
  if (const auto* integer = std::get_if<int64_t>(&*value)) {
    number = static_cast<double>(*integer);
  } else if (const auto* floating = std::get_if<double>(&*value)) {
    number = std::trunc(*floating);
  }
  if (!std::isfinite(number) || number == 0 || number == -1) return;
  edits.set_metadata(params_.ns, params_.key, number);
}

}  // namespace penstock::scheduling
