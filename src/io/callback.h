#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace penstock::io {

// A move-only void() for rare work (posting to a loop, blocking jobs). One heap allocation.
class Callback {
 public:
  Callback() = default;
  template <typename F>
    requires(!std::is_same_v<std::decay_t<F>, Callback> && std::is_invocable_v<std::decay_t<F>&>)
  Callback(F&& function) : body_(std::make_unique<Body<std::decay_t<F>>>(std::forward<F>(function))) {}

  explicit operator bool() const { return body_ != nullptr; }
  void operator()() { body_->call(); }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void call() = 0;
  };
  template <typename F>
  struct Body final : Base {
    explicit Body(F f) : function(std::move(f)) {}
    void call() override { function(); }
    F function;
  };
  std::unique_ptr<Base> body_;
};

}  // namespace penstock::io
