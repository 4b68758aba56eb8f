#include "cli/process.h"

#include "base/units.h"

namespace penstock::cli {

ProcessSignals::ProcessSignals() {
  sigemptyset(&set_);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set_, number);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

std::optional<int> ProcessSignals::wait(Duration timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec wait{seconds.count(), (timeout - seconds).count()};
  const int number = sigtimedwait(&set_, nullptr, &wait);
  if (number < 0) return std::nullopt;
  return number;
}

Result<Duration> duration_flag(std::string_view flag, const std::string& text) {
  auto value = parse_duration(text);
  if (!value.ok()) return invalid_config(std::string(flag) + " '" + text + "': " + value.error().message);
  return value;
}

telemetry::LogLevel log_level(const std::string& name) {
  if (name == "error") return telemetry::LogLevel::kError;
  if (name == "warn") return telemetry::LogLevel::kWarn;
  if (name == "debug") return telemetry::LogLevel::kDebug;
  if (name == "trace") return telemetry::LogLevel::kTrace;
  return telemetry::LogLevel::kInfo;
}

}  // namespace penstock::cli
