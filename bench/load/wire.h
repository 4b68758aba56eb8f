#pragma once

#include <charconv>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace penstock::load {

// Incremental reader of one HTTP/1.1 message after another, for the two load programs only: it trusts its
// peer (loopback, our own programs or the proxy under test) and reads just what a yardstick needs.
class MessageReader {
 public:
  enum class Event : uint8_t { kNeedMore, kComplete, kBroken };

  // Consumes bytes from the front of `data` up to the end of one message.
  Event feed(std::string_view& data) {
    while (true) {
      switch (state_) {
        case State::kHead:
          if (!take_head(data)) return head_.size() > kMaxHead ? Event::kBroken : Event::kNeedMore;
          if (!parse_head()) return Event::kBroken;
          if (remaining_ == 0 && !chunked_ && !until_close_) return complete();
          state_ = chunked_ ? State::kChunkSize : State::kBody;
          break;
        case State::kBody: {
          if (data.empty()) return Event::kNeedMore;
          const size_t n = until_close_ ? data.size() : std::min<uint64_t>(data.size(), remaining_);
          on_body(data.substr(0, n));
          data.remove_prefix(n);
          if (until_close_) return Event::kNeedMore;
          remaining_ -= n;
          if (remaining_ == 0) return complete();
          break;
        }
        case State::kChunkSize:
          if (!take_line(data)) return Event::kNeedMore;
          remaining_ = 0;
          std::from_chars(line_.data(), line_.data() + line_.size(), remaining_, 16);
          line_.clear();
          state_ = remaining_ > 0 ? State::kChunkData : State::kTrailer;
          break;
        case State::kChunkData: {
          if (data.empty()) return Event::kNeedMore;
          const size_t n = std::min<uint64_t>(data.size(), remaining_);
          on_body(data.substr(0, n));
          data.remove_prefix(n);
          remaining_ -= n;
          if (remaining_ == 0) state_ = State::kChunkEnd;
          break;
        }
        case State::kChunkEnd:
          if (!take_line(data)) return Event::kNeedMore;
          line_.clear();
          state_ = State::kChunkSize;
          break;
        case State::kTrailer: {
          if (!take_line(data)) return Event::kNeedMore;
          const bool last = line_.empty();
          line_.clear();
          if (last) return complete();
          break;
        }
      }
    }
  }

  // Of the message that is being read or was just completed.
  int status() const { return status_; }               // responses
  std::string_view method() const { return method_; }  // requests
  std::string_view target() const { return target_; }  // requests
  bool close() const { return close_; }
  bool expects_continue() const { return expect_; }
  bool body_started() const { return body_bytes_ > 0; }
  uint64_t body_bytes() const { return body_bytes_; }
  uint64_t events() const { return events_; }                // empty lines in the body: SSE events
  std::string_view body_head() const { return body_head_; }  // first 512 bytes
  std::string_view body_tail() const { return body_tail_; }  // last 512 bytes or more
  bool head_complete() const { return state_ != State::kHead; }
  void start_next() {
    head_.clear();
    body_head_.clear();
    body_tail_.clear();
    body_bytes_ = events_ = 0;
    last_was_newline_ = false;
  }

 private:
  static constexpr size_t kMaxHead = 64 * 1024;
  enum class State : uint8_t { kHead, kBody, kChunkSize, kChunkData, kChunkEnd, kTrailer };

  Event complete() {
    state_ = State::kHead;
    return Event::kComplete;
  }

  bool take_head(std::string_view& data) {
    const size_t old = head_.size();
    const size_t from = old > 3 ? old - 3 : 0;
    head_.append(data.substr(0, kMaxHead + 4));
    const size_t end = head_.find("\r\n\r\n", from);
    if (end == std::string::npos) {
      data = {};
      return false;
    }
    data.remove_prefix(end + 4 - old);
    head_.resize(end + 2);
    return true;
  }

  bool take_line(std::string_view& data) {
    const size_t end = data.find('\n');
    line_.append(data.substr(0, end));
    if (end == std::string_view::npos) {
      data = {};
      return false;
    }
    data.remove_prefix(end + 1);
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    return true;
  }

  bool parse_head() {
    remaining_ = 0;
    chunked_ = close_ = expect_ = until_close_ = false;
    bool has_length = false;
    std::string_view rest = head_;
    const std::string_view first = rest.substr(0, rest.find("\r\n"));
    rest.remove_prefix(first.size() + 2);
    const size_t a = first.find(' ');
    const size_t b = first.find(' ', a + 1);
    if (a == std::string_view::npos) return false;
    const bool response = first.starts_with("HTTP/");
    if (response) {
      status_ = 0;
      std::from_chars(first.data() + a + 1, first.data() + first.size(), status_);
    } else {
      method_.assign(first.substr(0, a));
      target_.assign(first.substr(a + 1, b - a - 1));
    }
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find("\r\n"));
      rest.remove_prefix(line.size() + 2);
      const auto is = [&](std::string_view name) {
        return line.size() > name.size() && strncasecmp(line.data(), name.data(), name.size()) == 0;
      };
      if (is("content-length:")) {
        const std::string_view value = line.substr(line.find_first_not_of(" \t", 15));
        std::from_chars(value.data(), value.data() + value.size(), remaining_);
        has_length = true;
      } else if (is("transfer-encoding:")) {
        chunked_ = true;
      } else if (is("connection:") && line.find("lose") != std::string_view::npos) {
        close_ = true;
      } else if (is("expect:")) {
        expect_ = true;
      }
    }
    until_close_ = response && !has_length && !chunked_ && status_ != 204 && status_ != 304 && status_ >= 200;
    return true;
  }

  void on_body(std::string_view piece) {
    body_bytes_ += piece.size();
    if (body_head_.size() < 512) body_head_.append(piece.substr(0, 512 - body_head_.size()));
    if (piece.size() >= 512) {
      body_tail_.assign(piece.substr(piece.size() - 512));
    } else {
      body_tail_.append(piece);
      if (body_tail_.size() > 2048) body_tail_.erase(0, body_tail_.size() - 512);
    }
    if (chunked_) {
      for (const char c : piece) {
        if (c == '\n') {
          events_ += last_was_newline_ ? 1 : 0;
          last_was_newline_ = true;
        } else {
          last_was_newline_ = false;
        }
      }
    }
  }

  State state_ = State::kHead;
  std::string head_, line_, method_, target_, body_head_, body_tail_;
  uint64_t remaining_ = 0, body_bytes_ = 0, events_ = 0;
  int status_ = 0;
  bool chunked_ = false, close_ = false, expect_ = false, until_close_ = false, last_was_newline_ = false;
};

}  // namespace penstock::load
