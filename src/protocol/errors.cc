#include "protocol/errors.h"

#include <array>

#include "base/strings.h"
#include "protocol/body_members.h"

namespace penstock::protocol {
namespace {

// Types are those the official SDKs and their users know:
// https://platform.openai.com/docs/guides/error-codes, https://docs.anthropic.com/en/api/errors
constexpr ErrorStatus kStatuses[] = {
    {ErrorCode::kBadRequest, 400, "BadRequest", "invalid_request_error", "invalid_request_error"},
    {ErrorCode::kUnauthorized, 401, "Unauthorized", "authentication_error", "authentication_error"},
    {ErrorCode::kForbidden, 403, "Forbidden", "permission_error", "permission_error"},
    {ErrorCode::kNotFound, 404, "NotFound", "not_found_error", "not_found_error"},
    {ErrorCode::kMethodNotAllowed, 405, "MethodNotAllowed", "invalid_request_error", "invalid_request_error"},
    {ErrorCode::kRequestTimeout, 408, "RequestTimeout", "timeout_error", "timeout_error"},
    {ErrorCode::kPreconditionFailed, 412, "PreconditionFailed", "invalid_request_error",
     "invalid_request_error"},
    {ErrorCode::kPayloadTooLarge, 413, "PayloadTooLarge", "invalid_request_error", "request_too_large"},
    {ErrorCode::kUnsupportedMedia, 415, "UnsupportedMediaType", "invalid_request_error",
     "invalid_request_error"},
    {ErrorCode::kResourceExhausted, 429, "ResourceExhausted", "rate_limit_error", "rate_limit_error"},
    {ErrorCode::kHeadersTooLarge, 431, "HeadersTooLarge", "invalid_request_error", "request_too_large"},
    {ErrorCode::kClientClosed, 499, "ClientClosed", "server_error", "api_error"},
    {ErrorCode::kInternal, 500, "Internal", "server_error", "api_error"},
    {ErrorCode::kNotImplemented, 501, "NotImplemented", "server_error", "api_error"},
    {ErrorCode::kBadGateway, 502, "BadGateway", "server_error", "api_error"},
    {ErrorCode::kServiceUnavailable, 503, "ServiceUnavailable", "service_unavailable_error",
     "overloaded_error"},
    {ErrorCode::kGatewayTimeout, 504, "GatewayTimeout", "timeout_error", "timeout_error"},
    // What reaches a client although it should have been mapped before is our fault.
    {ErrorCode::kInvalidConfig, 500, "Internal", "server_error", "api_error"},
    {ErrorCode::kIo, 502, "BadGateway", "server_error", "api_error"},
    {ErrorCode::kCancelled, 503, "ServiceUnavailable", "service_unavailable_error", "overloaded_error"},
};

constexpr size_t kMaxEncodingShown = 64;

constexpr bool table_is_in_order() {
  for (size_t i = 0; i < std::size(kStatuses); ++i) {
    if (static_cast<size_t>(kStatuses[i].code) != i) return false;
  }
  return std::size(kStatuses) == static_cast<size_t>(ErrorCode::kCancelled) + 1;
}
static_assert(table_is_in_order(), "one line per ErrorCode, in its order");

bool speaks_anthropic(ApiKind api, std::string_view path) {
  if (api == ApiKind::kMessages || api == ApiKind::kCountTokens) return true;
  if (api != ApiKind::kNone) return false;
  path = normal_path(path);
  return path_ends_with(path, "messages") || path_ends_with(path, "messages/count_tokens") ||
         path.starts_with("/v1/messages/");
}

void append_end(std::string& out, std::string_view request_id) {
  out += '}';
  if (!request_id.empty()) {
    out += R"(,"request_id":)";
    append_json_quoted(out, request_id);
  }
  out += '}';
}

}  // namespace

const ErrorStatus& error_status(ErrorCode code) {
  return kStatuses[static_cast<size_t>(code)];
}

ErrorCode error_code_of(int http_status) {
  for (const ErrorStatus& status : kStatuses) {
    if (status.http_status == http_status) return status.code;
  }
  return http_status < 500 ? ErrorCode::kBadRequest : ErrorCode::kInternal;
}

std::optional<HeaderField> error_field(ErrorCode code) {
  switch (code) {
    case ErrorCode::kNotImplemented:
      return HeaderField{"x-should-retry", "false"};
    case ErrorCode::kUnsupportedMedia:
      return HeaderField{"accept-encoding", "identity"};
    default:
      return std::nullopt;
  }
}

Error unreadable_body(Error error, std::span<const HeaderField> headers) {
  const std::string_view encoding = trim(find_header(headers, "content-encoding").value_or(""));
  if (encoding.empty() || ascii_iequals(encoding, "identity")) return error;
  return Error{ErrorCode::kUnsupportedMedia, "the request body has the content-encoding '" +
                                                 std::string(encoding.substr(0, kMaxEncodingShown)) +
                                                 "', which is not decoded here; send it as it is"};
}

std::string reference_error_text(const Error& error) {
  return "inference error: " + std::string(error_status(error.code).name) + " - " + error.message;
}

std::string error_body(const Error& error, ApiKind api, std::string_view path, std::string_view request_id) {
  const ErrorStatus& status = error_status(error.code);
  std::string out;
  if (speaks_anthropic(api, path)) {
    out = R"({"type":"error","error":{"type":)";
    append_json_quoted(out, status.anthropic_type);
    out += R"(,"message":)";
    append_json_quoted(out, reference_error_text(error));
    append_end(out, request_id);
    return out;
  }
  out = R"({"error":{"message":)";
  append_json_quoted(out, reference_error_text(error));
  out += R"(,"type":)";
  append_json_quoted(out, status.openai_type);
  out += R"(,"param":null,"code":)";
  append_json_quoted(out, status.name);
  append_end(out, request_id);
  return out;
}

std::string error_event(const Error& error, ApiKind api, std::string_view path, std::string_view request_id) {
  std::string out = speaks_anthropic(api, path) ? "event: error\ndata: " : "data: ";
  out += error_body(error, api, path, request_id);
  out += "\n\n";
  return out;
}

}  // namespace penstock::protocol
