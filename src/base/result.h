#pragma once

#include <cassert>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace penstock {

// What kind of failure an Error is. The request-path kinds map to HTTP statuses in exactly one table,
// protocol/errors.h; the others never leave the process as a status.
enum class ErrorCode : uint8_t {
  kBadRequest,          // 400
  kUnauthorized,        // 401
  kForbidden,           // 403
  kNotFound,            // 404
  kMethodNotAllowed,    // 405
  kRequestTimeout,      // 408: the client did not finish its request in time
  kPreconditionFailed,  // 412
  kPayloadTooLarge,     // 413
  kUnsupportedMedia,    // 415
  kResourceExhausted,   // 429
  kHeadersTooLarge,     // 431
  kClientClosed,        // 499: for logs and metrics, nobody is left to read it
  kInternal,            // 500
  kNotImplemented,      // 501
  kBadGateway,          // 502
  kServiceUnavailable,  // 503
  kGatewayTimeout,      // 504
  kInvalidConfig,       // a document or flag; the message names field, value and line
  kIo,                  // socket, file or resolver
  kCancelled,
};

// A failure as a value: what was being done, with what input. `dropped_reason` is the value of
// x-llm-d-request-dropped-reason, a string literal or empty.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string_view dropped_reason = {};

  // The same failure with what was being done in front: "<context>: <message>".
  Error wrap(std::string_view context) const {
    return Error{code, std::string(context) + ": " + message, dropped_reason};
  }
};

inline Error invalid_config(std::string message) {
  return Error{ErrorCode::kInvalidConfig, std::move(message)};
}

// A value or an Error. REQUIRES: ok() before value(), !ok() before error().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & {
    assert(ok());
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    assert(ok());
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    assert(ok());
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const& {
    assert(!ok());
    return *std::get_if<1>(&state_);
  }
  Error&& error() && {
    assert(!ok());
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  std::variant<T, Error> state_;
};

// Success or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)), ok_(false) {}

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Error& error() const& {
    assert(!ok_);
    return error_;
  }
  Error&& error() && {
    assert(!ok_);
    return std::move(error_);
  }

 private:
  Error error_;
  bool ok_ = true;
};

}  // namespace penstock
