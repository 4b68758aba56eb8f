#pragma once

#include <memory>

#include "director/director.h"
#include "io/loop.h"

namespace penstock::assembly {

// Until everything that was asked for the request is answered, which the questions see to themselves, or
// `token` fires. On the request's loop.
inline io::Task<void> await_questions(io::Loop& loop, const director::Request& request,
                                      io::CancelToken token) {
  for (size_t i = 0; i < request.questions.size(); ++i) {
    const std::shared_ptr<Question> question = request.questions[i].question;
    if (question->answered()) continue;
    io::Event answered(loop);
    struct Watch {
      explicit Watch(Question& q, io::Event& event) : question(q) {
        question.when_answered([](void* e) { static_cast<io::Event*>(e)->set(); }, &event);
      }
      Watch(const Watch&) = delete;
      Watch& operator=(const Watch&) = delete;
      ~Watch() { question.when_answered(nullptr, nullptr); }
      Question& question;
    };
    const Watch watch(*question, answered);
    const Status waited = co_await answered.wait(Duration::zero(), token);
    if (!waited.ok()) co_return;
  }
}

}  // namespace penstock::assembly
