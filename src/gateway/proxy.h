#pragma once

#include "gateway/core.h"
#include "io/http_server.h"

namespace penstock::gateway {

// Serves one exchange of a listener from its first byte to its last: identity, route, decision, forwarding
// with retries, the answer, and the accounts. States, in order: admitted → identified → routed →
// [body read → decided → attempts…] → answering → ended; every way out goes through Exchange::end(), so
// counters return to where they were. A client that leaves fires the exchange's token, which ends every
// wait and closes the engine's connection.
class Proxy final : public io::HttpHandler {
 public:
  Proxy(std::shared_ptr<ListenerState> listener, Core& core, std::vector<std::unique_ptr<LoopPart>>& parts)
      : listener_(std::move(listener)), core_(core), parts_(parts) {}
  io::Task<void> handle(io::HttpExchange& exchange) override;

 private:
  std::shared_ptr<ListenerState> listener_;
  Core& core_;
  std::vector<std::unique_ptr<LoopPart>>& parts_;  // by loop, each made on its loop
};

}  // namespace penstock::gateway
