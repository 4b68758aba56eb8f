#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "inference/outside.h"

namespace penstock::scheduling {

// The world outside, driven by a test: calls are answered and time passes when it says so.
class FakeOutside final : public Outside {
 public:
  struct Post {
    std::string url;
    std::string body;
    Done done;
  };
  std::vector<Post> posts;

  Status prepare(const std::string&) override { return {}; }
  void post(std::string url, std::string body, Duration, size_t, Done done) override {
    posts.push_back({std::move(url), std::move(body), std::move(done)});
  }
  void after(Duration pause, std::function<void()> then) override {
    timers_.push_back({now_ + pause, std::move(then)});
  }
  size_t loop() const override { return 0; }

  // Status 0: nobody is there.
  void answer(size_t post, int status, std::string body) {
    Answer answer;
    answer.status = status;
    answer.body = std::move(body);
    if (status == 0) answer.error = "refused";
    std::exchange(posts[post].done, nullptr)(std::move(answer));
  }
  // None comes in time.
  void late(size_t post) {
    Answer answer;
    answer.late = true;
    answer.error = "no answer in time";
    std::exchange(posts[post].done, nullptr)(std::move(answer));
  }
  void pass(Duration time) {
    const Duration until = now_ + time;
    while (true) {
      const auto next = std::min_element(timers_.begin(), timers_.end(),
                                         [](const Timer& a, const Timer& b) { return a.at < b.at; });
      if (next == timers_.end() || next->at > until) break;
      now_ = next->at;
      const std::function<void()> then = std::move(next->then);
      timers_.erase(next);
      then();
    }
    now_ = until;
  }

 private:
  struct Timer {
    Duration at;
    std::function<void()> then;
  };
  Duration now_{0};
  std::vector<Timer> timers_;
};

// What a predictor answers: one prediction for each TTFT, with a TPOT of a tenth.
inline std::string predictions(const std::vector<double>& ttft_ms) {
  std::string out = "{\"predictions\":[";
  for (const double ttft : ttft_ms) {
    if (out.back() == '}') out += ',';
    out += "{\"ttft_ms\":" + std::to_string(ttft) + ",\"tpot_ms\":" + std::to_string(ttft / 10) + "}";
  }
  return out + "]}";
}

}  // namespace penstock::scheduling
