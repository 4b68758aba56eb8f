#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/arena.h"
#include "base/clock.h"
#include "inference/decision.h"

namespace penstock::director {

// How a request ended, as the decision log and the access log tell it.
struct Outcome {
  int status = 0;                // sent to the client; 0: none
  std::string_view reason = "";  // a literal: "ok", "client_disconnect", "engine_error", …
  uint32_t attempts = 0;         // sent to an endpoint
  uint64_t prompt_tokens = 0;    // as the engine counted
  uint64_t cached_tokens = 0;
  uint64_t output_tokens = 0;
  TimePoint first_token_at = kNever;
  TimePoint ended_at = kNever;
};

// The last decisions of one pool for /debug/decisions: compact copies in a ring per loop, so a writer
// meets nobody but a debugging reader at its lock. Memory is reused; an entry takes about 1.3 KiB. Prompt
// text is never in it. Thread-safe; begin() and finish() of one shard are called from its loop.
class DecisionLog {
 public:
  struct Options {
    size_t shards = 1;      // loops
    size_t capacity = 512;  // entries in all
  };
  // Names an entry as long as it has not been overwritten.
  struct Handle {
    uint32_t shard = 0;
    uint64_t sequence = 0;  // 0: none
  };

  explicit DecisionLog(const Options& options);

  // Copies the record. `error` is the decision's failure, empty when an endpoint was chosen.
  Handle begin(size_t shard, const DecisionRecord& record, std::string_view error);
  // Adds how it ended; nothing happens when the entry is gone.
  void finish(Handle handle, const Outcome& outcome);

  // JSON object of the newest entry with this request id.
  std::optional<std::string> find_json(std::string_view request_id) const;
  // JSON array, newest first, at most `limit` entries, without the candidates.
  std::string list_json(size_t limit) const;

 private:
  // Readers hold a loop's lock for a look at this many entries or the copy of one; they order and render
  // without it.
  static constexpr size_t kSurveyBatch = 256;
  struct Found {
    TimePoint arrived_at;
    Handle handle;
  };
  struct Entry {
    uint64_t sequence = 0;
    Arena arena{2048};
    DecisionRecord record;
    std::string_view error;
    std::optional<Outcome> outcome;
  };
  // Names of plugins, profiles and the pool are the same in one decision after the other: kept once, for as
  // long as the log.
  class Names {
   public:
    void begin() { next_ = 0; }
    // The text as it is kept; when there are too many, a copy in `arena`.
    std::string_view keep(std::string_view name, Arena& arena) {
      std::string_view& latest = latest_[next_++ % latest_.size()];
      if (latest == name) return latest;
      const std::string* known = find(name);
      if (known == nullptr) return arena.copy(name);
      return latest = *known;
    }

   private:
    static constexpr size_t kMaxNames = 1024;
    const std::string* find(std::string_view name);

    std::array<std::string_view, 32> latest_;  // by their place in a record
    size_t next_ = 0;
    std::set<std::string, std::less<>> all_;
  };
  struct Shard {
    mutable std::mutex mutex;
    Names names;
    uint64_t next_sequence = 1;
    std::vector<std::unique_ptr<Entry>> ring;  // filled on first use
    Entry* at(uint64_t number, size_t per_shard) {
      const size_t index = number % per_shard;
      return index < ring.size() ? ring[index].get() : nullptr;
    }
  };

  // The entries (of one request), newest first.
  std::vector<Found> survey(std::optional<std::string_view> request_id) const;
  // False, and nothing is appended, when the entry is gone. `arena` is for the copy.
  bool append_json(std::string& out, Handle handle, bool detail, Arena& arena) const;

  size_t per_shard_;
  std::vector<std::unique_ptr<Shard>> shards_;
};

// A deep copy whose memory is `arena` alone.
DecisionRecord copy_record(const DecisionRecord& record, Arena& arena);

// Appends the record as one JSON object; times are milliseconds since arrival. With `detail`, the filters,
// scorers and candidates of each profile too.
void append_record_json(std::string& out, const DecisionRecord& record, std::string_view error,
                        const std::optional<Outcome>& outcome, bool detail);

}  // namespace penstock::director
