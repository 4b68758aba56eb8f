#pragma once

#include <cstdint>
#include <utility>

namespace penstock::io {

namespace detail {
struct CancelState;
void release(CancelState* state) noexcept;
void retain(CancelState* state) noexcept;
}  // namespace detail

// Says that what is being waited for is no longer wanted. Everything here belongs to one loop's thread; to
// cancel from another thread, post to the loop. A default token never fires. Tokens outlive their source
// safely (they then never fire, unless the source fired before).
class CancelToken {
 public:
  CancelToken() = default;
  CancelToken(const CancelToken& other) noexcept : state_(other.state_) { detail::retain(state_); }
  CancelToken(CancelToken&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  CancelToken& operator=(CancelToken other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~CancelToken() { detail::release(state_); }

  bool cancelled() const;
  // False for a default token.
  bool can_cancel() const { return state_ != nullptr; }

 private:
  friend class CancelSource;
  friend class CancelCallback;
  explicit CancelToken(detail::CancelState* state) noexcept : state_(state) { detail::retain(state_); }
  detail::CancelState* state_ = nullptr;
};

// A function that runs, inline in cancel(), when the token fires; at once in arm() when it already has.
// Unregisters itself when destroyed. Must not be moved while armed.
class CancelCallback {
 public:
  using Function = void (*)(void* context);
  CancelCallback() = default;
  CancelCallback(const CancelToken& token, Function function, void* context) {
    arm(token, function, context);
  }
  CancelCallback(const CancelCallback&) = delete;
  CancelCallback& operator=(const CancelCallback&) = delete;
  ~CancelCallback() { disarm(); }

  void arm(const CancelToken& token, Function function, void* context);
  void disarm() noexcept;
  bool armed() const { return state_ != nullptr; }

 private:
  friend struct detail::CancelState;
  friend class CancelSource;
  detail::CancelState* state_ = nullptr;
  CancelCallback* previous_ = nullptr;
  CancelCallback* next_ = nullptr;
  Function function_ = nullptr;
  void* context_ = nullptr;
};

// Owner of a cancellation. Destroying it without cancel() cancels nothing.
class CancelSource {
 public:
  CancelSource();
  CancelSource(const CancelSource&) = delete;
  CancelSource& operator=(const CancelSource&) = delete;
  ~CancelSource();

  // Runs the callbacks; waits that hold the token end with ErrorCode::kCancelled on the loop's next turn
  // (never inside this call). Idempotent.
  void cancel();
  bool cancelled() const;
  CancelToken token() const { return CancelToken(state_); }
  // Fires this source too when `parent` fires. One parent at a time.
  void follow(const CancelToken& parent);
  // Starts over with a fresh, unfired state; tokens given out before keep the old one.
  void reset();

 private:
  detail::CancelState* state_;
  CancelCallback parent_;
};

namespace detail {
struct CancelState {
  uint32_t references = 1;
  bool fired = false;
  CancelCallback* first = nullptr;
};
inline void retain(CancelState* state) noexcept {
  if (state != nullptr) ++state->references;
}
}  // namespace detail

inline bool CancelToken::cancelled() const {
  return state_ != nullptr && state_->fired;
}

}  // namespace penstock::io
