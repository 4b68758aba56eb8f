#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "io/detail/timer_wheel.h"
#include "io/loop.h"

namespace penstock::io::detail {

namespace asio = boost::asio;

// What a Loop is made of: one io_context without reactor locks (one thread runs it; only posting is for
// others), the timer wheel with one Asio timer as its alarm, and the waits to resume next turn.
struct LoopImpl {
  explicit LoopImpl(Loop& owner);
  ~LoopImpl();

  void arm(Timer& timer, uint64_t now_ns, Duration after);
  void set_alarm(uint64_t tick);
  void on_alarm();
  void enqueue(Wait& wait);
  void dequeue(Wait& wait) noexcept;
  void drain();

  Loop& loop;
  asio::io_context context;
  asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>,
                             asio::io_context::executor_type>
      alarm;
  TimerWheel wheel;
  uint64_t alarm_tick = TimerWheel::kNoTick;
  bool in_wheel = false;  // advance() is running: it sets the alarm afterwards
  Wait* queue_first = nullptr;
  Wait* queue_last = nullptr;
  bool drain_posted = false;
  CancelSource shutdown;
};

}  // namespace penstock::io::detail
