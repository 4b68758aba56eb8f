#include "telemetry/log.h"

#include <fmt/format.h>
#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "base/strings.h"

namespace penstock::telemetry {

namespace {

constexpr size_t kQueueLines = 1024;  // 400 bytes each, all touched at the start

std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::shared_ptr<spdlog::details::thread_pool> g_pool;
std::shared_ptr<spdlog::logger> g_logger;

std::string_view level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return "error";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kTrace:
      return "trace";
  }
  return "info";
}

}  // namespace

void init_logging(LogLevel level) {
  g_level = level;
  g_pool = std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1);
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger = std::make_shared<spdlog::async_logger>("penstock", std::move(sink), g_pool,
                                                       spdlog::async_overflow_policy::overrun_oldest);
  logger->set_pattern("%v");
  logger->set_level(spdlog::level::trace);
  logger->flush_on(spdlog::level::err);
  g_logger = std::move(logger);
}

void set_log_level(LogLevel level) {
  g_level = level;
}
bool log_enabled(LogLevel level) {
  return level <= g_level.load(std::memory_order_relaxed);
}
uint64_t dropped_log_lines() {
  return g_pool ? g_pool->overrun_counter() : 0;
}

void flush_logs() {
  // Ending the pool's thread is the only way to be sure that the queue is empty.
  g_logger.reset();
  g_pool.reset();
}

void log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (!g_logger || !log_enabled(level)) return;
  thread_local std::string line;
  line.clear();
  const double ts =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  fmt::format_to(std::back_inserter(line), "{{\"level\":\"{}\",\"ts\":{:.6f},\"msg\":", level_name(level),
                 ts);
  append_json_quoted(line, message);
  for (const LogField& field : fields) {
    line += ',';
    append_json_quoted(line, field.name);
    line += ':';
    switch (field.kind) {
      case LogField::Kind::kText:
        append_json_quoted(line, field.text);
        break;
      case LogField::Kind::kInteger:
        fmt::format_to(std::back_inserter(line), "{}", field.integer);
        break;
      case LogField::Kind::kNumber:
        fmt::format_to(std::back_inserter(line), "{:.6g}", field.number);
        break;
      case LogField::Kind::kBoolean:
        line += field.integer != 0 ? "true" : "false";
        break;
    }
  }
  line += '}';
  g_logger->log(level == LogLevel::kError ? spdlog::level::err : spdlog::level::info, line);
}

}  // namespace penstock::telemetry
