#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <utility>

#include "inference/endpoint.h"

namespace penstock::director {

// One request's place in the in-flight load of the endpoint it was sent to, and among the requests that no
// scrape has shown yet. Taken in the same step as the
// pick; comes off exactly once, whatever way the request ends: the destructor releases what is left. May
// be released on another thread than the one that reserved; one guard is used by one thread at a time.
// Keeps the endpoint alive.
class LoadGuard {
 public:
  LoadGuard() = default;
  // Reserves one request and `tokens` tokens (cut to what the word holds).
  LoadGuard(std::shared_ptr<const Endpoint> endpoint, uint64_t tokens)
      : endpoint_(std::move(endpoint)),
        tokens_(static_cast<uint32_t>(tokens < kMaxTokens ? tokens : kMaxTokens)) {
    endpoint_->live->load.fetch_add(EndpointLive::pack(1, tokens_), std::memory_order_acq_rel);
    round_ = endpoint_->live->unseen.add();
  }
  LoadGuard(LoadGuard&& other) noexcept
      : endpoint_(std::move(other.endpoint_)),
        tokens_(std::exchange(other.tokens_, 0)),
        round_(other.round_) {}
  LoadGuard& operator=(LoadGuard&& other) noexcept {
    if (this != &other) {
      release();
      endpoint_ = std::move(other.endpoint_);
      tokens_ = std::exchange(other.tokens_, 0);
      round_ = other.round_;
    }
    return *this;
  }
  LoadGuard(const LoadGuard&) = delete;
  LoadGuard& operator=(const LoadGuard&) = delete;
  ~LoadGuard() { release(); }

  // The tokens come off, the request stays. Harmless when repeated.
  void release_tokens() {
    if (endpoint_ == nullptr || tokens_ == 0) return;
    endpoint_->live->load.fetch_sub(std::exchange(tokens_, 0), std::memory_order_acq_rel);
  }
  // Everything comes off. Harmless when repeated. The result: attempts that another thread made fail, for
  // benchmarks.
  uint32_t release() {
    if (endpoint_ == nullptr) return 0;
    endpoint_->live->load.fetch_sub(EndpointLive::pack(1, std::exchange(tokens_, 0)),
                                    std::memory_order_acq_rel);
    const uint32_t failed = endpoint_->live->unseen.remove(round_);
    endpoint_.reset();
    return failed;
  }
  bool held() const { return endpoint_ != nullptr; }
  uint64_t tokens() const { return tokens_; }
  const std::shared_ptr<const Endpoint>& endpoint() const { return endpoint_; }

 private:
  // A 2^20th of the word's token range, so that all requests together cannot overflow it.
  static constexpr uint64_t kMaxTokens = EndpointLive::kTokenMask >> 20U;

  std::shared_ptr<const Endpoint> endpoint_;
  uint32_t tokens_ = 0;
  UnseenRequests::Round round_ = 0;
};

}  // namespace penstock::director
