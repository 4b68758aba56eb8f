#pragma once

// Engines and clients that do exactly what a test says, byte by byte, on blocking sockets and threads of
// their own: what a well-behaved HTTP library would never send can be sent.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/eventually.h"
#include "base/strings.h"

namespace penstock::gateway::testing {

using penstock::eventually;

// A blocking connection; reads give up after ten seconds.
class Connection {
 public:
  explicit Connection(int fd) : fd_(fd) {
    const timeval timeout{10, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  static Connection to(uint16_t port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    return Connection(fd);
  }
  Connection(Connection&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), buffer_(std::move(other.buffer_)) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { close(); }

  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  // Closes with a reset instead of an orderly end.
  void reset() {
    const linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }
  void small_receive_buffer() {
    const int bytes = 4096;
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  }
  bool send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      text.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Reads until `mark` was read, and gives everything up to and with it; less at the end of the stream.
  std::string read_to(std::string_view mark) {
    size_t at = 0;
    while ((at = buffer_.find(mark)) == std::string::npos) {
      if (!fill()) return std::exchange(buffer_, {});
    }
    std::string out = buffer_.substr(0, at + mark.size());
    buffer_.erase(0, at + mark.size());
    return out;
  }
  std::string read_exactly(size_t bytes) {
    while (buffer_.size() < bytes && fill()) {
    }
    std::string out = buffer_.substr(0, bytes);
    buffer_.erase(0, out.size());
    return out;
  }
  std::string read_all() {
    while (fill()) {
    }
    return std::exchange(buffer_, {});
  }
  // True when the peer closes (or resets) without sending more.
  bool peer_closed() {
    buffer_.clear();
    return !fill() && buffer_.empty();
  }
  int fd() const { return fd_; }

 private:
  bool fill() {
    char chunk[16384];
    const ssize_t n = ::recv(fd_, chunk, sizeof chunk, 0);
    if (n <= 0) return false;
    buffer_.append(chunk, static_cast<size_t>(n));
    return true;
  }
  int fd_;
  std::string buffer_;
};

struct Message {
  std::string head;  // start line and fields with their line ends
  std::string body;  // chunk framing taken out

  // Value of a field, "" when absent; `name` in lower case.
  std::string field(std::string_view name) const {
    const std::string lower = ascii_lower(head);
    const size_t at = lower.find("\r\n" + std::string(name) + ":");
    if (at == std::string::npos) return "";
    const size_t begin = at + 3 + name.size();
    return std::string(trim(std::string_view(head).substr(begin, head.find("\r\n", begin) - begin)));
  }
  int status() const { return head.size() < 12 ? 0 : std::stoi(head.substr(9, 3)); }
};

// One message with its body. `complete` tells whether it ended as its framing says.
inline Message read_message(Connection& from, bool* complete = nullptr) {
  Message message;
  message.head = from.read_to("\r\n\r\n");
  bool whole = message.head.ends_with("\r\n\r\n");
  if (const std::string length = message.field("content-length"); !length.empty()) {
    message.body = from.read_exactly(std::stoul(length));
    whole = whole && message.body.size() == std::stoul(length);
  } else if (message.field("transfer-encoding") == "chunked") {
    for (;;) {
      const std::string size = from.read_to("\r\n");
      if (!size.ends_with("\r\n")) {
        whole = false;
        break;
      }
      const size_t bytes = std::stoul(size, nullptr, 16);
      message.body += from.read_exactly(bytes);
      if (bytes == 0) {
        whole = from.read_to("\r\n").ends_with("\r\n");
        break;
      }
      from.read_to("\r\n");
    }
  }
  if (complete != nullptr) *complete = whole;
  return message;
}

// Accepts connections and lets `serve` answer each request; a connection ends when `serve` returns false.
class ScriptedEngine {
 public:
  using Serve = std::function<bool(Connection&, const Message&)>;
  explicit ScriptedEngine(Serve serve) : serve_(std::move(serve)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    ::listen(listener_, 128);
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept(); });
  }
  ~ScriptedEngine() {
    stopping_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    {
      const std::lock_guard lock(mutex_);
      for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
  }
  uint16_t port() const { return port_; }
  int requests() const { return requests_; }
  int connections() const { return connections_; }

 private:
  void accept() {
    for (;;) {
      const int fd = ::accept(listener_, nullptr, nullptr);
      if (fd < 0 || stopping_) {
        if (fd >= 0) ::close(fd);
        return;
      }
      ++connections_;
      const std::lock_guard lock(mutex_);
      open_.insert(fd);
      threads_.emplace_back([this, fd] {
        Connection connection(fd);
        for (;;) {
          const Message request = read_message(connection);
          if (request.head.empty()) break;
          ++requests_;
          if (!serve_(connection, request)) break;
        }
        const std::lock_guard erasing(mutex_);
        open_.erase(fd);
      });
    }
  }
  Serve serve_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<int> requests_{0};
  std::atomic<int> connections_{0};
  std::thread acceptor_;
  std::mutex mutex_;
  std::set<int> open_;
  std::vector<std::thread> threads_;
};

inline std::string answer(int status, std::string_view body, std::string_view more_fields = "",
                          std::string_view type = "application/json") {
  return "HTTP/1.1 " + std::to_string(status) + " X\r\ncontent-type: " + std::string(type) +
         "\r\ncontent-length: " + std::to_string(body.size()) + "\r\n" + std::string(more_fields) + "\r\n" +
         std::string(body);
}
inline std::string chunk(std::string_view data) {
  char size[20];
  std::snprintf(size, sizeof size, "%zx\r\n", data.size());
  return size + std::string(data) + "\r\n";
}
inline constexpr std::string_view kSseHead =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

}  // namespace penstock::gateway::testing
