#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/clock.h"
#include "config/sticky_responses.h"
#include "director/request_metrics.h"
#include "inference/endpoint.h"

namespace penstock::director {

// Which endpoint of a pool holds which stored response (`POST /v1/responses`): an engine keeps it in its own
// memory, so `previous_response_id`, and GET, DELETE and cancel of the response, must go where it was made.
// Learned from the ids in the answers; this process's own, so another gateway and a later start know nothing
// of it. Bounded: the least recently used response is forgotten first, and each one that nobody has asked
// for within `expiry`. An id is kept as its seeded 128-bit hash, an endpoint as the hash of its id, so that
// one which comes back under its name is found again. Thread-safe: one lock, held for a look-up; only
// requests of the Responses API come here.
class ResponseHolders {
 public:
  // `seed`: nobody should know it who chooses ids.
  ResponseHolders(std::string pool, RequestMetrics& metrics, uint64_t seed);

  // Takes effect at once. `entries` of 0: nothing is learned, and what was is forgotten.
  void configure(const config::StickyResponsesSettings& settings);
  bool on() const;

  // `endpoint` has answered with this response. Ids longer than kMaxIdBytes are not learned.
  void note(std::string_view id, const Endpoint& endpoint, TimePoint now);

  enum class Known : uint8_t {
    kHere,     // `candidate` of the snapshot holds it
    kGone,     // the endpoint that did is not in the snapshot
    kUnknown,  // never seen here, forgotten, or made up
  };
  struct Found {
    Known known = Known::kUnknown;
    Candidate candidate = 0;
  };
  // `counts`: the look-up is a request's, is counted and keeps the response from being forgotten.
  Found find(std::string_view id, const PoolSnapshot& pool, TimePoint now, bool counts = true);
  bool has(std::string_view id) const;
  // The response was deleted.
  void forget(std::string_view id);

  size_t size() const;

  static constexpr size_t kMaxIdBytes = 512;

 private:
  struct Key {
    uint64_t high = 0;
    uint64_t low = 0;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const { return key.low; }
  };
  struct Entry {
    Key key;
    uint64_t endpoint = 0;
    TimePoint used_at;
  };
  Key key_of(std::string_view id) const;
  // REQUIRES: mutex_ is held.
  void drop_oldest(std::string_view why);
  void expire(TimePoint now);

  const std::string pool_;
  RequestMetrics& metrics_;
  const uint64_t seed_;
  mutable std::mutex mutex_;
  config::StickyResponsesSettings settings_;
  std::list<Entry> entries_;  // the most recently used first
  std::unordered_map<Key, std::list<Entry>::iterator, KeyHash> by_id_;
};

}  // namespace penstock::director
