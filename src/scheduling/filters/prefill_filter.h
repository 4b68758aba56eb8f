#pragma once

#include "scheduling/filters/role_filter.h"

namespace penstock::scheduling {

// `prefill-filter`: keeps endpoints that prefill: role prefill, encode-prefill, prefill-decode, both or
// encode-prefill-decode; without the label they go. Example: of {decode}, {prefill}, {} the second stays.
class PrefillFilter final : public RoleFilter {
 public:
  static constexpr std::string_view kType = "prefill-filter";

  PrefillFilter()
      : RoleFilter({"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"}, false) {}
};

}  // namespace penstock::scheduling
