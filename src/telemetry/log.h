#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <type_traits>

namespace penstock::telemetry {

enum class LogLevel : uint8_t { kError, kWarn, kInfo, kDebug, kTrace };

// One field of a log line. Values are copied into the line at once. Never put prompt text into one.
struct LogField {
  enum class Kind : uint8_t { kText, kInteger, kNumber, kBoolean };
  LogField(std::string_view n, std::string_view v) : name(n), kind(Kind::kText), text(v) {}
  LogField(std::string_view n, const char* v) : name(n), kind(Kind::kText), text(v) {}
  LogField(std::string_view n, bool v) : name(n), kind(Kind::kBoolean), integer(v) {}
  LogField(std::string_view n, double v) : name(n), kind(Kind::kNumber), number(v) {}
  template <typename T>
    requires std::is_integral_v<T>
  LogField(std::string_view n, T v) : name(n), kind(Kind::kInteger), integer(static_cast<int64_t>(v)) {}

  std::string_view name;
  Kind kind;
  std::string_view text;
  int64_t integer = 0;
  double number = 0;
};

// The process's only global: the logger. JSON lines on stderr, {"level","ts","msg",fields…}, written by
// one background thread from a bounded queue; when it is full lines are dropped and counted, a request
// never waits for a slow terminal. Thread-safe.
void init_logging(LogLevel level);
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
void log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});
// Lines dropped since start because the queue was full.
uint64_t dropped_log_lines();
// Writes out what is queued; call before exit.
void flush_logs();

inline void log_error(std::string_view m, std::initializer_list<LogField> f = {}) {
  log(LogLevel::kError, m, f);
}
inline void log_warn(std::string_view m, std::initializer_list<LogField> f = {}) {
  log(LogLevel::kWarn, m, f);
}
inline void log_info(std::string_view m, std::initializer_list<LogField> f = {}) {
  log(LogLevel::kInfo, m, f);
}
inline void log_debug(std::string_view m, std::initializer_list<LogField> f = {}) {
  if (log_enabled(LogLevel::kDebug)) log(LogLevel::kDebug, m, f);
}

}  // namespace penstock::telemetry
