#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `header-label-affinity-scorer`: 1 for endpoints whose label equals the request's header exactly, 0 for
// others and without the header. Example: headerName x-zone, labelKey zone: "x-zone: a" gives {zone: a} 1,
// {zone: b} and {} 0.
class HeaderLabelAffinityScorer final : public Scorer {
 public:
  static constexpr std::string_view kType = "header-label-affinity-scorer";
  struct Params {
    std::string header;  // lower-case
    std::string label;
  };
  static void bind(config::Binder& b, Params& p);
  static Result<std::unique_ptr<Plugin>> create(const PluginFactoryContext& context);
  explicit HeaderLabelAffinityScorer(Params params) : params_(std::move(params)) {}

  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override;
  void explain(const SchedulingContext& ctx, Candidate candidate, std::string& out) const override;

 private:
  Params params_;
};

}  // namespace penstock::scheduling
