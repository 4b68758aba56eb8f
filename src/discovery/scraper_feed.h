#pragma once

#include "discovery/registry.h"
#include "signals/scraper.h"

namespace penstock::discovery {

// Keeps a scraper in step with its pool: `pool.add_listener(&feed)`.
class ScraperFeed final : public EndpointListener {
 public:
  explicit ScraperFeed(signals::Scraper& scraper) : scraper_(scraper) {}
  void endpoint_added(const std::shared_ptr<const Endpoint>& endpoint) override { scraper_.add(endpoint); }
  void endpoint_updated(const std::shared_ptr<const Endpoint>& before,
                        const std::shared_ptr<const Endpoint>& after) override {
    scraper_.update(before, after);
  }
  void endpoint_removed(const std::shared_ptr<const Endpoint>& endpoint) override {
    scraper_.remove(*endpoint);
  }

 private:
  signals::Scraper& scraper_;
};

}  // namespace penstock::discovery
