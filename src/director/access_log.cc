#include "director/access_log.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/strings.h"

namespace penstock::director {

namespace {

// Names that clients choose are written so far and no further.
constexpr size_t kMaxTextBytes = 256;

// Writes one line into memory that has room for all of it.
class Composer {
 public:
  explicit Composer(char* to) : to_(to) {}
  char* end() const { return to_; }

  void raw(std::string_view text) {
    std::memcpy(to_, text.data(), text.size());
    to_ += text.size();
  }
  // `name` is the whole of `,"name":`, here and below.
  void text(std::string_view name, std::string_view value) {
    raw(name);
    char* const from = to_;
    *to_++ = '"';
    for (const char c : value) {
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e || c == '"' ||
          c == '\\') {
        std::string quoted;
        append_json_quoted(quoted, value);
        to_ = from;
        raw(quoted);
        return;
      }
      *to_++ = c;
    }
    *to_++ = '"';
  }
  void number(std::string_view name, uint64_t value) {
    raw(name);
    to_ = std::to_chars(to_, to_ + kMaxNumberBytes, value).ptr;
  }
  // `whole` and `places` digits of `fraction`.
  void fixed(std::string_view name, uint64_t whole, uint32_t fraction, size_t places) {
    number(name, whole);
    *to_ = '.';
    for (size_t i = places; i > 0; --i, fraction /= 10) to_[i] = static_cast<char>('0' + fraction % 10);
    to_ += places + 1;
  }
  // Milliseconds with three places.
  void millis(std::string_view name, Duration d) {
    const auto us = static_cast<uint64_t>(
        std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::microseconds>(d).count()));
    fixed(name, us / 1000, static_cast<uint32_t>(us % 1000), 3);
  }

  // Of what text() writes of a value, and of all the rest of a line.
  static size_t max_text(size_t bytes) { return 6 * bytes + 2; }
  static constexpr size_t kMaxNumberBytes = 20;
  static constexpr size_t kMaxRest = 20 * 24 + 16 * (kMaxNumberBytes + 8);

 private:
  char* to_;
};

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
    const std::string_view request_id = line.request_id.substr(0, kMaxTextBytes);
    const std::string_view identity = line.identity.substr(0, kMaxTextBytes);
    const std::string_view path = line.path.substr(0, kMaxTextBytes);
    const std::string_view model = line.model.substr(0, kMaxTextBytes);
    const std::string_view target_model = line.target_model.substr(0, kMaxTextBytes);
    size_t room = Composer::kMaxRest;
    for (const std::string_view value : {request_id, identity, line.method, path, model, target_model,
                                         line.pool, line.endpoint, outcome.reason, line.fallback}) {
      room += Composer::max_text(value.size());
    }
    if (buffer.line.size() < room) buffer.line.resize(room);
    Composer to(buffer.line.data());
    to.fixed(R"({"level":"info","ts":)", static_cast<uint64_t>(us / 1000000),
             static_cast<uint32_t>(us % 1000000), 6);
    to.raw(R"(,"msg":"request")");
    to.text(R"(,"request_id":)", request_id);
    if (!identity.empty()) to.text(R"(,"identity":)", identity);
    to.text(R"(,"method":)", line.method);
    to.text(R"(,"path":)", path);
    to.number(R"(,"status":)", static_cast<uint64_t>(outcome.status));
    to.text(R"(,"model":)", model);
    to.text(R"(,"target_model":)", target_model);
    to.text(R"(,"pool":)", line.pool);
    to.text(R"(,"endpoint":)", line.endpoint);
    to.number(R"(,"tokens_in":)", outcome.prompt_tokens);
    to.number(R"(,"tokens_cached":)", outcome.cached_tokens);
    to.number(R"(,"tokens_out":)", outcome.output_tokens);
    if (outcome.first_token_at != kNever)
      to.millis(R"(,"ttft_ms":)", outcome.first_token_at - line.arrived_at);
    to.millis(R"(,"total_ms":)", outcome.ended_at - line.arrived_at);
    to.number(R"(,"bytes_out":)", line.bytes_out);
    to.number(R"(,"attempts":)", outcome.attempts);
    to.text(R"(,"reason":)", outcome.reason);
    to.text(R"(,"fallback":)", line.fallback);
    to.raw("}\n");
    out.append(buffer.line.data(), static_cast<size_t>(to.end() - buffer.line.data()));
    size = out.size();
  }
  const bool urgent = size >= options_.flush_bytes;
  // Said once; what finds it said writes nothing to what the loops share.
  const bool said =
      pending_.load(std::memory_order_acquire) || pending_.exchange(true, std::memory_order_acq_rel);
  if (!said || urgent) {
    if (urgent) {
      const std::lock_guard lock(mutex_);
      if (urgent_) return;
      urgent_ = true;
    }
    wake_.notify_one();
  }
}

void AccessLog::run() {
#ifdef SCHED_BATCH
  // Never in the way of a loop that has just been woken.
  const sched_param none{};
  (void)::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &none);
#endif
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
