#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/result.h"
#include "io/loop.h"

namespace penstock::io {

// Runs `function`, which gives a Result, on the loop's thread and waits for it; from outside the loop.
// kServiceUnavailable when the loop doesn't answer in time: what it gives later is dropped, so `function`
// must own what it uses or use what outlives the loop.
template <typename F, typename R = std::invoke_result_t<F&>>
R run_on(Loop& loop, F function, Duration timeout = std::chrono::seconds(5)) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable done;
    std::optional<R> result;
  };
  const auto shared = std::make_shared<Shared>();
  loop.post([shared, function = std::move(function)]() mutable {
    R result = function();
    const std::lock_guard lock(shared->mutex);
    shared->result = std::move(result);
    shared->done.notify_one();
  });
  std::unique_lock lock(shared->mutex);
  if (!shared->done.wait_for(lock, timeout, [&] { return shared->result.has_value(); })) {
    return Error{ErrorCode::kServiceUnavailable, "the event loop did not answer in time"};
  }
  return std::move(*shared->result);
}

}  // namespace penstock::io
