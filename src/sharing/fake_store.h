#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "io/loop.h"
#include "io/net.h"
#include "sharing/resp.h"

// For tests: the few commands of Redis that shared state uses, with faults on demand.
namespace penstock::sharing::testing {

class FakeStore {
 public:
  FakeStore() : loops_(1) {
    loops_.start();
    open(0);
  }
  ~FakeStore() {
    down();
    loops_.stop(std::chrono::seconds(1));
  }

  uint16_t port() const { return port_; }
  std::string url() const { return "redis://127.0.0.1:" + std::to_string(port_); }

  // An error reply to this command from now on; "": none any more.
  void answer_with(const std::string& command, const std::string& error) {
    const std::lock_guard lock(mutex_);
    if (error.empty()) {
      errors_.erase(command);
    } else {
      errors_[command] = error;
    }
  }
  // Bytes instead of the next reply to this command.
  void answer_raw(const std::string& command, std::string bytes) {
    const std::lock_guard lock(mutex_);
    raw_[command] = std::move(bytes);
  }
  // Takes what comes and answers nothing, as a process that was stopped.
  void hang(bool hangs) {
    const std::lock_guard lock(mutex_);
    hangs_ = hangs;
  }
  // Nobody listens and every connection is cut; up() listens on the same port.
  void down() {
    on_loop([this] {
      cut_.cancel();
      cut_.reset();
      listener_.reset();
    });
  }
  void up() { open(port_); }
  void require_password(std::string password) {
    const std::lock_guard lock(mutex_);
    password_ = std::move(password);
  }
  void set_field(const std::string& key, const std::string& field, std::string value) {
    const std::lock_guard lock(mutex_);
    hashes_[key][field] = std::move(value);
  }
  std::map<std::string, std::string> hash(const std::string& key) {
    const std::lock_guard lock(mutex_);
    return hashes_[key];
  }
  void add_entry(const std::string& key, std::string value) {
    const std::lock_guard lock(mutex_);
    add(key, std::move(value));
  }
  size_t entries(const std::string& key) {
    const std::lock_guard lock(mutex_);
    return streams_[key].size();
  }
  size_t commands(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return counts_[name];
  }
  size_t connections() {
    const std::lock_guard lock(mutex_);
    return connections_;
  }

 private:
  struct Entry {
    uint64_t id;
    std::string value;
  };

  void on_loop(std::function<void()> function) {
    std::mutex mutex;
    std::condition_variable done;
    bool ran = false;
    loops_.at(0).post([&] {
      function();
      const std::lock_guard lock(mutex);
      ran = true;
      done.notify_one();
    });
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return ran; });
  }

  void open(uint16_t port) {
    on_loop([this, port] {
      auto bound = io::Listener::bind(loops_.at(0), *io::SocketAddress::from_ip("127.0.0.1", port));
      ASSERT_TRUE(bound.ok()) << bound.error().message;
      listener_.emplace(*std::move(bound));
      port_ = listener_->local().port();
      io::spawn(loops_.at(0), accept());
    });
  }

  io::Task<void> accept() {
    const io::CancelToken token = cut_.token();
    const io::IoOptions options(Duration::zero(), token);
    while (listener_) {
      auto stream = co_await listener_->accept(options);
      if (!stream.ok()) co_return;
      {
        const std::lock_guard lock(mutex_);
        ++connections_;
      }
      io::spawn(loops_.at(0), serve(*std::move(stream), token));
    }
  }

  io::Task<void> serve(io::Stream stream, io::CancelToken token) {
    const io::IoOptions options(Duration::zero(), token);
    std::string buffer;
    bool allowed = false;
    std::vector<char> piece(64 << 10);
    while (true) {
      auto got = co_await stream.read(piece, options);
      if (!got.ok() || *got == 0) co_return;
      buffer.append(piece.data(), *got);
      std::string replies;
      while (true) {
        RespReply command;
        const RespParsed parsed = parse_reply(buffer, command);
        if (parsed.outcome != RespOutcome::kComplete) break;
        const std::lock_guard lock(mutex_);
        answer(command, allowed, replies);
        buffer.erase(0, parsed.bytes);
      }
      bool silent = false;
      {
        const std::lock_guard lock(mutex_);
        silent = hangs_;
      }
      if (silent || replies.empty()) continue;
      const Status written = co_await stream.write(replies, options);
      if (!written.ok()) co_return;
    }
  }

  void answer(const RespReply& command, bool& allowed, std::string& out) {
    std::vector<std::string_view> words;
    for (const RespReply& item : command.items) words.push_back(item.text);
    if (words.empty()) return;
    const std::string name(words[0]);
    ++counts_[name];
    if (const auto raw = raw_.find(name); raw != raw_.end()) {
      out += raw->second;
      raw_.erase(raw);
      return;
    }
    if (const auto error = errors_.find(name); error != errors_.end()) {
      out += "-" + error->second + "\r\n";
      return;
    }
    if (name == "AUTH") {
      allowed = words.back() == password_;
      out += allowed ? "+OK\r\n" : "-WRONGPASS invalid username-password pair\r\n";
      return;
    }
    if (!password_.empty() && !allowed) {
      out += "-NOAUTH Authentication required.\r\n";
      return;
    }
    if (name == "TIME") {
      const auto now = std::chrono::duration_cast<std::chrono::microseconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
      append_command(out, {std::to_string(now / 1'000'000), std::to_string(now % 1'000'000)});
    } else if (name == "HSET") {
      hashes_[std::string(words[1])][std::string(words[2])] = words[3];
      out += ":1\r\n";
    } else if (name == "HDEL") {
      hashes_[std::string(words[1])].erase(std::string(words[2]));
      out += ":1\r\n";
    } else if (name == "HGETALL") {
      const auto& hash = hashes_[std::string(words[1])];
      out += "*" + std::to_string(hash.size() * 2) + "\r\n";
      for (const auto& [field, value] : hash) out += bulk(field) + bulk(value);
    } else if (name == "XADD") {
      out += bulk(add(std::string(words[1]), std::string(words.back())));
    } else if (name == "XREAD") {
      read_stream(std::string(words[4]), words[5], out);
    } else {
      out += "+OK\r\n";
    }
  }

  static std::string bulk(std::string_view text) {
    return "$" + std::to_string(text.size()) + "\r\n" + std::string(text) + "\r\n";
  }
  static std::string id_text(uint64_t id) { return std::to_string(id) + "-0"; }

  std::string add(const std::string& key, std::string value) {
    const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
    last_id_ = std::max(last_id_ + 1, static_cast<uint64_t>(now));
    streams_[key].push_back({last_id_, std::move(value)});
    return id_text(last_id_);
  }

  void read_stream(const std::string& key, std::string_view after, std::string& out) {
    const uint64_t id = parse_u64(after.substr(0, after.find('-'))).value_or(0);
    std::string entries;
    size_t count = 0;
    for (const Entry& entry : streams_[key]) {
      if (entry.id <= id || count == 16) continue;
      ++count;
      entries += "*2\r\n" + bulk(id_text(entry.id)) + "*2\r\n" + bulk("b") + bulk(entry.value);
    }
    if (count == 0) {
      out += "*-1\r\n";
      return;
    }
    out += "*1\r\n*2\r\n" + bulk(key) + "*" + std::to_string(count) + "\r\n" + entries;
  }

  std::mutex mutex_;
  std::map<std::string, std::string> errors_;
  std::map<std::string, std::string> raw_;
  std::map<std::string, size_t> counts_;
  std::map<std::string, std::map<std::string, std::string>> hashes_;
  std::map<std::string, std::deque<Entry>> streams_;
  uint64_t last_id_ = 0;
  std::string password_;
  size_t connections_ = 0;
  bool hangs_ = false;
  uint16_t port_ = 0;
  io::CancelSource cut_;
  std::optional<io::Listener> listener_;
  io::LoopGroup loops_;
};

}  // namespace penstock::sharing::testing
