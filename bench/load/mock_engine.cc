// Several engines in one thread, that answer at once: the upstream of the proxy benchmarks. It computes
// nothing, so that what is measured is the proxy.
//
//   mock_engine [-n ADDRESSES] [-p FILE] PORT[,PORT…] [MODEL]
//
// -n ADDRESSES   each port on so many addresses, 127.1.0.1 and on (255 a row), instead of on 127.0.0.1
// -p FILE        is what GET /metrics answers, instead of a short page of its own
// GET /control?chunks=N&gap_us=N&each=0|1   shape of streamed answers: N events; gap_us > 0 spaces them,
//                                           each=1 writes every event by itself without a pause
// GET /control/count                        "PORT v1-requests other-requests" a line, since the last call
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <queue>
#include <string>
#include <string_view>
#include <vector>

#include "bench/load/common.h"
#include "bench/load/wire.h"

namespace penstock::load {
namespace {

uint64_t now_us() {
  return now_ns() / 1000;
}

struct Port {
  int number = 0;
  uint64_t v1 = 0;
  uint64_t other = 0;
  int running = 0;
};

struct Connection {
  int fd = -1;
  uint64_t id = 0;
  Port* port = nullptr;
  MessageReader reader;
  std::string out;  // what the socket did not take yet
  int events_left = 0;
  bool streaming = false;
  std::string pending;  // came while a paced stream was going on
};

struct Due {
  uint64_t at_us;
  int fd;
  uint64_t connection_id;
  bool operator<(const Due& other) const { return at_us > other.at_us; }
};

class MockEngine {
 public:
  explicit MockEngine(std::string model, std::string page)
      : model_(std::move(model)), page_(std::move(page)) {
    build();
  }

  // `address` in host order.
  bool listen_on(int number, uint32_t ip = INADDR_LOOPBACK) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(number));
    address.sin_addr.s_addr = htonl(ip);
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(fd, 1024) != 0)
      return false;
    ports_.push_back(std::make_unique<Port>(Port{number}));
    listeners_.resize(std::max<size_t>(listeners_.size(), static_cast<size_t>(fd) + 1), nullptr);
    listeners_[static_cast<size_t>(fd)] = ports_.back().get();
    watch(fd, EPOLLIN, EPOLL_CTL_ADD);
    return true;
  }

  void run() {
    std::vector<char> buffer(1 << 20);
    std::array<epoll_event, 512> ready{};
    while (true) {
      timespec wait{};
      const timespec* timeout = nullptr;
      if (!due_.empty()) {
        const uint64_t now = now_us();
        const uint64_t us = due_.top().at_us > now ? due_.top().at_us - now : 0;
        wait = {static_cast<time_t>(us / 1000000), static_cast<long>(us % 1000000) * 1000};
        timeout = &wait;
      }
      const int n = epoll_pwait2(epoll_, ready.data(), static_cast<int>(ready.size()), timeout, nullptr);
      for (int i = 0; i < n; ++i) on_ready(ready[static_cast<size_t>(i)], buffer);
      send_due();
    }
  }

 private:
  void watch(int fd, uint32_t events, int op) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    epoll_ctl(epoll_, op, fd, &event);
  }

  static std::string response(int status, std::string_view type, std::string_view body) {
    return "HTTP/1.1 " + std::to_string(status) + (status == 200 ? " OK" : " Not Found") +
           "\r\nserver: mock\r\ncontent-type: " + std::string(type) +
           "\r\ncontent-length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
  }

  void build() {
    unary_ = response(
        200, "application/json",
        R"({"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1790000000,"model":")" +
            model_ +
            R"(","choices":[{"index":0,"message":{"role":"assistant","content":"Water leaves the pool through the penstock, turns the wheel and goes on to the river; what it carried stays behind as light in the windows of the valley."},"logprobs":null,"finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":256,"total_tokens":288,"completion_tokens":32,"prompt_tokens_details":null}})");
    head_ =
        "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; "
        "charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    const auto event = [&](std::string_view delta, std::string_view finish) {
      const std::string text =
          R"(data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1790000000,"model":")" +
          model_ + R"(","choices":[{"index":0,"delta":{"content":")" + std::string(delta) +
          R"("},"logprobs":null,"finish_reason":)" + std::string(finish) + "}]}\n\n";
      return chunk(text);
    };
    const std::array<std::string_view, 8> words{" down", " the",  " steep", " pipe",
                                                " runs", " cold", " clear", " water"};
    for (size_t i = 0; i < words.size(); ++i) events_[i] = event(words[i], "null");
    last_ = event("", "\"stop\"") + chunk("data: [DONE]\n\n") + "0\r\n\r\n";
    whole_ = head_;
    for (int i = 0; i + 1 < chunks_; ++i) whole_ += events_[static_cast<size_t>(i) & 7U];
    whole_ += last_;
  }

  static std::string chunk(const std::string& text) {
    char size[20];
    std::snprintf(size, sizeof size, "%zx\r\n", text.size());
    return size + text + "\r\n";
  }

  bool send_text(Connection& c, std::string_view text) {
    if (!c.out.empty()) {
      c.out.append(text);
      return true;
    }
    const ssize_t n = send(c.fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return false;
    const size_t sent = n < 0 ? 0 : static_cast<size_t>(n);
    if (sent < text.size()) {
      c.out.assign(text.substr(sent));
      watch(c.fd, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
    }
    return true;
  }

  std::string metrics(const Port& port) const {
    if (!page_.empty()) return page_;
    const std::string labels = "{engine=\"0\",model_name=\"" + model_ + "\"} ";
    return "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running" + labels +
           std::to_string(port.running) +
           ".0\n# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting" + labels +
           "0.0\n# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc" + labels +
           "0.25\n# TYPE vllm:cache_config_info "
           "gauge\nvllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"131072\"} 1.0\n";
  }

  static const std::string& token_ids() {
    static const std::string ids = [] {
      std::string text = "[0";
      for (int i = 1; i < 256; ++i) text += ',' + std::to_string(i);
      return text + "]";
    }();
    return ids;
  }

  bool control(Connection& c, std::string_view target) {
    if (target == "/control/count") {
      std::string text;
      for (auto& port : ports_) {
        text += std::to_string(port->number) + " " + std::to_string(port->v1) + " " +
                std::to_string(port->other) + "\n";
        port->v1 = port->other = 0;
      }
      return send_text(c, response(200, "text/plain", text));
    }
    const auto value = [&](std::string_view key, long fallback) {
      const size_t at = target.find(key);
      return at == std::string_view::npos ? fallback
                                          : std::strtol(target.data() + at + key.size(), nullptr, 10);
    };
    chunks_ = static_cast<int>(value("chunks=", chunks_));
    gap_us_ = static_cast<uint64_t>(value("gap_us=", static_cast<long>(gap_us_)));
    each_ = value("each=", each_ ? 1 : 0) != 0;
    build();
    return send_text(c, response(200, "text/plain", "ok\n"));
  }

  bool answer(Connection& c) {
    const std::string target(c.reader.target());
    if (target.starts_with("/control")) return control(c, target);
    if (c.reader.method() != "POST") {
      if (target == "/health" || target == "/ping")
        return send_text(c, response(200, "application/json", ""));
      if (target == "/metrics")
        return send_text(c, response(200, "text/plain; version=0.0.4", metrics(*c.port)));
      if (target == "/v1/models") {
        return send_text(
            c, response(200, "application/json",
                        R"({"object":"list","data":[{"id":")" + model_ +
                            R"(","object":"model","created":1790000000,"owned_by":"vllm","root":")" + model_ +
                            R"(","parent":null,"max_model_len":131072}]})"));
      }
      return send_text(c, response(404, "application/json", R"({"detail":"Not Found"})"));
    }
    if (target != "/v1/chat/completions" && target != "/v1/completions") {
      ++c.port->other;
      // What vllm-router's cache_aware asks its workers before each request.
      if (target == "/v1/chat/completions/render" || target == "/v1/completions/render")
        return send_text(c, response(200, "application/json", R"({"token_ids":)" + token_ids() + "}"));
      return send_text(c, response(404, "application/json", R"({"detail":"Not Found"})"));
    }
    ++c.port->v1;
    const auto streams = [](std::string_view text) {
      return text.find("\"stream\":true") != std::string_view::npos ||
             text.find("\"stream\": true") != std::string_view::npos;
    };
    if (!streams(c.reader.body_head()) && !streams(c.reader.body_tail())) return send_text(c, unary_);
    if (gap_us_ == 0 && !each_) return send_text(c, whole_);
    if (gap_us_ == 0) {
      if (!send_text(c, head_)) return false;
      for (int i = 0; i + 1 < chunks_; ++i) {
        if (!send_text(c, events_[static_cast<size_t>(i) & 7U])) return false;
      }
      return send_text(c, last_);
    }
    c.streaming = true;
    ++c.port->running;
    c.events_left = chunks_ - 1;
    due_.push({now_us() + gap_us_, c.fd, c.id});
    return send_text(c, head_ + events_[0]);
  }

  bool feed(Connection& c, std::string_view data) {
    while (!data.empty()) {
      if (c.streaming) {
        c.pending.append(data);
        return true;
      }
      const auto event = c.reader.feed(data);
      if (event == MessageReader::Event::kBroken) return false;
      if (event == MessageReader::Event::kNeedMore) {
        if (c.reader.head_complete() && c.reader.expects_continue() && !c.reader.body_started()) {
          return send_text(c, "HTTP/1.1 100 Continue\r\n\r\n");
        }
        return true;
      }
      if (!answer(c)) return false;
      c.reader.start_next();
    }
    return true;
  }

  void accept_all(int listener) {
    while (true) {
      const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
      if (fd < 0) return;
      const int one = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      const auto index = static_cast<size_t>(fd);
      if (connections_.size() <= index) connections_.resize(index + 1);
      connections_[index] = std::make_unique<Connection>();
      connections_[index]->fd = fd;
      connections_[index]->id = ++last_id_;
      connections_[index]->port = listeners_[static_cast<size_t>(listener)];
      watch(fd, EPOLLIN, EPOLL_CTL_ADD);
    }
  }

  void on_ready(const epoll_event& event, std::vector<char>& buffer) {
    const int fd = event.data.fd;
    const auto index = static_cast<size_t>(fd);
    if (index < listeners_.size() && listeners_[index] != nullptr) return accept_all(fd);
    if (index >= connections_.size() || !connections_[index]) return;
    Connection& c = *connections_[index];
    bool alive = true;
    if ((event.events & EPOLLOUT) != 0) {
      const ssize_t n = send(fd, c.out.data(), c.out.size(), MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) alive = false;
      if (n > 0) c.out.erase(0, static_cast<size_t>(n));
      if (c.out.empty()) watch(fd, EPOLLIN, EPOLL_CTL_MOD);
    }
    if (alive && (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
      const ssize_t n = recv(fd, buffer.data(), buffer.size(), 0);
      if (n == 0 || (n < 0 && errno != EAGAIN)) alive = false;
      if (n > 0) alive = feed(c, {buffer.data(), static_cast<size_t>(n)});
    }
    if (!alive) drop(c);
  }

  void drop(Connection& c) {
    if (c.streaming) --c.port->running;
    const auto index = static_cast<size_t>(c.fd);
    close(c.fd);
    connections_[index].reset();
  }

  void send_due() {
    const uint64_t now = now_us();
    while (!due_.empty() && due_.top().at_us <= now) {
      const Due due = due_.top();
      due_.pop();
      Connection* c = connections_[static_cast<size_t>(due.fd)].get();
      if (c == nullptr || c->id != due.connection_id || !c->streaming) continue;
      bool alive = false;
      if (--c->events_left > 0) {
        alive = send_text(*c, events_[static_cast<size_t>(c->events_left) & 7U]);
        due_.push({due.at_us + gap_us_, due.fd, due.connection_id});
      } else {
        alive = send_text(*c, last_);
        c->streaming = false;
        --c->port->running;
        std::string pending;
        pending.swap(c->pending);
        if (alive) alive = feed(*c, pending);
      }
      if (!alive) drop(*c);
    }
  }

  std::string model_;
  std::string page_;  // "": metrics() makes one
  int epoll_ = epoll_create1(0);
  int chunks_ = 256;
  uint64_t gap_us_ = 0;
  bool each_ = false;
  std::string unary_, head_, last_, whole_;
  std::array<std::string, 8> events_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<Port*> listeners_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::priority_queue<Due> due_;
  uint64_t last_id_ = 0;
};

}  // namespace
}  // namespace penstock::load

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  std::string page;
  uint32_t addresses = 0;
  for (int option = 0; (option = getopt(argc, argv, "n:p:")) != -1;) {
    if (option == 'n') addresses = static_cast<uint32_t>(std::atoi(optarg));
    if (option == 'p') {
      std::ifstream file(optarg, std::ios::binary);
      page.assign(std::istreambuf_iterator<char>(file), {});
    }
    if (option == '?' || (option == 'p' && page.empty())) return 2;
  }
  if (optind == argc) {
    std::fprintf(stderr, "usage: mock_engine [-n ADDRESSES] [-p FILE] PORT[,PORT...] [MODEL]\n");
    return 2;
  }
  penstock::load::MockEngine engine(optind + 1 < argc ? argv[optind + 1] : "mock-model", page);
  std::string_view ports = argv[optind];
  while (!ports.empty()) {
    const std::string number(ports.substr(0, ports.find(',')));
    ports.remove_prefix(std::min(ports.size(), number.size() + 1));
    bool listening = addresses > 0 || engine.listen_on(std::atoi(number.c_str()));
    for (uint32_t i = 0; listening && i < addresses; ++i)
      listening = engine.listen_on(std::atoi(number.c_str()),
                                   (127U << 24) + (1U << 16) + (i / 255 << 8) + i % 255 + 1);
    if (!listening) {
      std::perror(("port " + number).c_str());
      return 1;
    }
  }
  engine.run();
}
