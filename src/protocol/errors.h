#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "inference/request.h"

namespace penstock::protocol {

// The one table from ErrorCode to HTTP.
struct ErrorStatus {
  ErrorCode code;
  int http_status;
  std::string_view name;         // the reference's canonical code: "BadRequest", "ResourceExhausted", …
  std::string_view openai_type;  // "invalid_request_error", "rate_limit_error", …
  std::string_view anthropic_type;
};
const ErrorStatus& error_status(ErrorCode code);
// The code for a status, for refusals made where only the status is known: kBadRequest or kInternal where the
// table has none.
ErrorCode error_code_of(int http_status);

// A header field that goes with every answer of that status, if there is one. A 501 says "x-should-retry:
// false": OpenAI's and Anthropic's clients try every 5xx again, but for that. A 415 says which encodings
// would do (RFC 9110, 15.5.16).
std::optional<HeaderField> error_field(ErrorCode code);

// `error` of a body that no parser could read, or kUnsupportedMedia where `headers` say that the client
// encoded the body (content-encoding), which nobody undoes here.
Error unreadable_body(Error error, std::span<const HeaderField> headers);

// "inference error: <Code> - <message>": the text the reference sends for every mapped error.
std::string reference_error_text(const Error& error);

// The body in the shape the client's SDK reads: Anthropic for kMessages/kCountTokens or a path below
// /v1/messages, OpenAI otherwise. Contains the request id unless it is empty. content-type is
// application/json.
std::string error_body(const Error& error, ApiKind api, std::string_view path, std::string_view request_id);
// The same as one SSE event, for a stream that has already begun.
std::string error_event(const Error& error, ApiKind api, std::string_view path, std::string_view request_id);

}  // namespace penstock::protocol
