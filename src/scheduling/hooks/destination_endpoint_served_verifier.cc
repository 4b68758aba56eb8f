#include "scheduling/hooks/destination_endpoint_served_verifier.h"

namespace penstock::scheduling {

void DestinationEndpointServedVerifier::on_response(const ResponseEvent& event, ResponseEdits& edits) const {
  if (event.kind != ResponseEvent::Kind::kHead) return;
  std::string_view value = "fail: missing envoy lb metadata";
  if (event.has_lb_metadata) {
    value = event.served_endpoint.value_or("fail: missing destination endpoint served metadata");
  }
  edits.set_header("x-conformance-test-served-endpoint", value);
}

}  // namespace penstock::scheduling
