#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "inference/outside.h"
#include "io/loop.h"

namespace penstock::io {
class HttpClient;
class TlsClientContext;
}  // namespace penstock::io

namespace penstock::assembly {

// The plugins' way to services outside over our own HTTP client, one a loop, made with the first call:
// kept-alive connections, at most kConnections to each server. https is verified against the system's
// authorities. When the loops end, calls end as failed and timers at once; a call that begins then, such as a
// plugin's last report, has kLastCalls. Destroyed once the loops have ended.
class OutsideHttp final : public Outside {
 public:
  static constexpr uint32_t kConnections = 256;                    // of a loop, to a server
  static constexpr Duration kLastCalls = std::chrono::seconds(2);  // less than LoopGroup::stop() waits

  explicit OutsideHttp(io::LoopGroup& loops);
  ~OutsideHttp() override;

  Status prepare(const std::string& url) override;
  void post(std::string url, std::string body, Duration deadline, size_t limit, Done done) override;
  void after(Duration pause, std::function<void()> then) override;
  size_t loop() const override;

 private:
  io::HttpClient& client();

  std::mutex tls_mutex_;
  std::shared_ptr<io::TlsClientContext> tls_;             // made with the first https server
  std::vector<std::unique_ptr<io::HttpClient>> clients_;  // by loop; each is made and used on it
};

}  // namespace penstock::assembly
