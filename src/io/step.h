#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>

namespace penstock::io {

class Loop;
namespace detail {
class SocketSet;
}

// The steps of serving a message, in their order. A loop that has got a batch of events takes each step for
// all of them before it goes on to the next: the code of one step fits the processor's instruction cache, the
// code of all of them is several times as large and would be fetched anew for every message. The last step,
// after these, is to write (Socket::write_soon()).
enum class Step : uint8_t {
  kRequest,  // a request has been received: its head, where it goes
  kDecide,   // its endpoint is chosen
  kForward,  // it is composed for the endpoint
  kAnswer,   // an answer has been received: its head
  kPass,     // its body is read and composed for the client
};
inline constexpr size_t kSteps = 5;

// co_await InStep(loop, step): goes on with that step of the running batch; at once when there is none, or
// when the batch has come to that step already. Anything may have happened to a connection meanwhile, as
// after every wait; no time passes but that of the batch, which is bounded. On the loop's thread only; a
// coroutine that is destroyed while it waits leaves the batch. The loop must outlive it.
class InStep {
 public:
  InStep(Loop& loop, Step step);
  InStep(const InStep&) = delete;
  InStep& operator=(const InStep&) = delete;
  ~InStep();

  bool await_ready() const;
  void await_suspend(std::coroutine_handle<> handle);
  void await_resume() const {}

 private:
  friend class detail::SocketSet;
  detail::SocketSet& set_;
  std::coroutine_handle<> handle_;  // set while queued
  InStep* previous_ = nullptr;
  InStep* next_ = nullptr;
  const Step step_;
};

}  // namespace penstock::io
