#pragma once

#include "scheduling/filters/role_filter.h"

namespace penstock::scheduling {

// `encode-filter`: keeps endpoints that encode: role encode, encode-prefill or
// encode-prefill-decode; without the label they go. Example: of {decode}, {encode}, {} the second stays.
class EncodeFilter final : public RoleFilter {
 public:
  static constexpr std::string_view kType = "encode-filter";

  EncodeFilter() : RoleFilter({"encode", "encode-prefill", "encode-prefill-decode"}, false) {}
};

}  // namespace penstock::scheduling
