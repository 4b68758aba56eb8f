#include "scheduling/producers/token_producer.h"

namespace penstock::scheduling {

void TokenProducer::bind(config::Binder& b, Params& p) {
  b.node("estimate", p.estimate,
         "Pseudo-tokens of 4 bytes of text, no tokenizer needed. The default; takes an empty object.");
  b.field("modelName", p.model_name, "", "Model whose tokenizer is used: implies the vllm backend.");
  b.node("vllm", p.vllm, "Tokens from an engine's render endpoint. Not in this build.");
  b.node("udsTokenizerConfig", p.uds, "Tokens from a tokenizer sidecar. Not in this build.");
  if (b.describing()) return;

  constexpr std::string_view kOnlyEstimate = "this build has only the 'estimate' backend of token-producer";
  if (p.vllm != nullptr) b.fail("vllm", kOnlyEstimate);
  if (p.uds != nullptr) b.fail("udsTokenizerConfig", kOnlyEstimate);
  if (!p.model_name.empty() && p.vllm == nullptr) {
    b.fail("modelName", std::string("names a model, which implies the vllm backend; ").append(kOnlyEstimate));
  }
  if (p.estimate == nullptr || p.estimate->is_null()) return;
  if (!p.estimate->is_map()) {
    b.fail("estimate", "must be an object");
  } else if (!p.estimate->members.empty()) {
    b.fail("estimate", "unknown field \"" + p.estimate->members.front().first + "\"");
  }
}

void TokenProducer::declare_data(DataDeclaration& declaration) const {
  declaration.produce<TokenizedPromptMarker>(data_keys::kTokenizedPrompt);
}

Status TokenProducer::produce(SchedulingContext& /*ctx*/) const {
  return {};
}

}  // namespace penstock::scheduling
