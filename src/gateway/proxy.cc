#include "gateway/proxy.h"

#include "gateway/exchange.h"

namespace penstock::gateway {

namespace {

// Counts a request as long as it lives, and lends it the loop's memory.
class Admission {
 public:
  Admission(Core& core, ListenerState& listener, LoopPart& part)
      : core_(core), listener_(listener), part_(part), state_(part.take()) {
    core_.active_requests.fetch_add(1, std::memory_order_relaxed);
    core_.requests.fetch_add(1, std::memory_order_relaxed);
    listener_.streams.fetch_add(1, std::memory_order_relaxed);
  }
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;
  ~Admission() {
    part_.give_back(std::move(state_));
    core_.active_requests.fetch_sub(1, std::memory_order_relaxed);
    listener_.streams.fetch_sub(1, std::memory_order_relaxed);
  }
  ExchangeState& state() { return *state_; }

 private:
  Core& core_;
  ListenerState& listener_;
  LoopPart& part_;
  std::unique_ptr<ExchangeState> state_;
};

}  // namespace

io::Task<void> Proxy::handle(io::HttpExchange& http) {
  std::unique_ptr<LoopPart>& part = parts_[http.loop().index()];
  if (part == nullptr) part = std::make_unique<LoopPart>(core_, http.loop());
  Admission admission(core_, *listener_, *part);
  Exchange exchange(core_, *part, *listener_, http, admission.state());
  co_await exchange.run();
}

}  // namespace penstock::gateway
