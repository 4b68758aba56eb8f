#pragma once

#include "inference/session_holder.h"
#include "scheduling/session_affinity.h"

namespace penstock::scheduling {

// `session-affinity-filter`, and `multicluster-session-affinity-filter`, which does the same: keeps the
// endpoint a request's session belongs to (scheduling/session_affinity.h); all endpoints when it belongs to
// none of them.
// Examples, session_id: s is bound to A: candidates {A, B} leave A; candidates {B, C} stay, and s is rebound
// to the one that is picked. No session: all stay, nothing is bound.
class SessionAffinityFilter final : public Filter, public PreRequest, public SessionHolder {
 public:
  static constexpr std::string_view kType = "session-affinity-filter";
  using Params = SessionAffinity::Params;
  static void bind(config::Binder& b, Params& p) { SessionAffinity::bind(b, p); }
  static Result<std::unique_ptr<Plugin>> create(Params params, const PluginFactoryContext& context);

  SessionAffinityFilter(Params params, std::shared_ptr<SessionTable> table)
      : affinity_(std::move(params), std::move(table)) {}

  void declare_data(DataDeclaration& declaration) const override { affinity_.declare(declaration); }
  void bind_slots(const SlotResolver& slots) override { affinity_.bind_slots(slots); }
  size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const override;
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
