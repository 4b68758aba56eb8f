#pragma once

#include <coroutine>
#include <cstddef>
#include <exception>
#include <optional>
#include <utility>

namespace penstock::io {

namespace detail {
// Coroutine frames come from free lists of the calling thread: after warm-up no call reaches the heap.
void* allocate_frame(size_t bytes);
void free_frame(void* frame, size_t bytes) noexcept;

struct PromiseBase {
  static void* operator new(size_t bytes) { return allocate_frame(bytes); }
  static void operator delete(void* frame, size_t bytes) noexcept { free_frame(frame, bytes); }

  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    template <typename Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> self) const noexcept {
      std::coroutine_handle<> next = self.promise().continuation;
      return next ? next : std::noop_coroutine();
    }
    void await_resume() const noexcept {}
  };
  std::suspend_always initial_suspend() const noexcept { return {}; }
  FinalAwaiter final_suspend() const noexcept { return {}; }
  void unhandled_exception() noexcept { exception = std::current_exception(); }

  std::coroutine_handle<> continuation;
  std::exception_ptr exception;
};
}  // namespace detail

// A coroutine that starts when awaited and gives one T. All of its life is on one loop's thread. Awaiting
// one that ends without waiting suspends nothing and costs no stack, so loops over ready data may run
// for ever. Destroying an unfinished Task unwinds what it awaits. Exceptions pass through to the awaiter,
// for the standard library's sake; our own failures are values.
// A lambda that is a coroutine must outlive it: its captures live in the lambda, not in the frame.
// With GCC 12, temporaries of aggregate or closure type inside a co_await expression (as arguments, by value
// or by reference, also as default arguments) are destroyed twice: name them first, or give the type a
// constructor. Arguments of class types with constructors are fine.
template <typename T = void>
class [[nodiscard]] Task {
 public:
  struct promise_type : detail::PromiseBase {
    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    template <typename U>
    void return_value(U&& value) {
      result.emplace(std::forward<U>(value));
    }
    std::optional<T> result;
  };

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      if (handle_) handle_.destroy();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> awaiter) {
    handle_.resume();
    if (handle_.done()) return false;
    handle_.promise().continuation = awaiter;
    return true;
  }
  T await_resume() {
    auto& promise = handle_.promise();
    if (promise.exception) std::rethrow_exception(promise.exception);
    return std::move(*promise.result);
  }

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

template <>
class [[nodiscard]] Task<void> {
 public:
  struct promise_type : detail::PromiseBase {
    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    void return_void() const noexcept {}
  };

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      if (handle_) handle_.destroy();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> awaiter) {
    handle_.resume();
    if (handle_.done()) return false;
    handle_.promise().continuation = awaiter;
    return true;
  }
  void await_resume() {
    if (handle_.promise().exception) std::rethrow_exception(handle_.promise().exception);
  }

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace penstock::io
