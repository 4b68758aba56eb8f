#include "cli/process.h"

#include <link.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string_view>

#include "base/units.h"
#include "config/endpoints_file.h"

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

namespace {

// Segments that are never written are what their file says: dropping their pages loses nothing.
int release_segments(dl_phdr_info* object, size_t, void*) {
  if (std::string_view(object->dlpi_name).starts_with("linux-vdso")) return 0;  // has no file
  const auto page = static_cast<ElfW(Addr)>(sysconf(_SC_PAGESIZE));
  for (ElfW(Half) i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
    const ElfW(Addr) begin = (object->dlpi_addr + segment.p_vaddr + page - 1) & ~(page - 1);
    const ElfW(Addr) end = (object->dlpi_addr + segment.p_vaddr + segment.p_filesz) & ~(page - 1);
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // NOLINT
  }
  return 0;
}

}  // namespace

void release_start_up_memory() {
  malloc_trim(0);
  dl_iterate_phdr(&release_segments, nullptr);
}

Result<Duration> duration_flag(std::string_view flag, const std::string& text) {
  auto value = parse_duration(text);
  if (!value.ok()) return invalid_config(std::string(flag) + " '" + text + "': " + value.error().message);
  if (*value < Duration(0)) return invalid_config(std::string(flag) + " '" + text + "' is negative");
  return value;
}

Status check_model_servers(const std::vector<std::string>& urls) {
  for (const std::string& url : urls) {
    if (const auto parsed = config::parse_endpoint_url(url); !parsed.ok())
      return parsed.error().wrap("--model-server");
  }
  return {};
}

telemetry::LogLevel log_level(const std::string& name) {
  if (name == "error") return telemetry::LogLevel::kError;
  if (name == "warn") return telemetry::LogLevel::kWarn;
  if (name == "debug") return telemetry::LogLevel::kDebug;
  if (name == "trace") return telemetry::LogLevel::kTrace;
  return telemetry::LogLevel::kInfo;
}

}  // namespace penstock::cli
