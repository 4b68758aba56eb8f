#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "inference/plugin.h"

namespace penstock::scheduling {

// Which endpoint each session is bound to, least recently used first out. At most kMaxSessions; a session is
// known by a 64-bit hash of its id, so what clients send takes no memory beyond that (two sessions with one
// hash share their endpoint). Thread-safe.
class SessionTable {
 public:
  static constexpr size_t kMaxSessions = 65536;
  static constexpr size_t kMaxSwept = 64;

  // Id of the bound endpoint, copied into the arena; empty: none. Expiry is the sweep's business.
  std::string_view find(uint64_t session, Arena& arena) const;
  // Binds, or refreshes the binding, unless the session is bound to another endpoint that was `present`.
  template <typename Present>
  void bind(uint64_t session, std::string_view endpoint_id, TimePoint now, Present&& present);
  // Forgets what was not seen for longer than `ttl`: at most kMaxSwept at a time, so that nobody waits for
  // the lock for long; called again, it goes on until all are gone, and then rests for `interval`.
  void sweep(TimePoint now, Duration ttl, Duration interval);
  size_t size() const;

 private:
  struct Entry {
    uint64_t session;
    std::string endpoint_id;
    TimePoint last_seen;
  };
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // least recently seen first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> index_;
  TimePoint last_sweep_{};
};

// What session-affinity-filter and session-affinity-scorer share: finding the endpoint a request's session
// belongs to, and remembering where it went.
//
// Strategy encoded_endpoint_header keeps no state: the answer carries a header (x-session-token) with the
// base64 of the endpoint's id, and a request that brings it back belongs to that endpoint. The token is not
// authenticated: who knows the ids can choose.
//   Examples: default/pod-a <-> ZGVmYXVsdC9wb2QtYQ==; /pod1 <-> L3BvZDE=.
// Strategy session_id keeps a table from session to endpoint: the session is the first non-empty trimmed
// value of the sources. Unbound: bound to where the request went. Bound to the same: refreshed. Bound to
// another: rebound only when that one was no candidate.
class SessionAffinity {
 public:
  struct Source {
    std::string header;                   // lower-case; empty: an attribute
    std::string attribute;                // data type
    std::optional<std::string> producer;  // of the attribute
  };
  struct Params {
    bool by_session_id = false;
    std::string header = "x-session-token";
    std::string profile;  // whose first target counts; empty: the primary's
    std::vector<Source> sources;
    double ttl_seconds = 300;
    double sweep_seconds = 10;
  };
  static void bind(config::Binder& b, Params& p);
  // Sessions survive a change of policy under the same type and name.
  static std::shared_ptr<SessionTable> make_table(const PluginFactoryContext& context, std::string_view type);

  SessionAffinity(Params params, std::shared_ptr<SessionTable> table);

  void declare(DataDeclaration& declaration) const;
  void bind_slots(const SlotResolver& slots);
  // Id of the endpoint the request belongs to; empty: none.
  std::string_view bound_endpoint(const SchedulingContext& ctx) const;
  void remember(SchedulingContext& ctx, const SchedulingResult& result) const;
  // JSON: how many sessions the table holds; nothing where there is none.
  std::optional<std::string> dump_state() const;
  bool works_on_answers() const { return !params_.by_session_id; }

 private:
  uint64_t session_of(const SchedulingContext& ctx) const;  // 0: none
  DataKey key_of(const Source& source) const;

  Params params_;
  std::shared_ptr<SessionTable> table_;
  std::vector<AttributeSlot> slots_;  // as params_.sources
  Duration ttl_;
  Duration sweep_;
};

template <typename Present>
void SessionTable::bind(uint64_t session, std::string_view endpoint_id, TimePoint now, Present&& present) {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(session);
  if (found == index_.end()) {
    if (entries_.size() >= kMaxSessions) {
      index_.erase(entries_.front().session);
      entries_.pop_front();
    }
    entries_.push_back({session, std::string(endpoint_id), now});
    index_.emplace(session, std::prev(entries_.end()));
    return;
  }
  Entry& entry = *found->second;
  if (entry.endpoint_id != endpoint_id) {
    if (present(std::string_view(entry.endpoint_id))) return;
    entry.endpoint_id = endpoint_id;
  }
  entry.last_seen = now;
  entries_.splice(entries_.end(), entries_, found->second);
}

}  // namespace penstock::scheduling
