#pragma once

#include <optional>

#include "inference/plugin.h"
#include "scheduling/handlers/disagg_deciders.h"
#include "scheduling/handlers/primary_profile.h"
#include "telemetry/metrics.h"

namespace penstock::scheduling {

// Sets x-prefiller-host-port and x-encoder-hosts-ports from the results of the two profiles; without a result
// the header is removed, whatever a client sent.
struct DisaggHeaders {
  std::string prefill_profile = "prefill";
  std::string encode_profile = "encode";
  void apply(SchedulingContext& ctx, const SchedulingResult& result) const;
};

// Counts which stages a request was given. Labels as the reference's; models beyond 100 count as "other".
class DisaggCounters {
 public:
  DisaggCounters(telemetry::MetricRegistry& metrics, std::string_view plugin_name,
                 std::string_view plugin_type, bool pd_only);
  void count(const SchedulingContext& ctx, bool encode, bool prefill) const;

 private:
  telemetry::Family<telemetry::Counter>& decisions_;
  std::string plugin_name_;
  std::string plugin_type_;
  mutable telemetry::LabelBudget models_;
};

// `disagg-profile-handler`: splits a request into encode, prefill and decode on endpoints of their own.
//   decode-first: decode runs; then encode, where its decider says so; then prefill, where its decider does.
//   prefill-first: prefill runs wherever its profile exists; then encode; then decode.
// A profile that is not configured is not run; one that fails is left out and the request goes on; without a
// decode endpoint it fails ("failed to find available decode workers", or 429 where filters left nobody). The
// first target of the stage before is the peer of the next (data_keys::kPeerEndpoint), for topology plugins.
// Decode is primary. Headers: DisaggHeaders.
// Example: decode 10.0.0.9:8000, prefill 10.0.0.1:8000, encode 10.0.0.2:80 and 10.0.0.3:80: headers
// "10.0.0.1:8000" and "10.0.0.2:80,10.0.0.3:80", decision encode-prefill-decode.
class DisaggProfileHandler final : public ProfileHandler, public PreRequest, public PrimaryProfile {
 public:
  static constexpr std::string_view kType = "disagg-profile-handler";
  struct Params {
    bool prefill_first = false;
    std::string decode_profile = "decode";
    DisaggHeaders stages;
    std::string prefill_decider;  // instance names; empty: none
    std::string encode_decider;
  };
  // The nested form; the deprecated flat one is bind_flat().
  static void bind(config::Binder& b, Params& p);
  static void bind_flat(config::Binder& b, Params& p);
  static Result<std::unique_ptr<Plugin>> create(const PluginFactoryContext& context);
  static std::vector<std::string> references(const config::Node* parameters);

  DisaggProfileHandler(Params params, const PrefillDecider* prefill, const EncodeDecider* encode,
                       std::string_view name, telemetry::MetricRegistry& metrics);

  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  std::span<const uint32_t> pick(SchedulingContext& ctx, std::span<const std::string> profile_names,
                                 std::span<bool> done,
                                 std::span<const ProfileResult* const> results) const override;
  Result<SchedulingResult> process(SchedulingContext& ctx, std::span<const std::string> profile_names,
                                   std::span<const ProfileResult* const> results) const override;
  Status pre_request(SchedulingContext& ctx, const SchedulingResult& result) const override;
  std::string_view primary_profile() const override { return params_.decode_profile; }

 private:
  // Index of each stage's profile; profile_names.size(): not configured.
  struct Stages {
    size_t decode = 0;
    size_t prefill = 0;
    size_t encode = 0;
  };
  Stages find(std::span<const std::string> profile_names) const;
  void set_peer(SchedulingContext& ctx, Candidate peer) const;

  Params params_;
  const PrefillDecider* prefill_decider_;
  const EncodeDecider* encode_decider_;
  DisaggCounters counters_;
  AttributeSlot peer_slot_ = kNoSlot;
};

// `pd-profile-handler`, deprecated for disagg-profile-handler: decode, then prefill where the decider says
// so. Sets no prefill header itself (disagg-headers-handler does); with primaryPort it does what
// data-parallel-profile-handler does.
class PdProfileHandler final : public ProfileHandler, public PreRequest, public PrimaryProfile {
 public:
  static constexpr std::string_view kType = "pd-profile-handler";
  struct Params {
    std::string decode_profile = "decode";
    std::string prefill_profile = "prefill";
    std::string prefix_plugin_type;
    std::string prefix_plugin_name;
    int primary_port = 0;
    std::string decider = "prefix-based-pd-decider";
    std::string prefix_producer;
  };
  static void bind(config::Binder& b, Params& p);
  static Result<std::unique_ptr<Plugin>> create(Params params, const PluginFactoryContext& context);
  static std::vector<std::string> references(const config::Node* parameters);

  PdProfileHandler(Params params, const PrefillDecider& decider, std::string_view name,
                   telemetry::MetricRegistry& metrics);

  void declare_data(DataDeclaration& declaration) const override;
  std::span<const uint32_t> pick(SchedulingContext& ctx, std::span<const std::string> profile_names,
                                 std::span<bool> done,
                                 std::span<const ProfileResult* const> results) const override;
  Result<SchedulingResult> process(SchedulingContext& ctx, std::span<const std::string> profile_names,
                                   std::span<const ProfileResult* const> results) const override;
  Status pre_request(SchedulingContext& ctx, const SchedulingResult& result) const override;
  std::string_view primary_profile() const override { return params_.decode_profile; }

 private:
  Params params_;
  const PrefillDecider& decider_;
  DisaggCounters counters_;
};

// `disagg-headers-handler`, and `prefill-header-handler`, deprecated for disagg-profile-handler: only sets
// DisaggHeaders.
class DisaggHeadersHandler final : public PreRequest {
 public:
  static constexpr std::string_view kType = "disagg-headers-handler";
  using Params = DisaggHeaders;
  static void bind(config::Binder& b, Params& p);
  explicit DisaggHeadersHandler(Params params) : headers_(std::move(params)) {}
  Status pre_request(SchedulingContext& ctx, const SchedulingResult& result) const override {
    headers_.apply(ctx, result);
    return {};
  }

 private:
  DisaggHeaders headers_;
};

}  // namespace penstock::scheduling
