#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace penstock {

class Plugin;

// What a decision waits for: an answer from outside. Made by an AskingProducer, held by the request, and by
// whoever answers it. Lives on one loop.
class Question {
 public:
  virtual ~Question() = default;
  Question() = default;
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

  // An answer is there, or it is known that none will be.
  bool answered() const { return answered_; }
  // Calls `notify(context)` once it is answered, from the loop's top; nullptr takes that back. One at a time.
  // REQUIRES: !answered() where it is not nullptr.
  void when_answered(void (*notify)(void*), void* context) {
    notify_ = notify;
    context_ = context;
  }

 protected:
  // No effect the second time.
  void end() {
    if (answered_) return;
    answered_ = true;
    if (notify_ != nullptr) notify_(context_);
  }

 private:
  bool answered_ = false;
  void (*notify_)(void*) = nullptr;
  void* context_ = nullptr;
};

struct AskedQuestion {
  const Plugin* by = nullptr;
  std::shared_ptr<Question> question;
};

// The way out for plugins that need a service: an HTTP call and a timer, on the loop that calls. Functions
// are called on that loop, once, never inside the call that hands them over; when the loop ends, at once.
// Outlives every plugin. Made by the process; null where decisions are played through (explain, simulation).
class Outside {
 public:
  struct Answer {
    int status = 0;     // 0: none came
    bool late = false;  // none came in time
    std::string body;   // at most as long as was asked for
    std::string error;  // why there is no answer
  };
  using Done = std::function<void(Answer)>;

  virtual ~Outside() = default;
  // Before the first call to a server, from no loop: errors say what is wrong with the URL.
  virtual Status prepare(const std::string& url) = 0;
  // POST of a JSON document to an http or https URL. An answer longer than `limit`, and one that is not whole
  // after `deadline`, is none.
  virtual void post(std::string url, std::string body, Duration deadline, size_t limit, Done done) = 0;
  virtual void after(Duration pause, std::function<void()> then) = 0;
  // Which of the process's loops the caller runs on.
  virtual size_t loop() const = 0;
};

}  // namespace penstock
