#include "io/loop.h"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "io/detail/loop_impl.h"

namespace penstock::io {

namespace {

thread_local Loop* current_loop = nullptr;

uint64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<uint64_t>(now.tv_nsec);
}

// The end of a spawned task: nobody awaits it.
struct Detached {
  struct promise_type {
    static void* operator new(size_t bytes) { return detail::allocate_frame(bytes); }
    static void operator delete(void* frame, size_t bytes) noexcept { detail::free_frame(frame, bytes); }
    Detached get_return_object() const noexcept { return {}; }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }
  };
};

Detached run_detached(std::atomic<uint32_t>& spawned, Task<void> task) {
  co_await std::move(task);
  spawned.fetch_sub(1, std::memory_order_release);
}

// A write to a closed socket is an error value here, never a signal.
void ignore_sigpipe() {
  static const bool done = [] {
    std::signal(SIGPIPE, SIG_IGN);
    return true;
  }();
  (void)done;
}

}  // namespace

namespace detail {

LoopImpl& impl_of(Loop& loop) {
  return *loop.impl_;
}

LoopImpl::LoopImpl(Loop& owner) : loop(owner) {}

// What was posted and never ran may own sockets, timers and tasks: it goes while there is a loop for them to
// leave, and so does what is posted by that.
LoopImpl::~LoopImpl() {
  for (;;) {
    std::vector<Callback> left;
    left.swap(running);
    running_at = 0;
    if (left.empty()) {
      const std::lock_guard<std::mutex> lock(posted_mutex);
      left.swap(posted);
    }
    if (left.empty()) break;
  }
}

void LoopImpl::run() {
  stopped = false;
  while (!stopped) {
    const bool busy = queue_first != nullptr || ends_first != nullptr || sockets.has_checks() ||
                      running_at < running.size() || any_posted.load(std::memory_order_acquire);
    if (sockets.turn(!busy)) on_alarm();
    run_posted();
    if (sockets.has_checks()) sockets.run_checks();
    if (queue_first != nullptr) drain();
    if (ends_first != nullptr) run_turn_ends();
  }
}

void LoopImpl::post(Callback function) {
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(posted_mutex);
    first = posted.empty();
    posted.push_back(std::move(function));
    any_posted.store(true, std::memory_order_release);
  }
  // The loop itself looks before it waits.
  if (first && !loop.on_loop_thread()) sockets.ring();
}

void LoopImpl::run_posted() {
  if (running_at == running.size()) {
    if (!any_posted.load(std::memory_order_acquire)) return;
    running.clear();
    running_at = 0;
    const std::lock_guard<std::mutex> lock(posted_mutex);
    running.swap(posted);
    any_posted.store(false, std::memory_order_relaxed);
  }
  // What a stop leaves behind is run when the loop runs again.
  while (running_at < running.size() && !stopped) {
    Callback function = std::move(running[running_at++]);
    function();
  }
}

void LoopImpl::arm(Timer& timer, uint64_t now_ns, Duration after) {
  const auto delay = static_cast<uint64_t>(after.count() > 0 ? after.count() : 0);
  const uint64_t tick = wheel.add(timer, TimerWheel::tick_after(now_ns + delay), TimerWheel::tick_at(now_ns));
  if (tick < alarm_tick && !in_wheel) set_alarm(tick);
}

void LoopImpl::set_alarm(uint64_t tick) {
  alarm_tick = tick;
  sockets.set_alarm(tick << TimerWheel::kTickBits);
}

void LoopImpl::on_alarm() {
  in_wheel = true;
  wheel.advance(TimerWheel::tick_at(clock_ns(CLOCK_MONOTONIC)));
  in_wheel = false;
  const uint64_t next = wheel.next_event();
  alarm_tick = TimerWheel::kNoTick;
  if (next != TimerWheel::kNoTick) set_alarm(next);
}

void LoopImpl::enqueue(Wait& wait) {
  wait.queue_previous_ = queue_last;
  wait.queue_next_ = nullptr;
  wait.queue_turn_ = queue_turn;
  (queue_last != nullptr ? queue_last->queue_next_ : queue_first) = &wait;
  queue_last = &wait;
}

void LoopImpl::dequeue(Wait& wait) noexcept {
  (wait.queue_previous_ != nullptr ? wait.queue_previous_->queue_next_ : queue_first) = wait.queue_next_;
  (wait.queue_next_ != nullptr ? wait.queue_next_->queue_previous_ : queue_last) = wait.queue_previous_;
  wait.queue_previous_ = wait.queue_next_ = nullptr;
}

void LoopImpl::drain() {
  // Those that are queued while this runs get a turn of their own, so that sockets are served in between.
  const uint64_t turn = queue_turn++;
  while (queue_first != nullptr && queue_first->queue_turn_ <= turn) {
    Wait& wait = *queue_first;
    dequeue(wait);
    wait.handle_.resume();
  }
}

void LoopImpl::run_turn_ends() {
  // One that is requested again while these run has its time after the next turn.
  size_t count = 0;
  for (const TurnEnd* end = ends_first; end != nullptr; end = end->next_) ++count;
  while (count-- > 0 && ends_first != nullptr) {
    TurnEnd& end = *ends_first;
    end.cancel();
    end.function_(end.context_);
  }
}

// --- TurnEnd ---

void TurnEnd::request() {
  if (due_) return;
  LoopImpl& impl = impl_of(*loop_);
  due_ = true;
  previous_ = impl.ends_last;
  next_ = nullptr;
  (previous_ != nullptr ? previous_->next_ : impl.ends_first) = this;
  impl.ends_last = this;
}

void TurnEnd::cancel() noexcept {
  if (!due_) return;
  LoopImpl& impl = impl_of(*loop_);
  due_ = false;
  (previous_ != nullptr ? previous_->next_ : impl.ends_first) = next_;
  (next_ != nullptr ? next_->previous_ : impl.ends_last) = previous_;
  previous_ = next_ = nullptr;
}

}  // namespace detail

// --- Timer ---

void Timer::arm(Duration after, Function function, void* context) {
  disarm();
  function_ = function;
  context_ = context;
  detail::impl_of(*loop_).arm(*this, clock_ns(CLOCK_MONOTONIC), after);
}

void Timer::arm_coarse(Duration after, Function function, void* context) {
  disarm();
  function_ = function;
  context_ = context;
  detail::impl_of(*loop_).arm(*this, clock_ns(CLOCK_MONOTONIC_COARSE), after);
}

void Timer::disarm() noexcept {
  if (slot_ != 0) detail::impl_of(*loop_).wheel.remove(*this);
}

// --- Wait ---

Wait::~Wait() {
  if (handle_ == nullptr) return;
  if (outcome_ == Outcome::kPending) {
    if (abandon_ != nullptr) abandon_(abandon_context_);
    return;
  }
  detail::LoopImpl& impl = detail::impl_of(*loop_);
  if (queue_previous_ != nullptr || queue_next_ != nullptr || impl.queue_first == this) impl.dequeue(*this);
}

void Wait::start(std::coroutine_handle<> handle, Duration timeout, const CancelToken& token) {
  handle_ = handle;
  if (timeout > Duration::zero()) {
    // Short waits are exact; deadlines of I/O are not worth a precise clock.
    if (timeout < std::chrono::seconds(1)) {
      timer_.arm(timeout, &Wait::timed_out, this);
    } else {
      timer_.arm_coarse(timeout, &Wait::timed_out, this);
    }
  }
  if (token.can_cancel()) cancel_.arm(token, &Wait::cancelled, this);
}

void Wait::settle(Outcome outcome) {
  outcome_ = outcome;
  timer_.disarm();
  cancel_.disarm();
}

void Wait::complete(Outcome outcome) {
  if (!waiting()) return;
  settle(outcome);
  handle_.resume();
}

void Wait::complete_later(Outcome outcome) {
  if (!waiting()) return;
  settle(outcome);
  detail::impl_of(*loop_).enqueue(*this);
}

void Wait::timed_out(void* self) {
  auto& wait = *static_cast<Wait*>(self);
  if (!wait.waiting()) return;
  if (wait.abandon_ != nullptr) wait.abandon_(wait.abandon_context_);
  wait.complete(Outcome::kTimedOut);
}

void Wait::cancelled(void* self) {
  auto& wait = *static_cast<Wait*>(self);
  if (!wait.waiting()) return;
  if (wait.abandon_ != nullptr) wait.abandon_(wait.abandon_context_);
  wait.complete_later(Outcome::kCancelled);
}

Status status_of(Wait::Outcome outcome, ErrorCode on_timeout, const char* doing) {
  switch (outcome) {
    case Wait::Outcome::kTimedOut:
      return Error{on_timeout, std::string(doing) + ": timed out"};
    case Wait::Outcome::kCancelled:
      return Error{ErrorCode::kCancelled, std::string(doing) + ": cancelled"};
    case Wait::Outcome::kPending:
    case Wait::Outcome::kReady:
      break;
  }
  return {};
}

// --- InStep ---

InStep::InStep(Loop& loop, Step step) : set_(detail::impl_of(loop).sockets), step_(step) {}

InStep::~InStep() {
  if (handle_) set_.dequeue(*this);
}

bool InStep::await_ready() const {
  return !set_.waits_for(step_);
}

void InStep::await_suspend(std::coroutine_handle<> handle) {
  handle_ = handle;
  set_.enqueue(*this);
}

// --- Loop ---

struct LoopRef::Gate {
  std::mutex mutex;
  Loop* loop;
};

bool LoopRef::post(Callback function) const {
  const std::lock_guard<std::mutex> lock(gate_->mutex);
  if (gate_->loop == nullptr) return false;
  gate_->loop->post(std::move(function));
  return true;
}

Loop::Loop(size_t index)
    : index_(index),
      impl_(std::make_unique<detail::LoopImpl>(*this)),
      gate_(std::make_shared<LoopRef::Gate>()) {
  gate_->loop = this;
  ignore_sigpipe();
}

Loop::~Loop() {
  const std::lock_guard<std::mutex> lock(gate_->mutex);
  gate_->loop = nullptr;
}

void Loop::run() {
  Loop* outer = std::exchange(current_loop, this);
  impl_->run();
  current_loop = outer;
}

void Loop::stop() {
  impl_->post([this] { impl_->stopped = true; });
}

void Loop::post(Callback function) {
  impl_->post(std::move(function));
}

TimePoint Loop::now() const {
  return TimePoint(Duration(static_cast<int64_t>(clock_ns(CLOCK_MONOTONIC))));
}

Loop* Loop::current() {
  return current_loop;
}

CancelToken Loop::shutdown_token() const {
  return impl_->shutdown.token();
}

void Loop::begin_shutdown() {
  impl_->shutdown.cancel();
}

void spawn(Loop& loop, Task<void> task) {
  loop.spawned_.fetch_add(1, std::memory_order_relaxed);
  if (loop.on_loop_thread()) {
    run_detached(loop.spawned_, std::move(task));
    return;
  }
  loop.post([&loop, task = std::move(task)]() mutable { run_detached(loop.spawned_, std::move(task)); });
}

// --- LoopGroup ---

struct LoopGroup::Threads {
  std::vector<std::thread> running;
  bool stopped = false;
};

LoopGroup::LoopGroup(size_t loops) : threads_(std::make_unique<Threads>()) {
  if (loops == 0) loops = std::thread::hardware_concurrency();
  if (loops == 0) loops = 1;
  for (size_t i = 0; i < loops; ++i) loops_.push_back(std::make_unique<Loop>(i));
}

LoopGroup::~LoopGroup() {
  stop();
}

void LoopGroup::start() {
  for (auto& loop : loops_) threads_->running.emplace_back([&loop = *loop] { loop.run(); });
}

void LoopGroup::stop(Duration grace) {
  if (threads_->stopped || threads_->running.empty()) return;
  threads_->stopped = true;
  // A loop that was not told yet may have tasks before it that begin only now.
  const auto told = std::make_shared<std::atomic<size_t>>(0);
  for (auto& loop : loops_) {
    loop->post([&loop = *loop, told] {
      loop.begin_shutdown();
      told->fetch_add(1, std::memory_order_release);
    });
  }
  const auto busy = [&] {
    return told->load(std::memory_order_acquire) != loops_.size() ||
           std::any_of(loops_.begin(), loops_.end(),
                       [](const auto& loop) { return loop->spawned_.load(std::memory_order_acquire) != 0; });
  };
  const auto deadline = std::chrono::steady_clock::now() + grace;
  while (busy() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (auto& loop : loops_) loop->stop();
  for (auto& thread : threads_->running) thread.join();
  threads_->running.clear();
}

Loop& LoopGroup::least_loaded() {
  Loop* best = loops_.front().get();
  uint32_t best_load = ~uint32_t{0};
  for (auto& loop : loops_) {
    const uint32_t load = loop->open_connections_.load(std::memory_order_relaxed) +
                          loop->open_streams_.load(std::memory_order_relaxed);
    if (load < best_load) {
      best_load = load;
      best = loop.get();
    }
  }
  return *best;
}

// --- Event ---

struct Event::Awaiter {
  Awaiter(Event& event, Duration timeout, const CancelToken& token)
      : node{&event, Wait(event.loop_)}, timeout(timeout), token(token) {}

  bool await_ready() const { return node.event->set_ || token.cancelled(); }
  void await_suspend(std::coroutine_handle<> handle) {
    Event& event = *node.event;
    node.next = event.first_;
    if (node.next != nullptr) node.next->previous = &node;
    event.first_ = &node;
    node.wait.on_abandon(
        [](void* context) {
          auto& self = *static_cast<Node*>(context);
          self.event->unlink(self);
        },
        &node);
    node.wait.start(handle, timeout, token);
  }
  Wait::Outcome await_resume() const {
    if (node.wait.outcome() != Wait::Outcome::kPending) return node.wait.outcome();
    return node.event->set_ ? Wait::Outcome::kReady : Wait::Outcome::kCancelled;
  }

  Node node;
  Duration timeout;
  const CancelToken& token;
};

void Event::unlink(Node& node) {
  (node.previous != nullptr ? node.previous->next : first_) = node.next;
  if (node.next != nullptr) node.next->previous = node.previous;
  node.previous = node.next = nullptr;
}

void Event::set() {
  set_ = true;
  while (first_ != nullptr) {
    Node& node = *first_;
    unlink(node);
    node.wait.complete_later(Wait::Outcome::kReady);
  }
}

Task<Status> Event::wait(Duration timeout, CancelToken token) {
  Awaiter awaiter(*this, timeout, token);
  const Wait::Outcome outcome = co_await awaiter;
  co_return status_of(outcome, ErrorCode::kRequestTimeout, "waiting");
}

// --- blocking work ---

namespace {

class BlockingThreads {
 public:
  static constexpr size_t kThreads = 4;
  static constexpr size_t kWaiting = 1024;

  bool submit(Callback job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (jobs_.size() >= kWaiting) return false;
    jobs_.push_back(std::move(job));
    if (idle_ == 0 && threads_ < kThreads) {
      ++threads_;
      std::thread([this] { run(); }).detach();
    }
    ready_.notify_one();
    return true;
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      while (jobs_.empty()) {
        ++idle_;
        ready_.wait(lock);
        --idle_;
      }
      Callback job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = Callback();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Callback> jobs_;
  size_t threads_ = 0;
  size_t idle_ = 0;
};

}  // namespace

bool submit_blocking(Callback job) {
  // Never destroyed: a resolver may hang beyond main().
  static auto* threads = new BlockingThreads();
  return threads->submit(std::move(job));
}

}  // namespace penstock::io
