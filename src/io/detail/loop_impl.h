#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/basic_stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <vector>

#include "io/detail/timer_wheel.h"
#include "io/loop.h"

namespace penstock::io::detail {

namespace asio = boost::asio;

class Socket;

// The sockets of one loop in an epoll set of their own: registered once for life, edge-triggered, with the
// peer's end told apart. The io_context waits for the set as a whole, so a wait for one socket costs no
// system call (Asio's re-arms its descriptor each time: two epoll_ctl a proxied request).
class SocketSet {
 public:
  explicit SocketSet(asio::io_context& context);

  // 0 or errno. From then on the socket is told of every edge, until its descriptor is closed.
  int add(int fd, Socket* socket);
  // Frees the socket, at the end of the running batch of events when there is one. REQUIRES: it is closed.
  void bury(Socket* socket);
  // Calls socket->check() on the loop's next turn.
  void check_later(Socket* socket);
  void forget_check(Socket* socket);

 private:
  void wait();
  void dispatch();
  void run_checks();

  asio::io_context& context_;
  asio::posix::basic_stream_descriptor<asio::io_context::executor_type> set_;
  bool dispatching_ = false;
  bool checks_posted_ = false;
  std::vector<Socket*> buried_;
  std::vector<Socket*> checks_;   // to be run next turn
  std::vector<Socket*> running_;  // of this turn
};

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
  SocketSet sockets;
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
