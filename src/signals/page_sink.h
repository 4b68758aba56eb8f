#pragma once

#include <memory>
#include <string_view>

#include "base/clock.h"
#include "inference/plugin.h"

namespace penstock::signals {

// Gets whole pages that were fetched from endpoints, beyond what becomes signals. Called from any loop, for
// one endpoint by one at a time; must not block.
class PageSink {
 public:
  virtual ~PageSink() = default;
  virtual void page(const Endpoint& endpoint, std::string_view body, TimePoint observed_at) = 0;
  // The endpoint left, or moved to another address: what its pages said is void.
  virtual void gone(EndpointSlot slot) = 0;
};

// An extractor of a data source that wants whole pages. The sink outlives the policy it came with: a scrape
// may be on its way.
class PageExtractor : public virtual Plugin {
 public:
  virtual std::shared_ptr<PageSink> sink() const = 0;
};

}  // namespace penstock::signals
