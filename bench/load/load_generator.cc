// Load for a proxy or an engine over loopback: one thread, keep-alive connections, closed loop (-c) or open
// loop (-r, a request is due at its time whether or not the last one was answered).
//
//   load_generator -p PORT -b BODIES [-u TARGET] [-c CONNECTIONS] [-d SECONDS] [-w WARM-UP SECONDS] [-r RATE]
//
// BODIES: one JSON body a line, sent in turn. Prints one JSON object; latencies in microseconds. Stops by
// itself after warm-up + duration.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <string>
#include <vector>

#include "bench/load/common.h"
#include "bench/load/wire.h"

namespace penstock::load {
namespace {

struct Options {
  int port = 0;
  std::string target = "/v1/chat/completions";
  std::string bodies;
  int connections = 1;
  double seconds = 5;
  double warm_up = 0.5;
  double rate = 0;
};

struct Connection {
  int fd = -1;
  bool idle = true;
  bool watches_write = false;
  MessageReader reader;
  const std::string* request = nullptr;
  size_t sent = 0;
  uint64_t due_ns = 0;
  uint64_t first_ns = 0;
};

struct Totals {
  uint64_t requests = 0, errors = 0, not_200 = 0, events = 0, reconnects = 0;
  std::vector<uint32_t> latency_us, first_byte_us;
};

class Generator {
 public:
  explicit Generator(const Options& options) : options_(options) {
    std::ifstream file(options.bodies);
    for (std::string body; std::getline(file, body);) {
      requests_.push_back("POST " + options.target +
                          " HTTP/1.1\r\nhost: 127.0.0.1:" + std::to_string(options.port) +
                          "\r\nuser-agent: load\r\naccept: */*\r\ncontent-type: application/json\r\n"
                          "authorization: Bearer sk-1234\r\ncontent-length: " +
                          std::to_string(body.size()) + "\r\n\r\n" + body);
    }
  }

  int run() {
    if (requests_.empty()) {
      std::fprintf(stderr, "no bodies in '%s'\n", options_.bodies.c_str());
      return 2;
    }
    connections_.resize(static_cast<size_t>(options_.connections));
    for (Connection& c : connections_) open(c);
    start_ns_ = now_ns();
    const uint64_t measure_at = start_ns_ + static_cast<uint64_t>(options_.warm_up * 1e9);
    const uint64_t end = measure_at + static_cast<uint64_t>(options_.seconds * 1e9);
    std::vector<char> buffer(1 << 18);
    std::array<epoll_event, 256> ready{};
    uint64_t now = start_ns_;
    for (Connection& c : connections_) {
      if (options_.rate == 0) {
        begin(c, now);
      } else {
        idle_.push_back(&c);
      }
    }
    while (now < end) {
      measuring_ = now >= measure_at;
      uint64_t wake = end;
      if (options_.rate > 0) {
        while (!idle_.empty() && due(issued_) <= now) {
          Connection& c = *idle_.back();
          idle_.pop_back();
          begin(c, due(issued_++));
        }
        if (!idle_.empty()) wake = std::min(wake, due(issued_));
      }
      const uint64_t wait_ns = wake > now ? wake - now : 0;
      const timespec wait{static_cast<time_t>(wait_ns / 1000000000), static_cast<long>(wait_ns % 1000000000)};
      const int n = epoll_pwait2(epoll_, ready.data(), static_cast<int>(ready.size()), &wait, nullptr);
      now = now_ns();
      for (int i = 0; i < n; ++i) on_ready(ready[static_cast<size_t>(i)], buffer, now);
    }
    report(static_cast<double>(now - measure_at) / 1e9);
    return 0;
  }

 private:
  uint64_t due(uint64_t i) const {
    return start_ns_ + static_cast<uint64_t>(static_cast<double>(i) / options_.rate * 1e9);
  }

  void watch(Connection& c, bool write, int op) {
    epoll_event event{};
    event.events = write ? EPOLLIN | EPOLLOUT : EPOLLIN;
    event.data.ptr = &c;
    epoll_ctl(epoll_, op, c.fd, &event);
    c.watches_write = write;
  }

  void open(Connection& c) {
    c.fd = connect_to(options_.port);
    c.reader = MessageReader();
    watch(c, false, EPOLL_CTL_ADD);
  }

  void begin(Connection& c, uint64_t due_ns) {
    c.idle = false;
    c.request = &requests_[next_++ % requests_.size()];
    c.sent = 0;
    c.due_ns = due_ns;
    c.first_ns = 0;
    c.reader.start_next();
    push(c);
  }

  void push(Connection& c) {
    while (c.sent < c.request->size()) {
      const ssize_t n =
          send(c.fd, c.request->data() + c.sent, c.request->size() - c.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0) break;
      c.sent += static_cast<size_t>(n);
    }
    const bool write = c.sent < c.request->size();
    if (write != c.watches_write) watch(c, write, EPOLL_CTL_MOD);
  }

  void reopen(Connection& c) {
    close(c.fd);
    ++totals_.reconnects;
    open(c);
  }

  void on_ready(const epoll_event& event, std::vector<char>& buffer, uint64_t now) {
    Connection& c = *static_cast<Connection*>(event.data.ptr);
    if ((event.events & EPOLLOUT) != 0) push(c);
    if ((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
    const ssize_t n = recv(c.fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    bool again = false;
    if (n <= 0) {
      if (!c.idle && measuring_) ++totals_.errors;
      reopen(c);
      again = !c.idle;
    } else {
      std::string_view data(buffer.data(), static_cast<size_t>(n));
      const auto state = c.reader.feed(data);
      if (c.first_ns == 0 && c.reader.body_started()) c.first_ns = now;
      if (state == MessageReader::Event::kBroken) {
        if (measuring_) ++totals_.errors;
        reopen(c);
        again = true;
      } else if (state == MessageReader::Event::kComplete) {
        finished(c, now);
        if (c.reader.close()) reopen(c);
        again = true;
      }
    }
    if (!again) return;
    c.idle = true;
    if (options_.rate == 0) {
      begin(c, now_ns());
    } else {
      idle_.push_back(&c);
    }
  }

  void finished(const Connection& c, uint64_t now) {
    if (!measuring_) return;
    ++totals_.requests;
    totals_.events += c.reader.events();
    if (c.reader.status() != 200) ++totals_.not_200;
    totals_.latency_us.push_back(static_cast<uint32_t>((now - c.due_ns) / 1000));
    if (c.first_ns != 0)
      totals_.first_byte_us.push_back(static_cast<uint32_t>((c.first_ns - c.due_ns) / 1000));
  }

  void report(double elapsed) {
    std::printf(
        "{\"requests\":%lu,\"rps\":%.1f,\"not_200\":%lu,\"errors\":%lu,\"reconnects\":%lu,\"events\":%lu,"
        "\"p50_us\":%.0f,\"p90_us\":%.0f,\"p99_us\":%.0f,\"first_byte_p50_us\":%.0f,\"first_byte_p99_us\":%."
        "0f,"
        "\"elapsed_s\":%.3f}\n",
        totals_.requests, static_cast<double>(totals_.requests) / elapsed, totals_.not_200, totals_.errors,
        totals_.reconnects, totals_.events, percentile(totals_.latency_us, 0.5),
        percentile(totals_.latency_us, 0.9), percentile(totals_.latency_us, 0.99),
        percentile(totals_.first_byte_us, 0.5), percentile(totals_.first_byte_us, 0.99), elapsed);
  }

  Options options_;
  std::vector<std::string> requests_;
  std::deque<Connection> connections_;
  std::vector<Connection*> idle_;
  int epoll_ = epoll_create1(0);
  uint64_t start_ns_ = 0, issued_ = 0, next_ = 0;
  bool measuring_ = false;
  Totals totals_;
};

}  // namespace
}  // namespace penstock::load

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  penstock::load::Options options;
  int flag = 0;
  while ((flag = getopt(argc, argv, "p:u:b:c:d:w:r:")) != -1) {
    switch (flag) {
      case 'p':
        options.port = std::atoi(optarg);
        break;
      case 'u':
        options.target = optarg;
        break;
      case 'b':
        options.bodies = optarg;
        break;
      case 'c':
        options.connections = std::atoi(optarg);
        break;
      case 'd':
        options.seconds = std::atof(optarg);
        break;
      case 'w':
        options.warm_up = std::atof(optarg);
        break;
      case 'r':
        options.rate = std::atof(optarg);
        break;
      default:
        return 2;
    }
  }
  if (options.port == 0 || options.bodies.empty() || options.connections < 1) {
    std::fprintf(stderr,
                 "usage: load_generator -p PORT -b BODIES [-u TARGET] [-c N] [-d S] [-w S] [-r RATE]\n");
    return 2;
  }
  return penstock::load::Generator(options).run();
}
