#pragma once

#include <memory>
#include <string_view>

#include "base/clock.h"
#include "inference/plugin.h"

namespace penstock::signals {

// Gets whole pages that were fetched from endpoints, beyond what becomes signals. Called from any thread, for
// one endpoint by one at a time; must not block.
class PageSink {
 public:
  virtual ~PageSink() = default;
  // The endpoint is scraped from now on: what pages of another one said of its slot is void.
  virtual void attached(const Endpoint& endpoint) = 0;
  // `engine`: whose page it is, named by configuration or label or found from what the page exports; "" of a
  // source whose pages are no engine's.
  virtual void page(const Endpoint& endpoint, std::string_view engine, std::string_view body,
                    TimePoint observed_at) = 0;
  // As many scrapes in a row failed as make an endpoint's signals read endpoint_down.
  virtual void down(EndpointSlot /*slot*/) {}
  // The endpoint left, or moved to another address: what its pages said is void. No page of it comes after.
  virtual void gone(EndpointSlot slot) = 0;
};

// An extractor of a data source that wants whole pages. The sink outlives the policy it came with: a scrape
// may be on its way.
class PageExtractor : public virtual Plugin {
 public:
  virtual std::shared_ptr<PageSink> sink() const = 0;
};

}  // namespace penstock::signals
