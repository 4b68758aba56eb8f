#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "director/decision_log.h"

namespace penstock::director {

// One line a request, as JSON, never with prompt text:
// {"level":"info","ts":…,"msg":"request","request_id":…,"identity":…,"method":…,"path":…,"status":…,
//  "model":…,"target_model":…,"pool":…,"endpoint":…,"tokens_in":…,"tokens_cached":…,"tokens_out":…,
//  "ttft_ms":…,"total_ms":…,"bytes_out":…,"attempts":…,"reason":…,"fallback":…}
// Loops append to buffers of their own; one thread writes them out every 100 ms or 64 KiB, so that a
// request never waits for a terminal. A buffer that reaches its bound drops lines and counts them.
class AccessLog {
 public:
  struct Options {
    size_t loops = 1;
    int fd = 2;                         // not owned
    size_t max_buffer_bytes = 4 << 20;  // per loop
    size_t flush_bytes = 64 << 10;      // wakes the writer early
    Duration interval = std::chrono::milliseconds(100);
    Duration stop_patience = std::chrono::seconds(1);  // for a reader that takes nothing, at the end
  };
  struct Line {
    std::string_view request_id;
    std::string_view identity;
    std::string_view method;
    std::string_view path;  // without the query
    std::string_view model;
    std::string_view target_model;
    std::string_view pool;
    std::string_view endpoint;
    std::string_view fallback;
    TimePoint arrived_at = kNever;
    uint64_t bytes_out = 0;
    const Outcome* outcome = nullptr;
  };

  explicit AccessLog(const Options& options);
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  // From the loop's thread. `wall` is the time of the line.
  void append(size_t loop, WallTime wall, const Line& line);
  // Writes out what is there and ends the thread; the destructor calls it. A pipe whose reader takes nothing
  // is waited for up to `stop_patience`; what is left then is dropped and counted. Not thread-safe.
  void stop();
  uint64_t dropped_lines() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct Buffer {
    std::mutex mutex;
    std::string text;
    std::string line;  // where the next one is composed
  };

  void run();
  void write_out();
  // Waits until the descriptor takes bytes. False: it did not before the patience of the stop ended.
  bool wait_writable();

  Options options_;
  bool is_file_ = false;           // never full
  TimePoint give_up_at_ = kNever;  // set with `stop_`, under `mutex_`
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::atomic<bool> pending_{false};
  std::atomic<uint64_t> dropped_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool urgent_ = false;
  std::atomic<bool> stop_{false};  // written under `mutex_`
  std::string writing_;
  std::thread writer_;
};

}  // namespace penstock::director
