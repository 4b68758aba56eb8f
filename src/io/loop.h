#pragma once

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "io/callback.h"
#include "io/cancel.h"
#include "io/task.h"

namespace penstock::io {

class Loop;
namespace detail {
struct LoopImpl;
class TimerWheel;
LoopImpl& impl_of(Loop& loop);
}  // namespace detail

// A one-shot timer of one loop. Arming and disarming are a few nanoseconds (a wheel, ticks of 2^18 ns);
// it fires 0–0.3 ms after its time plus the loop's own lateness, never before. Not movable while armed;
// unregisters itself when destroyed.
class Timer {
 public:
  using Function = void (*)(void* context);
  explicit Timer(Loop& loop) : loop_(&loop) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() { disarm(); }

  // Replaces an earlier arming. `function` runs on the loop, from its top.
  void arm(Duration after, Function function, void* context);
  // For deadlines of I/O: time is read from a clock that may be up to 4 ms behind, so it costs less.
  void arm_coarse(Duration after, Function function, void* context);
  void disarm() noexcept;
  bool armed() const { return slot_ != 0; }

 private:
  friend struct detail::LoopImpl;
  friend class detail::TimerWheel;
  Loop* loop_;
  Timer* previous_ = nullptr;
  Timer* next_ = nullptr;
  uint64_t tick_ = 0;
  uint32_t slot_ = 0;  // place in the wheel plus one; 0: not armed
  Function function_ = nullptr;
  void* context_ = nullptr;
};

// One suspended coroutine that is resumed once: by complete() (from the loop's top, or by what it waits
// for), by its deadline, or by its token. Lives in the awaiter, so in the coroutine's frame; when that
// frame is destroyed early it unregisters from everything.
class Wait {
 public:
  enum class Outcome : uint8_t { kPending, kReady, kTimedOut, kCancelled };

  explicit Wait(Loop& loop) : loop_(&loop), timer_(loop) {}
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  ~Wait();

  // Registers. `timeout` zero: none. REQUIRES: not started before.
  void start(std::coroutine_handle<> handle, Duration timeout, const CancelToken& token);
  bool waiting() const { return handle_ != nullptr && outcome_ == Outcome::kPending; }
  // Resumes the coroutine inside this call. No effect unless waiting().
  void complete(Outcome outcome);
  // Resumes it on the loop's next turn. No effect unless waiting().
  void complete_later(Outcome outcome);
  Outcome outcome() const { return outcome_; }
  // Makes it startable again.
  void rearm() {
    handle_ = nullptr;
    outcome_ = Outcome::kPending;
  }
  // Runs when the wait ends other than by complete(): to leave the list of what was waited for.
  void on_abandon(void (*function)(void*), void* context) {
    abandon_ = function;
    abandon_context_ = context;
  }

 private:
  friend struct detail::LoopImpl;
  static void timed_out(void* self);
  static void cancelled(void* self);
  void settle(Outcome outcome);

  Loop* loop_;
  Timer timer_;
  CancelCallback cancel_;
  std::coroutine_handle<> handle_;
  Outcome outcome_ = Outcome::kPending;
  Wait* queue_previous_ = nullptr;
  Wait* queue_next_ = nullptr;
  uint64_t queue_turn_ = 0;  // the loop's when it was queued
  void (*abandon_)(void*) = nullptr;
  void* abandon_context_ = nullptr;
};

// Turns the end of a wait into a Status: ready is ok, a deadline is `on_timeout`.
Status status_of(Wait::Outcome outcome, ErrorCode on_timeout, const char* doing);

class SleepAwaiter {
 public:
  SleepAwaiter(Loop& loop, Duration duration, CancelToken token)
      : wait_(loop), duration_(duration), token_(std::move(token)) {}
  bool await_ready() const { return token_.cancelled(); }
  void await_suspend(std::coroutine_handle<> handle) {
    wait_.start(handle, duration_ > Duration::zero() ? duration_ : Duration(1), token_);
  }
  // False when cancelled.
  bool await_resume() const { return !token_.cancelled(); }

 private:
  Wait wait_;
  Duration duration_;
  CancelToken token_;
};

// See Loop::yield().
class YieldAwaiter {
 public:
  explicit YieldAwaiter(Loop& loop) : wait_(loop) {}
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> handle) {
    wait_.start(handle, Duration::zero(), CancelToken());
    wait_.complete_later(Wait::Outcome::kReady);
  }
  void await_resume() const {}

 private:
  Wait wait_;
};

// What one coroutine does between two of its waits when it never has to wait: bytes moved, and system calls
// as if each moved 4 KiB. Over kBytes it owes the loop's others a turn.
class Turn {
 public:
  static constexpr size_t kBytes = 256 * 1024;
  // True when it is time to yield; starts over then.
  bool spend(size_t bytes) {
    spent_ += bytes + 4096;
    if (spent_ < kBytes) return false;
    spent_ = 0;
    return true;
  }
  // It has waited: the others had their turn.
  void restart() { spent_ = 0; }

 private:
  size_t spent_ = 0;
};

// A way to post to a loop that may have ended meanwhile. Thread-safe.
class LoopRef {
 public:
  // False, and nothing happens, when the loop is gone.
  bool post(Callback function) const;

 private:
  friend class Loop;
  struct Gate;
  explicit LoopRef(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  std::shared_ptr<Gate> gate_;
};

// One thread's event loop. Everything made on it (sockets, timers, tasks, tokens) is used on its thread
// only; post(), stop(), index() and the counters are for any thread.
class Loop {
 public:
  explicit Loop(size_t index = 0);
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop();

  // Runs on the calling thread until stop(). May be called again afterwards.
  void run();
  void stop();
  // Runs `function` on the loop's thread, never inside this call. Unbounded: for rare events, not for data.
  void post(Callback function);

  LoopRef ref() const { return LoopRef(gate_); }

  TimePoint now() const;
  size_t index() const { return index_; }
  bool on_loop_thread() const { return current() == this; }
  // The loop running on this thread, or nullptr.
  static Loop* current();

  // co_await loop.sleep(d, token): false when cancelled.
  SleepAwaiter sleep(Duration duration, CancelToken token = {}) {
    return {*this, duration, std::move(token)};
  }
  // co_await loop.yield(): goes on after the loop's sockets, timers and other tasks had their turn.
  YieldAwaiter yield() { return YieldAwaiter(*this); }
  // Fires when the loop is asked to end by LoopGroup::stop(): long-running tasks wait with it.
  CancelToken shutdown_token() const;

  // Connections and exchanges open on this loop: what new connections are spread by.
  std::atomic<uint32_t>& open_connections() { return open_connections_; }
  std::atomic<uint32_t>& open_streams() { return open_streams_; }
  // Tasks spawned and not yet ended.
  uint32_t spawned_tasks() const { return spawned_.load(std::memory_order_relaxed); }

 private:
  friend struct detail::LoopImpl;
  friend class LoopGroup;
  friend detail::LoopImpl& detail::impl_of(Loop& loop);
  friend void spawn(Loop& loop, Task<void> task);
  void begin_shutdown();

  size_t index_;
  std::atomic<uint32_t> open_connections_{0};
  std::atomic<uint32_t> open_streams_{0};
  std::atomic<uint32_t> spawned_{0};
  std::unique_ptr<detail::LoopImpl> impl_;
  std::shared_ptr<LoopRef::Gate> gate_;
};

// Runs the task on its own: on the loop's thread it starts inside this call, from elsewhere it is posted.
// An exception out of it ends the process.
void spawn(Loop& loop, Task<void> task);

// A loop per core, each on its own thread.
class LoopGroup {
 public:
  // 0: one per core.
  explicit LoopGroup(size_t loops = 0);
  LoopGroup(const LoopGroup&) = delete;
  LoopGroup& operator=(const LoopGroup&) = delete;
  ~LoopGroup();  // stops and joins

  void start();
  // Fires every loop's shutdown token, waits up to `grace` for spawned tasks to end, then ends the loops.
  // From outside the loops. Idempotent.
  void stop(Duration grace = std::chrono::seconds(5));
  size_t size() const { return loops_.size(); }
  Loop& at(size_t index) { return *loops_[index]; }
  // The loop with the fewest open connections and streams. Any thread.
  Loop& least_loaded();

 private:
  struct Threads;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::unique_ptr<Threads> threads_;
};

// A flag that coroutines of one loop wait for. set() resumes all of them on the loop's next turn.
class Event {
 public:
  explicit Event(Loop& loop) : loop_(loop) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void set();
  void reset() { set_ = false; }
  bool is_set() const { return set_; }
  // Ok when set; kRequestTimeout after `timeout` (zero: never); kCancelled.
  Task<Status> wait(Duration timeout = Duration::zero(), CancelToken token = {});

 private:
  struct Node {
    Event* event;
    Wait wait;
    Node* previous = nullptr;
    Node* next = nullptr;
  };
  struct Awaiter;
  void unlink(Node& node);
  Loop& loop_;
  bool set_ = false;
  Node* first_ = nullptr;
};

// Gives what the calling thread keeps of I/O buffers back to the heap: for idle times.
void release_recycled_buffers();

// Threads for work that blocks (files, the resolver, password hashing). `job` runs on one of them; jobs
// beyond the bound (1,024 waiting) are refused: false. At most 4 threads, shared by the process's loops.
bool submit_blocking(Callback job);

// Runs `function` on a blocking thread and gives its value on the loop. kCancelled: the value is dropped
// when it comes; kRequestTimeout after `timeout` (zero: none); kResourceExhausted when too many wait.
// `function` is moved from. It has to be a variable: GCC 12 destroys a closure that is a temporary of a
// co_await expression twice (so beware of them everywhere).
template <typename F, typename T = std::invoke_result_t<F&>>
Task<Result<T>> run_blocking(Loop& loop, F& function, Duration timeout = Duration::zero(),
                             const CancelToken& token = {});

namespace detail {
template <typename T>
struct BlockingResult {
  explicit BlockingResult(Loop& loop) : done(loop) {}
  Event done;
  std::optional<T> value;
};
// `accepted`: the job was taken and will set `shared` on the loop.
template <typename T>
Task<Result<T>> await_blocking(std::shared_ptr<BlockingResult<T>> shared, bool accepted, Duration timeout,
                               CancelToken token) {
  if (!accepted) co_return Error{ErrorCode::kResourceExhausted, "too many blocking jobs are waiting"};
  Status status = co_await shared->done.wait(timeout, token);
  if (!status.ok()) co_return std::move(status).error();
  co_return std::move(*shared->value);
}
}  // namespace detail

// The job starts here, not when the task is awaited.
template <typename F, typename T>
Task<Result<T>> run_blocking(Loop& loop, F& function, Duration timeout, const CancelToken& token) {
  auto shared = std::make_shared<detail::BlockingResult<T>>(loop);
  const bool accepted = submit_blocking([shared, home = loop.ref(), job = std::move(function)]() mutable {
    auto value = std::make_shared<T>(job());
    home.post([shared = std::move(shared), value = std::move(value)] {
      shared->value.emplace(std::move(*value));
      shared->done.set();
    });
  });
  return detail::await_blocking<T>(std::move(shared), accepted, timeout, token);
}

namespace detail {
template <typename T>
Task<void> store_and_stop(Loop& loop, Task<T> task, std::optional<T>& out) {
  out.emplace(co_await std::move(task));
  loop.stop();
}
inline Task<void> await_and_stop(Loop& loop, Task<void> task) {
  co_await std::move(task);
  loop.stop();
}
}  // namespace detail

// Runs a loop that nobody runs on this thread until the task has ended: command-line tools and tests.
template <typename T>
T block_on(Loop& loop, Task<T> task) {
  if constexpr (std::is_void_v<T>) {
    loop.post([&] { spawn(loop, detail::await_and_stop(loop, std::move(task))); });
    loop.run();
  } else {
    std::optional<T> out;
    loop.post([&] { spawn(loop, detail::store_and_stop(loop, std::move(task), out)); });
    loop.run();
    return std::move(*out);
  }
}

}  // namespace penstock::io
