#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "base/clock.h"
#include "io/http_server.h"

namespace penstock::assembly {

// Connections of a listener that come to nothing because of how they begin, such as TLS on a plain port: each
// of them is a log line with its peer and reason, but no more than one in kQuiet, which says how many were
// left out before it. Thread-safe.
class BadStarts {
 public:
  static constexpr Duration kQuiet = std::chrono::seconds(10);

  explicit BadStarts(const Clock& clock) : clock_(clock) {}
  // One more. How many were left out since the last line; nothing: leave this one out too.
  std::optional<uint64_t> count();
  void note(const io::ConnectionInfo& connection, std::string_view reason);

 private:
  const Clock& clock_;
  std::atomic<int64_t> quiet_until_{0};  // nanoseconds of the clock
  std::atomic<uint64_t> left_out_{0};
};

// HttpServerOptions::on_bad_start with a log of its own.
std::function<void(const io::ConnectionInfo&, std::string_view)> log_bad_starts();

}  // namespace penstock::assembly
