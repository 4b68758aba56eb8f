#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/route_table.h"
#include "inference/header_edits.h"
#include "io/http.h"

namespace penstock::gateway {

// The one place that decides what leaves the gateway around a body, in both directions. How the body is
// delimited is given to the codec as BodyFraming and never copied from a header.

// What is added to and taken from a request on its way out. Empty values add nothing.
struct RequestRules {
  bool to_engine = true;              // false: a plain service, which gets the client's end-to-end fields
  bool drop_credentials = true;       // the client's authorization, x-api-key and api-key stay here
  std::string_view authorization;     // ours towards engines; replaces the client's
  bool drop_accept_encoding = false;  // the answer must come in clear: names are restored in it
  std::string_view request_id;
  std::string_view peer_ip;
  std::string_view scheme;       // "http" or "https"
  std::string_view host;         // what is sent as host
  std::string_view traceparent;  // with tracestate in place of the client's; "": the client's pass
  std::string_view tracestate;
};

// Appends the fields to send: the client's end-to-end fields in their order, without hop-by-hop fields
// (those named in `connection` too), framing, Expect, the gateway's control headers and, towards engines,
// headers that would steer a sidecar or picker; then host, x-request-id, x-forwarded-for (the peer is
// appended to the client's list), x-forwarded-proto and x-forwarded-host. Values are views into `head` and
// the rules, or into `scratch`, which must not move until the request was sent.
void request_fields(const io::RequestHead& head, const RequestRules& rules, std::string& scratch,
                    std::vector<io::HeaderField>& out);

struct ResponseRules {
  std::string_view request_id;
  std::string_view endpoint;  // value of x-penstock-endpoint, "" none
  bool body_changed = false;  // what describes the engine's bytes no longer holds
};
// The same for an answer: everything end-to-end stays as the engine sent it.
void response_fields(const io::ResponseHead& head, const ResponseRules& rules,
                     std::vector<io::HeaderField>& out);

// How the answer's body goes out, given what came in. `length`: as the engine declared it.
io::BodyFraming response_framing(std::string_view method, int status, std::optional<uint64_t> length,
                                 bool body_changed);

// Applies what plugins want changed: removes, then sets in place of what is there. Views of the edits.
void apply_edits(std::span<const HeaderEdits::Edit> edits, std::vector<io::HeaderField>& fields);
// True for fields that belong to one hop only, framing included.
bool is_hop_by_hop(std::string_view lower_name);

}  // namespace penstock::gateway
