#include "director/response_holders.h"

#include <iterator>
#include <utility>

#include "base/hash.h"

namespace penstock::director {

ResponseHolders::ResponseHolders(std::string pool, RequestMetrics& metrics, uint64_t seed)
    : pool_(std::move(pool)), metrics_(metrics), seed_(seed) {}

void ResponseHolders::configure(const config::StickyResponsesSettings& settings) {
  const std::lock_guard lock(mutex_);
  settings_ = settings;
  while (entries_.size() > static_cast<size_t>(settings_.entries)) drop_oldest("capacity");
}

bool ResponseHolders::on() const {
  const std::lock_guard lock(mutex_);
  return settings_.entries != 0;
}

ResponseHolders::Key ResponseHolders::key_of(std::string_view id) const {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(id.data(), id.size(), seed_);
  return {hash.high64, hash.low64};
}

void ResponseHolders::drop_oldest(std::string_view why) {
  by_id_.erase(entries_.back().key);
  entries_.pop_back();
  metrics_.responses_forgotten.with({pool_, why}).add();
  metrics_.responses_held.with({pool_}).set(static_cast<double>(entries_.size()));
}

void ResponseHolders::expire(TimePoint now) {
  while (!entries_.empty() && now - entries_.back().used_at >= settings_.expiry) drop_oldest("expired");
}

void ResponseHolders::note(std::string_view id, const Endpoint& endpoint, TimePoint now) {
  if (id.empty() || id.size() > kMaxIdBytes) return;
  const Key key = key_of(id);
  const std::lock_guard lock(mutex_);
  if (settings_.entries == 0) return;
  expire(now);
  const auto [known, is_new] = by_id_.try_emplace(key);
  if (is_new) {
    known->second = entries_.insert(entries_.begin(), Entry{key});
  } else {
    entries_.splice(entries_.begin(), entries_, known->second);
  }
  entries_.front().endpoint = hash_of(endpoint.id);
  entries_.front().used_at = now;
  if (entries_.size() > static_cast<size_t>(settings_.entries)) drop_oldest("capacity");
  metrics_.responses_held.with({pool_}).set(static_cast<double>(entries_.size()));
}

ResponseHolders::Found ResponseHolders::find(std::string_view id, const PoolSnapshot& pool, TimePoint now,
                                             bool counts) {
  std::optional<uint64_t> endpoint;
  {
    const std::lock_guard lock(mutex_);
    expire(now);
    if (const auto known = id.size() > kMaxIdBytes ? by_id_.end() : by_id_.find(key_of(id));
        known != by_id_.end()) {
      Entry& entry = *known->second;
      endpoint = entry.endpoint;
      if (counts) {
        entry.used_at = now;
        entries_.splice(entries_.begin(), entries_, known->second);
      }
    }
  }
  Found found;
  if (endpoint) {
    found.known = Known::kGone;
    for (Candidate c = 0; c < pool.endpoints.size(); ++c) {
      if (hash_of(pool.endpoints[c]->id) != *endpoint) continue;
      found = {Known::kHere, c};
      break;
    }
  }
  if (counts) {
    metrics_.response_lookups
        .with({pool_, found.known == Known::kHere   ? "found"
                      : found.known == Known::kGone ? "gone"
                                                    : "unknown"})
        .add();
  }
  return found;
}

void ResponseHolders::forget(std::string_view id) {
  if (id.empty() || id.size() > kMaxIdBytes) return;
  const Key key = key_of(id);
  const std::lock_guard lock(mutex_);
  const auto known = by_id_.find(key);
  if (known == by_id_.end()) return;
  entries_.erase(known->second);
  by_id_.erase(known);
  metrics_.responses_forgotten.with({pool_, "deleted"}).add();
  metrics_.responses_held.with({pool_}).set(static_cast<double>(entries_.size()));
}

bool ResponseHolders::has(std::string_view id) const {
  if (id.size() > kMaxIdBytes) return false;
  const std::lock_guard lock(mutex_);
  return by_id_.contains(key_of(id));
}

size_t ResponseHolders::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace penstock::director
