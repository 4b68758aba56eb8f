#pragma once

#include "inference/session_holder.h"
#include "scheduling/session_affinity.h"

namespace penstock::scheduling {

// `session-affinity-scorer`: 1 for the endpoint a request's session belongs to
// (scheduling/session_affinity.h), 0 for all others.
// Example: x-session-token: ZGVmYXVsdC9wb2QtYQ== gives default/pod-a 1, everybody else 0.
class SessionAffinityScorer final : public Scorer, public PreRequest, public SessionHolder {
 public:
  static constexpr std::string_view kType = "session-affinity-scorer";
  using Params = SessionAffinity::Params;
  static void bind(config::Binder& b, Params& p) { SessionAffinity::bind(b, p); }
  static Result<std::unique_ptr<Plugin>> create(Params params, const PluginFactoryContext& context);

  SessionAffinityScorer(Params params, std::shared_ptr<SessionTable> table)
      : affinity_(std::move(params), std::move(table)) {}

  void declare_data(DataDeclaration& declaration) const override { affinity_.declare(declaration); }
  void bind_slots(const SlotResolver& slots) override { affinity_.bind_slots(slots); }
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;
  Status pre_request(SchedulingContext& ctx, const SchedulingResult& result) const override {
    affinity_.remember(ctx, result);
    return {};
  }
  std::string_view bound_endpoint(const SchedulingContext& ctx) const override {
    return affinity_.bound_endpoint(ctx);
  }
  std::optional<std::string> dump_state() const override { return affinity_.dump_state(); }
  bool works_on_answers() const override { return affinity_.works_on_answers(); }

 private:
  SessionAffinity affinity_;
};

}  // namespace penstock::scheduling
