#include "scheduling/handlers/disagg_deciders.h"

#include <algorithm>

namespace penstock::scheduling {

bool AlwaysDisaggMultimodalDecider::splits_encode(const SchedulingContext& ctx) const {
  return std::any_of(ctx.request.prompts.begin(), ctx.request.prompts.end(),
                     [](const TokenizedPrompt& prompt) { return !prompt.features.empty(); });
}

void PrefixBasedPdDecider::bind(config::Binder& b, Params& p) {
  b.field("nonCachedTokens", p.non_cached_tokens, "tokens",
          "Tokens that must not be cached on the decoding endpoint; 0: never split.");
  b.field("promptTokens", p.prompt_tokens, "tokens", "Shorter prompts are never split; 0: no such bound.");
  if (b.describing()) return;
  const auto check = [&](std::string_view name, int64_t value) {
    if (value < 0)
      b.fail(name, std::string(name) + " parameter of prefix disaggregation decider cannot be negative");
  };
  check("nonCachedTokens", p.non_cached_tokens);
  check("promptTokens", p.prompt_tokens);
}

// The key of the default producer only, as the handlers that use this require it.
void PrefixBasedPdDecider::declare_data(DataDeclaration& declaration) const {
  declaration.optional<PrefixMatch>(data_keys::kPrefixMatch);
}

void PrefixBasedPdDecider::bind_slots(const SlotResolver& slots) {
  slot_ = slots.slot(data_keys::kPrefixMatch);
}

bool PrefixBasedPdDecider::splits_prefill(const SchedulingContext& ctx,
                                          std::optional<Candidate> decode) const {
  if (params_.non_cached_tokens == 0 || !decode.has_value()) return false;
  const auto input = static_cast<int64_t>(ctx.request.prompt_tokens());
  if (params_.prompt_tokens > 0 && input < params_.prompt_tokens) return false;
  if (input < params_.non_cached_tokens) return false;
  const auto matches = ctx.attributes.column<PrefixMatch>(slot_);
  if (matches.empty()) return false;
  const PrefixMatch& match = matches[*decode];
  return input - int64_t{match.cached_blocks} * match.block_size_tokens >= params_.non_cached_tokens;
}

}  // namespace penstock::scheduling
