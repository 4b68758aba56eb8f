#include "kubernetes/failure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/strings.h"

namespace penstock::kubernetes {

namespace {

constexpr size_t kMaxMessageBytes = 1024;
constexpr size_t kMaxTokenBytes = 64 * 1024;
constexpr int64_t kMaxRetryAfterSeconds = 300;

Reason reason_of_code(int code) {
  switch (code) {
    case 401:
      return Reason::kUnauthorized;
    case 403:
      return Reason::kForbidden;
    case 404:
      return Reason::kNotFound;
    case 409:
      return Reason::kConflict;
    case 410:
      return Reason::kExpired;
    case 429:
      return Reason::kTooManyRequests;
    case 504:
      return Reason::kTimeout;
    default:
      return code >= 500 ? Reason::kServer : Reason::kInvalid;
  }
}

Reason reason_of_name(std::string_view name, Reason otherwise) {
  static constexpr std::array<std::pair<std::string_view, Reason>, 6> kNames{{
      {"AlreadyExists", Reason::kAlreadyExists},
      {"Conflict", Reason::kConflict},
      {"Expired", Reason::kExpired},
      {"Gone", Reason::kExpired},
      {"Timeout", Reason::kTimeout},
      {"ServerTimeout", Reason::kTimeout},
  }};
  for (const auto& [known, reason] : kNames) {
    if (known == name) return reason;
  }
  return otherwise;
}

std::string shortened(std::string_view text) {
  std::string out(text.substr(0, kMaxMessageBytes));
  if (out.size() < text.size()) out += "…";
  return out;
}

}  // namespace

std::string_view reason_name(Reason reason) {
  static constexpr std::array<std::string_view, 14> kNames{
      "none",    "unreachable", "unauthorized",      "forbidden", "not_found", "already_exists", "conflict",
      "expired", "invalid",     "too_many_requests", "timeout",   "server",    "malformed",      "cancelled"};
  return kNames[static_cast<size_t>(reason)];
}

Failure failure_of(Json status, int http_status) {
  Failure out;
  const std::optional<int64_t> code = status["code"].integer();
  out.code = code && *code >= 100 && *code < 600 ? static_cast<int>(*code) : http_status;
  if (status["kind"].text() != "Status") {
    out.reason = http_status >= 400 ? reason_of_code(http_status) : Reason::kMalformed;
    out.message = fmt::format("HTTP status {}", http_status);
    return out;
  }
  out.reason =
      reason_of_name(status["reason"].text(), out.code >= 400 ? reason_of_code(out.code) : Reason::kServer);
  const std::string_view message = status["message"].text();
  out.message = message.empty() ? fmt::format("HTTP status {}", out.code) : shortened(message);
  if (const auto seconds = status["details"]["retryAfterSeconds"].integer(); seconds && *seconds > 0)
    out.retry_after = std::chrono::seconds(std::min(*seconds, kMaxRetryAfterSeconds));
  const std::string_view token = status["metadata"]["continue"].text();
  if (token.size() <= kMaxTokenBytes) out.continue_token = token;
  return out;
}

Failure failure_of_body(std::string_view body, int http_status) {
  JsonDocument document;
  const Result<Json> json = document.parse(body);
  if (json.ok() && (*json)["kind"].text() == "Status") return failure_of(*json, http_status);
  Failure out;
  out.code = http_status;
  out.reason = http_status >= 400 ? reason_of_code(http_status) : Reason::kMalformed;
  const std::string_view line = trim(body.substr(0, body.find('\n')));
  out.message = fmt::format("HTTP status {}", http_status);
  if (!line.empty() && is_utf8(line)) out.message += ": " + shortened(line);
  return out;
}

}  // namespace penstock::kubernetes
