#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "discovery/source.h"
#include "io/loop.h"
#include "io/net.h"

namespace penstock::discovery {

struct DnsDiscoveryOptions {
  std::string name;  // a host name; every A and AAAA address of it is an endpoint
  uint16_t port = 0;
  bool tls = false;
  std::string tls_name;  // server name for SNI and verification; "" the host name asked for
  std::string ns = "default";
  std::map<std::string, std::string, std::less<>> labels;
  Duration interval = std::chrono::seconds(30);  // between the end of one look-up and the next
  Duration retry = std::chrono::seconds(1);      // after a failure; doubles up to `interval`
  Duration timeout = std::chrono::seconds(5);
  size_t max_addresses = 1024;  // further ones are left out and logged
};

// The endpoints behind a DNS name, asked for again and again. Each address is the endpoint
// "<namespace>/<address>-<port>" (colons as '-'), so an address that stays keeps its load, signals and cache
// picture. A look-up that fails, or answers with no address, leaves the last good set in place and is logged
// once. Lives on one loop.
class DnsDiscovery {
 public:
  using Resolve = std::function<io::Task<Result<std::vector<io::SocketAddress>>>(
      io::Loop& loop, std::string host, uint16_t port, Duration timeout, io::CancelToken token)>;

  // Loop and sink outlive it. `resolve`: io::resolve, or a test's own.
  DnsDiscovery(DnsDiscoveryOptions options, io::Loop& loop, EndpointSink& sink,
               Resolve resolve = io::resolve);
  ~DnsDiscovery();  // stop()
  DnsDiscovery(const DnsDiscovery&) = delete;
  DnsDiscovery& operator=(const DnsDiscovery&) = delete;

  // Begins to ask; the first answer may take `timeout`. Nothing is known until then. REQUIRES: called once.
  void start();
  // Ends the task and waits for that, up to 10 s. From outside the loop.
  void stop();
  // Asks now (SIGHUP); any thread.
  void refresh();

 private:
  struct State;
  static io::Task<void> run(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// The endpoints of one answer, ordered by address, without repetitions.
std::vector<DiscoveredEndpoint> endpoints_of(const DnsDiscoveryOptions& options,
                                             const std::vector<io::SocketAddress>& addresses);

}  // namespace penstock::discovery
