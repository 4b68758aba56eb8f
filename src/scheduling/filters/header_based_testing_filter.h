#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `header-based-testing-filter`, for conformance tests: keeps the endpoints that the header
// test-epp-endpoint-selection lists ("IP" or "IP:port" between commas, IPv6 with or without brackets), in
// its order, one for each address. An address alone means the last candidate that has it. No header or a
// blank one: nobody.
class HeaderBasedTestingFilter final : public Filter {
 public:
  static constexpr std::string_view kType = "header-based-testing-filter";
  size_t filter(SchedulingContext& ctx, std::span<Candidate> inout) const override;
};

}  // namespace penstock::scheduling
