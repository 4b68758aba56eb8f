#pragma once

#include <initializer_list>
#include <string_view>

#include "scheduling/filters/by_label.h"

namespace penstock::scheduling {

inline constexpr std::string_view kRoleLabel = "llm-d.ai/role";

// What decode-filter, prefill-filter and encode-filter share: a LabelRule on llm-d.ai/role. No parameters.
class RoleFilter : public Filter {
 public:
  size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const override {
    return rule_.apply(ctx, inout);
  }

 protected:
  RoleFilter(std::initializer_list<std::string> roles, bool without_label)
      : rule_{std::string(kRoleLabel), roles, without_label} {}

 private:
  LabelRule rule_;
};

}  // namespace penstock::scheduling
