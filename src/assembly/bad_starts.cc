#include "assembly/bad_starts.h"

#include <memory>

#include "telemetry/log.h"

namespace penstock::assembly {

std::optional<uint64_t> BadStarts::count() {
  const int64_t now = clock_.now().time_since_epoch().count();
  int64_t until = quiet_until_.load(std::memory_order_relaxed);
  if (now < until || !quiet_until_.compare_exchange_strong(until, now + kQuiet.count())) {
    left_out_.fetch_add(1, std::memory_order_relaxed);
    return std::nullopt;
  }
  return left_out_.exchange(0, std::memory_order_relaxed);
}

void BadStarts::note(const io::ConnectionInfo& connection, std::string_view reason) {
  const std::optional<uint64_t> left_out = count();
  if (!left_out) return;
  telemetry::log_warn("a connection came to nothing", {{"listener", connection.listener},
                                                       {"peer", connection.peer.to_string()},
                                                       {"reason", reason},
                                                       {"others_since_last_line", *left_out}});
}

std::function<void(const io::ConnectionInfo&, std::string_view)> log_bad_starts() {
  static const SystemClock clock;
  return
      [log = std::make_shared<BadStarts>(clock)](const io::ConnectionInfo& connection,
                                                 std::string_view reason) { log->note(connection, reason); };
}

}  // namespace penstock::assembly
