#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `destination-endpoint-served-verifier`, for conformance tests: tells the client in
// x-conformance-test-served-endpoint which endpoint the data plane says it used, or
// "fail: missing envoy lb metadata" or "fail: missing destination endpoint served metadata".
class DestinationEndpointServedVerifier final : public ResponseHook {
 public:
  static constexpr std::string_view kType = "destination-endpoint-served-verifier";
  void on_response(const ResponseEvent& event, ResponseEdits& edits) const override;
};

}  // namespace penstock::scheduling
