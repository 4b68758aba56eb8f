#pragma once

#include "scheduling/filters/role_filter.h"

namespace penstock::scheduling {

// `decode-filter`: keeps endpoints that decode: role decode, prefill-decode, both or
// encode-prefill-decode, and those without the label. Example: of {decode}, {prefill}, {} the first and the
// last stay.
class DecodeFilter final : public RoleFilter {
 public:
  static constexpr std::string_view kType = "decode-filter";

  DecodeFilter() : RoleFilter({"decode", "prefill-decode", "both", "encode-prefill-decode"}, true) {}
};

}  // namespace penstock::scheduling
