#include "io/cancel.h"

#include <new>

#include "io/task.h"

namespace penstock::io {

namespace detail {
void release(CancelState* state) noexcept {
  if (state == nullptr || --state->references != 0) return;
  free_frame(state, sizeof(CancelState));
}
namespace {
CancelState* make_state() {
  return new (allocate_frame(sizeof(CancelState))) CancelState();
}
}  // namespace
}  // namespace detail

void CancelCallback::arm(const CancelToken& token, Function function, void* context) {
  disarm();
  if (token.state_ == nullptr) return;
  if (token.state_->fired) {
    function(context);
    return;
  }
  function_ = function;
  context_ = context;
  state_ = token.state_;
  detail::retain(state_);
  previous_ = nullptr;
  next_ = state_->first;
  if (next_ != nullptr) next_->previous_ = this;
  state_->first = this;
}

void CancelCallback::disarm() noexcept {
  if (state_ == nullptr) return;
  if (next_ != nullptr) next_->previous_ = previous_;
  if (previous_ != nullptr) {
    previous_->next_ = next_;
  } else {
    state_->first = next_;
  }
  previous_ = next_ = nullptr;
  detail::release(std::exchange(state_, nullptr));
}

CancelSource::CancelSource() : state_(detail::make_state()) {}

CancelSource::~CancelSource() {
  detail::release(state_);
}

void CancelSource::cancel() {
  detail::CancelState* state = state_;
  if (state->fired) return;
  state->fired = true;
  detail::retain(state);  // a callback may destroy this source
  while (CancelCallback* callback = state->first) {
    const CancelCallback::Function function = callback->function_;
    void* context = callback->context_;
    callback->disarm();
    function(context);
  }
  detail::release(state);
}

bool CancelSource::cancelled() const {
  return state_->fired;
}

void CancelSource::follow(const CancelToken& parent) {
  parent_.arm(parent, [](void* self) { static_cast<CancelSource*>(self)->cancel(); }, this);
}

void CancelSource::reset() {
  parent_.disarm();
  if (state_->references == 1 && !state_->fired) return;
  detail::release(std::exchange(state_, detail::make_state()));
}

}  // namespace penstock::io
