#include "scheduling/hooks/agent_identity.h"

#include "base/strings.h"

namespace penstock::scheduling {

void AgentIdentity::bind(config::Binder& b, Params& p) {
  b.field("additionalSessionHeaders", p.additional_headers, "",
          "Headers that are asked before the built-in ones.");
}

AgentIdentity::AgentIdentity(Params params) {
  for (const std::string& header : params.additional_headers) headers_.push_back(ascii_lower(header));
  for (const std::string_view header :
       {"x-claude-code-session-id", "x-session-affinity", "session-id", "session_id"}) {
    headers_.emplace_back(header);
  }
}

Status AgentIdentity::on_request(InferenceRequest& request, Arena& arena) const {
  for (const std::string& header : headers_) {
    const auto value = find_header(request.headers, header);
    if (!value || value->empty()) continue;
    request.agent_identity = arena.copy(*value);
    return {};
  }
  return {};
}

}  // namespace penstock::scheduling
