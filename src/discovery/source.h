#pragma once

#include <string>
#include <vector>

#include "config/endpoints_file.h"
#include "discovery/registry.h"

namespace penstock::discovery {

// Where a source puts what it knows. Called from one thread at a time, with everything the source knows
// each time. Pool::apply is the usual one.
class EndpointSink {
 public:
  virtual ~EndpointSink() = default;
  virtual void endpoints(std::string_view source, const std::vector<DiscoveredEndpoint>& all) = 0;
};

// Puts a source's endpoints into pools, each of which selects its own, and logs what a pool could not take,
// once as long as it stays the same. The pools outlive it.
class PoolSink final : public EndpointSink {
 public:
  explicit PoolSink(std::vector<Pool*> pools) : pools_(std::move(pools)) {}
  void endpoints(std::string_view source, const std::vector<DiscoveredEndpoint>& all) override;

 private:
  std::vector<Pool*> pools_;
  std::vector<std::string> last_problems_;
};

// An entry of an endpoints file or a --model-server flag as a discovered endpoint.
DiscoveredEndpoint from_entry(const config::EndpointEntry& entry);

}  // namespace penstock::discovery
