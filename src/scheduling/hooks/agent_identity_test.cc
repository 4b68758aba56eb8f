#include "scheduling/hooks/agent_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "scheduling/hooks/destination_endpoint_served_verifier.h"
#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

TEST(AgentIdentityTest, TakesTheFirstNonEmptyHeader) {
  Arena arena;
  const AgentIdentity hook({.additional_headers = {"X-Mine"}});
  const auto identity = [&](std::vector<HeaderField> fields) {
    InferenceRequest request;
    request.headers = fields;
    EXPECT_TRUE(hook.on_request(request, arena).ok());
    return std::string(request.agent_identity);
  };
  EXPECT_EQ(identity({{"session_id", "d"}, {"session-id", " c"}}), " c");
  EXPECT_EQ(identity({{"x-session-affinity", "b"}, {"x-claude-code-session-id", "a"}}), "a");
  EXPECT_EQ(identity({{"x-mine", "m"}, {"x-claude-code-session-id", "a"}}), "m");
  EXPECT_EQ(identity({{"x-mine", ""}, {"session_id", "d"}}), "d");
  EXPECT_EQ(identity({}), "");
}

TEST(ServedVerifierTest, SaysWhatTheDataPlaneReports) {
  struct Edits final : ResponseEdits {
    std::string header;
    void set_header(std::string_view name, std::string_view value) override {
      header = std::string(name) + ": " + std::string(value);
    }
    void set_metadata(std::string_view, std::string_view, double) override {}
  };
  const DestinationEndpointServedVerifier verifier;
  const auto says = [&](bool has_lb, std::optional<std::string_view> served) {
    Edits edits;
    ResponseEvent event;
    event.has_lb_metadata = has_lb;
    event.served_endpoint = served;
    verifier.on_response(event, edits);
    return edits.header;
  };
  const std::string name = "x-conformance-test-served-endpoint: ";
  EXPECT_EQ(says(false, {}), name + "fail: missing envoy lb metadata");
  EXPECT_EQ(says(true, {}), name + "fail: missing destination endpoint served metadata");
  EXPECT_EQ(says(true, "10.0.0.1:8000"), name + "10.0.0.1:8000");
}

}  // namespace
}  // namespace penstock::scheduling
