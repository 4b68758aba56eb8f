#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `token-producer` (older name `tokenizer`): says that InferenceRequest::prompts holds the prompt as tokens.
// Of its backends this build has `estimate`: the parser has already cut the prompt's text into
// pseudo-tokens of 4 bytes (little-endian, the last one zero-padded) and the director has put them into the
// request, so that nothing is left to do here. Example: "hello world" is {1819043176, 1870078063, 6581362}.
// Naming another backend is an error. Instances under any name make the same data key.
class TokenProducer final : public DataProducer {
 public:
  struct Params {
    const config::Node* estimate = nullptr;
    const config::Node* vllm = nullptr;
    const config::Node* uds = nullptr;
    std::string model_name;
  };
  static void bind(config::Binder& b, Params& p);
  explicit TokenProducer(Params) {}

  void declare_data(DataDeclaration& declaration) const override;
  Stage stage() const override { return Stage::kRequest; }
  Status produce(SchedulingContext& ctx) const override;
};

}  // namespace penstock::scheduling
