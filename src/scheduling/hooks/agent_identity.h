#pragma once

#include <vector>

#include "inference/plugin.h"

namespace penstock::scheduling {

// `agent-identity`: recognises a client's agent session by the first non-empty of some headers; it becomes
// the fairness id of requests that name none. Order: additionalSessionHeaders, then x-claude-code-session-id,
// x-session-affinity, session-id, session_id. Values are taken as they are.
// Example: "session-id: a" alone: a.
class AgentIdentity final : public RequestHook {
 public:
  static constexpr std::string_view kType = "agent-identity";
  struct Params {
    std::vector<std::string> additional_headers;
  };
  static void bind(config::Binder& b, Params& p);
  explicit AgentIdentity(Params params);

  Status on_request(InferenceRequest& request, Arena& arena) const override;

 private:
  std::vector<std::string> headers_;  // lower-case
};

}  // namespace penstock::scheduling
