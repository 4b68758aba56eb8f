#pragma once

#include <optional>

#include "inference/plugin.h"

namespace penstock::scheduling {

// Whether a request's prefill runs on an endpoint of its own. `decode`: where it will be decoded.
class PrefillDecider : public virtual Plugin {
 public:
  virtual bool splits_prefill(const SchedulingContext& ctx, std::optional<Candidate> decode) const = 0;
};
// Whether a request's media are encoded on an endpoint of their own.
class EncodeDecider : public virtual Plugin {
 public:
  virtual bool splits_encode(const SchedulingContext& ctx) const = 0;
};

// `always-disagg-pd-decider`: always. Takes no parameters.
class AlwaysDisaggPdDecider final : public PrefillDecider {
 public:
  static constexpr std::string_view kType = "always-disagg-pd-decider";
  bool splits_prefill(const SchedulingContext&, std::optional<Candidate>) const override { return true; }
};

// `always-disagg-multimodal-decider`: where a prompt has at least one media item. Takes no parameters.
class AlwaysDisaggMultimodalDecider final : public EncodeDecider {
 public:
  static constexpr std::string_view kType = "always-disagg-multimodal-decider";
  bool splits_encode(const SchedulingContext& ctx) const override;
};

// `prefix-based-pd-decider`: where enough of the prompt is not cached where it will be decoded:
//   input >= promptTokens, input >= nonCachedTokens and input - cached blocks * block size >=
//   nonCachedTokens; never when nonCachedTokens is 0 or nothing is known of the prefix. Tokens are those the
//   token producer made.
// Examples, nonCachedTokens 512: input 1000, 4 blocks of 64: yes; 10 blocks: no; input 512, nothing cached:
// yes.
class PrefixBasedPdDecider final : public PrefillDecider {
 public:
  static constexpr std::string_view kType = "prefix-based-pd-decider";
  struct Params {
    int64_t non_cached_tokens = 0;
    int64_t prompt_tokens = 0;
  };
  static void bind(config::Binder& b, Params& p);
  explicit PrefixBasedPdDecider(const Params& params) : params_(params) {}

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  bool splits_prefill(const SchedulingContext& ctx, std::optional<Candidate> decode) const override;

 private:
  Params params_;
  AttributeSlot slot_ = kNoSlot;
};

}  // namespace penstock::scheduling
