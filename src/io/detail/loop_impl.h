#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "io/callback.h"
#include "io/detail/timer_wheel.h"
#include "io/loop.h"
#include "io/step.h"

namespace penstock::io::detail {

class Socket;
class QueuedWrite;

// A descriptor that is closed with its owner.
class OwnedFd {
 public:
  // Throws std::system_error when fd < 0: a loop can't be had without its descriptors.
  explicit OwnedFd(int fd);
  ~OwnedFd();
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// What a loop waits for: one epoll set with its sockets, an alarm clock and a bell for other threads. All
// are registered once for life and edge-triggered, sockets with the peer's end told apart, so a wait for one
// of them costs no system call and a turn of the loop costs exactly one. The loop's thread only, but for
// ring().
class SocketSet {
 public:
  SocketSet();

  // 0 or errno. From then on the socket is told of every edge, until its descriptor is closed.
  int add(int fd, Socket* socket);
  // Frees the socket, at the end of the running batch of events when there is one. REQUIRES: it is closed.
  void bury(Socket* socket);
  // Calls socket->check() on the loop's next turn.
  void check_later(Socket* socket);
  void forget_check(Socket* socket);

  // Waits for events if `block`, and tells the sockets. True when the alarm went off.
  bool turn(bool block);

  // A batch, of at most kBatch events and about kBatchBytes received (what is parsed, hashed and sent on step
  // by step should still be in the cache), goes on step by step (io/step.h). True while there is one that has
  // not come to this step yet.
  bool waits_for(Step step) const { return batching_ && static_cast<size_t>(step) >= steps_begun_; }
  void enqueue(InStep& wait);
  void dequeue(InStep& wait) noexcept;
  // The last step, writing: a peer that sleeps is woken once for all that is written to it. True while there
  // is a batch to wait for.
  bool queues_writes() const { return batching_; }
  void note_received(size_t bytes) { received_ += bytes; }
  void enqueue(QueuedWrite& write);
  void dequeue(QueuedWrite& write) noexcept;
  bool has_checks() const { return !checks_.empty(); }
  void run_checks();
  // In nanoseconds of CLOCK_MONOTONIC. Replaces the one before.
  void set_alarm(uint64_t at_ns);
  // Ends a blocked turn(), or the next one. Any thread.
  void ring();

 private:
  OwnedFd set_;
  OwnedFd alarm_;
  OwnedFd bell_;
  static constexpr int kBatch = 32;
  static constexpr size_t kBatchBytes = 128 * 1024;
  template <typename T>
  struct Queue {
    void push(T& wait);
    void remove(T& wait) noexcept;
    T* first = nullptr;
    T* last = nullptr;
  };
  void finish_batch();

  bool dispatching_ = false;
  bool batching_ = false;
  size_t steps_begun_ = 0;
  size_t received_ = 0;  // by the batch
  std::array<Queue<InStep>, kSteps> steps_;
  Queue<QueuedWrite> writes_;
  std::vector<Socket*> buried_;
  std::vector<Socket*> checks_;   // to be run next turn
  std::vector<Socket*> running_;  // of this turn
};

// Work to be done once at the end of the running turn of the loop, after everything that the turn woke: what
// was queued by many is then sent by one system call. Unregisters itself when destroyed.
class TurnEnd {
 public:
  using Function = void (*)(void* context);
  TurnEnd(Loop& loop, Function function, void* context)
      : loop_(&loop), function_(function), context_(context) {}
  TurnEnd(const TurnEnd&) = delete;
  TurnEnd& operator=(const TurnEnd&) = delete;
  ~TurnEnd() { cancel(); }

  // No effect when it is due already. On the loop's thread.
  void request();
  void cancel() noexcept;

 private:
  friend struct LoopImpl;
  Loop* loop_;
  Function function_;
  void* context_;
  TurnEnd* previous_ = nullptr;
  TurnEnd* next_ = nullptr;
  bool due_ = false;
};

// What a Loop is made of: its sockets, the timer wheel, what was posted to it, and the waits to resume next
// turn.
struct LoopImpl {
  explicit LoopImpl(Loop& owner);
  ~LoopImpl();

  void run();
  // Any thread.
  void post(Callback function);
  void run_posted();
  void arm(Timer& timer, uint64_t now_ns, Duration after);
  void set_alarm(uint64_t tick);
  void on_alarm();
  void enqueue(Wait& wait);
  void dequeue(Wait& wait) noexcept;
  void drain();
  void run_turn_ends();

  Loop& loop;
  std::mutex posted_mutex;
  std::vector<Callback> posted;
  std::atomic<bool> any_posted{false};
  std::vector<Callback> running;  // taken from `posted`; those before `running_at` have run
  size_t running_at = 0;
  bool stopped = false;
  SocketSet sockets;
  TimerWheel wheel;
  uint64_t alarm_tick = TimerWheel::kNoTick;
  bool in_wheel = false;  // advance() is running: it sets the alarm afterwards
  Wait* queue_first = nullptr;
  Wait* queue_last = nullptr;
  TurnEnd* ends_first = nullptr;
  TurnEnd* ends_last = nullptr;
  uint64_t queue_turn = 0;
  CancelSource shutdown;
};

}  // namespace penstock::io::detail
