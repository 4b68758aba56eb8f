#include "extproc/credits.h"

#include <algorithm>

namespace penstock::extproc {

Credits::Credits(io::Loop* loop, director::Director& director, const Clock& clock, Duration max_age,
                 std::atomic<int64_t>& total, telemetry::Counter& expired)
    : timer_(loop == nullptr ? nullptr : std::make_unique<io::Timer>(*loop)),
      director_(director),
      clock_(clock),
      max_age_(max_age),
      total_(total),
      expired_(expired) {}

void Credits::add(director::LoadGuard guard) {
  if (!guard.held()) return;
  held_.push_back({std::move(guard), clock_.now()});
  total_.fetch_add(1, std::memory_order_relaxed);
  arm();
}

void Credits::arm() {
  if (timer_ != nullptr && !timer_->armed()) timer_->arm_coarse(kInterval, &Credits::tick, this);
}

void Credits::tick(void* self) {
  auto& credits = *static_cast<Credits*>(self);
  credits.sweep();
  if (!credits.held_.empty()) credits.arm();
}

void Credits::sweep() {
  if (held_.empty()) return;
  const TimePoint now = clock_.now();
  const director::Picture& picture = director_.picture();
  scraped_.clear();
  for (Candidate c = 0; c < picture.pool->endpoints.size(); ++c) {
    const EndpointSlot slot = picture.pool->endpoints[c]->slot;
    if (slot >= scraped_.size()) scraped_.resize(slot + size_t{1}, kNever);
    // The running count is what takes the credit's place.
    scraped_[slot] = picture.signals->at(Signal::kRunningRequests, c).observed_at;
  }
  const size_t before = held_.size();
  std::erase_if(held_, [&](const Credit& credit) {
    const EndpointSlot slot = credit.guard.endpoint()->slot;
    if (slot < scraped_.size() && scraped_[slot] > credit.since) return true;
    if (now - credit.since < max_age_) return false;
    expired_.add();
    return true;
  });
  total_.fetch_sub(static_cast<int64_t>(before - held_.size()), std::memory_order_relaxed);
}

void Credits::clear() {
  total_.fetch_sub(static_cast<int64_t>(held_.size()), std::memory_order_relaxed);
  held_.clear();
  if (timer_ != nullptr) timer_->disarm();
}

}  // namespace penstock::extproc
