#pragma once

#include <signal.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "admin/admin_server.h"
#include "base/clock.h"
#include "base/result.h"
#include "telemetry/log.h"

// What the commands that serve until they are told to end have in common.
namespace penstock::cli {

// Takes SIGTERM, SIGINT and SIGHUP for the thread that makes it. Before any other thread starts, so that all
// inherit the mask.
class ProcessSignals {
 public:
  ProcessSignals();
  // The next signal, or nothing after `timeout`.
  std::optional<int> wait(Duration timeout);

 private:
  sigset_t set_;
};

Result<Duration> duration_flag(std::string_view flag, const std::string& text);
// The URLs of --model-server; the error names the flag and the value.
Status check_model_servers(const std::vector<std::string>& urls);

telemetry::LogLevel log_level(const std::string& name);

// Lets go of the memory that only starting needed: unused heap, and the pages of code and constants, which
// come back from the page cache when they are used again. Once, when the process is ready.
void release_start_up_memory();

// Waits until `active()` is 0 or `timeout` is over; a second signal to end ends the wait. True: it did.
template <typename Active>
bool drain(ProcessSignals& signals, Duration timeout, Active active) {
  const SystemClock clock;
  const TimePoint deadline = clock.now() + timeout;
  while (active() > 0 && clock.now() < deadline) {
    const std::optional<int> number = signals.wait(std::chrono::milliseconds(20));
    if (number == SIGTERM || number == SIGINT) return true;
  }
  return false;
}

// The admin pages of a runtime; `Explain` is what its explain() takes.
template <typename Explain, typename Runtime>
admin::AdminPages pages_of(Runtime& runtime) {
  admin::AdminPages pages;
  pages.metrics = [&runtime] { return runtime.metrics().render(); };
  pages.ready = [&runtime] { return runtime.ready(); };
  pages.readiness = [&runtime] { return runtime.readiness_json(); };
  pages.decisions = [&runtime](size_t limit) { return runtime.decisions_json(limit); };
  pages.decision = [&runtime](std::string_view id) { return runtime.decision_json(id); };
  pages.plugin_states = [&runtime] { return runtime.plugin_states_json(); };
  pages.endpoints = [&runtime] { return runtime.endpoints_json(); };
  pages.configuration = [&runtime] { return runtime.configuration_text(); };
  pages.shared_state = [&runtime] { return runtime.shared_state_json(); };
  pages.rollback = [&runtime](std::string_view pool) { return runtime.rollback(pool); };
  pages.explain = [&runtime](const admin::ExplainRequest& request) {
    Explain explain;
    explain.method = request.method;
    explain.path = request.path;
    explain.body.assign(request.body.data(), request.body.size());
    for (const io::HeaderField& field : request.headers)
      explain.headers.emplace_back(field.name, field.value);
    return runtime.explain(std::move(explain));
  };
  return pages;
}

}  // namespace penstock::cli
