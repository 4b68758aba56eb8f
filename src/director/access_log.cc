#include "director/access_log.h"

#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/strings.h"

namespace penstock::director {

namespace {

// Names that clients choose are written so far and no further.
constexpr size_t kMaxTextBytes = 256;

void text(std::string& out, std::string_view name, std::string_view value) {
  out += ",\"";
  out += name;
  out += "\":";
  append_json_quoted(out, value);
}
void number(std::string& out, std::string_view name, uint64_t value) {
  out += ",\"";
  out += name;
  out += "\":";
  char digits[24];
  const auto end = fmt::format_to(digits, "{}", value);
  out.append(digits, static_cast<size_t>(end - digits));
}
// Milliseconds with three places, in integer arithmetic.
void millis(std::string& out, std::string_view name, Duration d) {
  const int64_t us = std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::microseconds>(d).count());
  out += ",\"";
  out += name;
  out += "\":";
  char digits[32];
  const auto end = fmt::format_to(digits, "{}.{:03}", us / 1000, us % 1000);
  out.append(digits, static_cast<size_t>(end - digits));
}

}  // namespace

AccessLog::AccessLog(const Options& options) : options_(options) {
  struct stat about{};
  is_file_ = ::fstat(options_.fd, &about) == 0 && S_ISREG(about.st_mode);
  for (size_t i = 0; i < std::max<size_t>(1, options.loops); ++i) {
    buffers_.push_back(std::make_unique<Buffer>());
  }
  writer_ = std::thread([this] { run(); });
}

AccessLog::~AccessLog() {
  stop();
}

void AccessLog::stop() {
  if (!writer_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    give_up_at_ = std::chrono::steady_clock::now() + options_.stop_patience;
    stop_ = true;
  }
  wake_.notify_one();
  writer_.join();
}

void AccessLog::append(size_t loop, WallTime wall, const Line& line) {
  Buffer& buffer = *buffers_[loop % buffers_.size()];
  size_t size = 0;
  {
    const std::lock_guard lock(buffer.mutex);
    std::string& out = buffer.text;
    if (out.size() >= options_.max_buffer_bytes) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    const Outcome& outcome = *line.outcome;
    const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(wall.time_since_epoch()).count();
    fmt::format_to(std::back_inserter(out), "{{\"level\":\"info\",\"ts\":{}.{:06},\"msg\":\"request\"",
                   us / 1000000, us % 1000000);
    text(out, "request_id", line.request_id.substr(0, kMaxTextBytes));
    if (!line.identity.empty()) text(out, "identity", line.identity.substr(0, kMaxTextBytes));
    text(out, "method", line.method);
    text(out, "path", line.path.substr(0, kMaxTextBytes));
    number(out, "status", static_cast<uint64_t>(outcome.status));
    text(out, "model", line.model.substr(0, kMaxTextBytes));
    text(out, "target_model", line.target_model.substr(0, kMaxTextBytes));
    text(out, "pool", line.pool);
    text(out, "endpoint", line.endpoint);
    number(out, "tokens_in", outcome.prompt_tokens);
    number(out, "tokens_cached", outcome.cached_tokens);
    number(out, "tokens_out", outcome.output_tokens);
    if (outcome.first_token_at != kNever) millis(out, "ttft_ms", outcome.first_token_at - line.arrived_at);
    millis(out, "total_ms", outcome.ended_at - line.arrived_at);
    number(out, "bytes_out", line.bytes_out);
    number(out, "attempts", outcome.attempts);
    text(out, "reason", outcome.reason);
    text(out, "fallback", line.fallback);
    out += "}\n";
    size = out.size();
  }
  const bool urgent = size >= options_.flush_bytes;
  if (!pending_.exchange(true, std::memory_order_acq_rel) || urgent) {
    if (urgent) {
      const std::lock_guard lock(mutex_);
      if (urgent_) return;
      urgent_ = true;
    }
    wake_.notify_one();
  }
}

void AccessLog::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    // A wake-up between the test and the wait is only late by one interval of an idle process.
    wake_.wait_for(lock, std::chrono::seconds(1),
                   [this] { return stop_ || pending_.load(std::memory_order_acquire); });
    if (!stop_ && !urgent_) wake_.wait_for(lock, options_.interval, [this] { return stop_ || urgent_; });
    urgent_ = false;
    pending_.store(false, std::memory_order_release);
    lock.unlock();
    write_out();
    lock.lock();
  }
  lock.unlock();
  write_out();
}

bool AccessLog::wait_writable() {
  constexpr int kTurnMs = 50;  // how soon a stop is noticed
  for (;;) {
    pollfd entry{options_.fd, POLLOUT, 0};
    const int ready = ::poll(&entry, 1, kTurnMs);
    // A broken descriptor is the next write's to tell.
    if (ready > 0 || (ready < 0 && errno != EINTR)) return true;
    if (!stop_) continue;
    const std::lock_guard lock(mutex_);
    if (std::chrono::steady_clock::now() >= give_up_at_) return false;
  }
}

void AccessLog::write_out() {
  for (const auto& buffer : buffers_) {
    writing_.clear();
    {
      const std::lock_guard lock(buffer->mutex);
      writing_.swap(buffer->text);
    }
    std::string_view rest = writing_;
    while (!rest.empty()) {
      // A pipe that polls writable takes PIPE_BUF bytes at once; with more the write itself would wait.
      const size_t size = is_file_ ? rest.size() : std::min<size_t>(rest.size(), PIPE_BUF);
      const bool writable = is_file_ || wait_writable();
      const ssize_t wrote = writable ? ::write(options_.fd, rest.data(), size) : -1;
      if (wrote > 0) {
        rest.remove_prefix(static_cast<size_t>(wrote));
      } else if (!writable || (wrote < 0 && errno != EINTR && errno != EAGAIN)) {
        dropped_.fetch_add(static_cast<uint64_t>(std::count(rest.begin(), rest.end(), '\n')),
                           std::memory_order_relaxed);
        break;
      }
    }
  }
}

}  // namespace penstock::director
