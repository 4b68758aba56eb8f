#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "kubernetes/json.h"

namespace penstock::kubernetes {

// Why a call of the API gave no object. AlreadyExists and Conflict share the status 409, so the Status
// object's reason decides where there is one.
enum class Reason : uint8_t {
  kNone,          // it did
  kUnreachable,   // no answer: refused, reset, TLS, time-out
  kUnauthorized,  // 401
  kForbidden,     // 403
  kNotFound,      // 404: the object, or the whole resource
  kAlreadyExists,
  kConflict,         // 409: the object has been changed since it was read
  kExpired,          // 410: the resource version, or the continue token, is too old
  kInvalid,          // 400, 415, 422: the request makes no sense to this server
  kTooManyRequests,  // 429
  kTimeout,          // 504 and reason Timeout: the server could not answer in time
  kServer,           // other 5xx
  kMalformed,        // the answer is not what it should be
  kCancelled,
};
// "unreachable", "forbidden" …: label values and messages.
std::string_view reason_name(Reason reason);

struct Failure {
  Reason reason = Reason::kNone;
  int code = 0;                // HTTP status; 0 without an answer
  std::string message;         // the server's, or what was wrong on the way
  Duration retry_after{0};     // what the server asks for; zero: nothing
  std::string continue_token;  // of an expired list: where an inconsistent one may go on

  bool ok() const { return reason == Reason::kNone; }
};

// A Status object (body of a refusal, object of an ERROR event). `http_status`: of the answer, 0 where there
// is none; what is no Status object gives a failure made of it.
// https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
Failure failure_of(Json status, int http_status);
// The same from a body, which may be no JSON at all (a proxy's page): then its first line is the message.
Failure failure_of_body(std::string_view body, int http_status);

}  // namespace penstock::kubernetes
