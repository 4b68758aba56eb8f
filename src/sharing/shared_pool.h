#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "inference/endpoint.h"
#include "inference/shared_prefixes.h"
#include "kvindex/insert_queue.h"
#include "sharing/metrics.h"
#include "sharing/peers.h"
#include "sharing/records.h"
#include "sharing/resp.h"
#include "sharing/store_connection.h"

namespace penstock::sharing {

// One pool's part of the shared state: what it tells and what it was told. entered() comes from the loops,
// everything else from the thread of Replicas or is serialised with it.
class SharedPool final : public PrefixOutlet {
 public:
  using Members = std::function<std::shared_ptr<const PoolSnapshot>()>;
  struct Options {
    std::string ns;
    std::string name;
    std::string field;         // of this replica, peer_field()
    uint64_t incarnation = 0;  // of this process's pool: another one each time it joins
    uint64_t hashing = 0;      // fingerprint
    Duration staleness{};
    Duration heartbeat{};  // a record is written so often though nothing changed
    bool load = true;
    bool prefixes = true;
    size_t stream_length = 4096;
    size_t loops = 1;
  };
  static Result<std::shared_ptr<SharedPool>> create(Options options, Members members, Metrics& metrics);

  void entered(std::string_view producer, const Endpoint& endpoint, uint32_t block_size_tokens,
               std::span<const uint64_t> hashes) override;

  // Who learns from now on; by name, as the others' producers are called. Any thread.
  void set_producers(std::vector<std::weak_ptr<const SharedPrefixes>> producers);
  // Members are not asked for any more, and nobody learns. Any thread but a learner's. REQUIRES: the first
  // call comes before Replicas ends.
  void leave();
  bool left() const { return left_.load(std::memory_order_acquire); }

  // What one exchange says for this pool and what its replies are.
  enum class Expected : uint8_t { kWritten, kLoads, kBatch, kBatches, kAny };
  struct Question {
    Expected expected;
    uint32_t prompts = 0;  // of kBatch
  };
  // Appends the commands that are due.
  void ask(std::string& commands, std::vector<Question>& questions, const StoreClock& clock, TimePoint now);
  // The replies, in order. A failure of the store is returned, the first one.
  Status take(std::span<const Question> questions, std::span<const RespReply> replies,
              const StoreClock& clock);
  // The exchange came to nothing.
  void lost(std::span<const Question> questions);
  // Another connection: nothing is known of what the store holds. What is in the way of reading the stream is
  // skipped with `skip`.
  void reconnected(const StoreClock& clock, bool skip);
  // Lets go of what is too old, so that it is gone before `until`.
  void fade(TimePoint now, TimePoint until);
  // There is more to be read or written at once.
  bool behind() const { return behind_; }
  // The last exchange had the store take something.
  bool wrote() const { return wrote_; }
  void append_farewell(std::string& commands, size_t& replies) const;

  // Its series are no longer there, and do not come again. REQUIRES: it is left, and no other pool of its
  // name is there.
  void remove_series();

  // Members of a JSON object.
  void append_json(std::string& out, TimePoint now) const;
  const std::string& ns() const { return options_.ns; }
  const std::string& name() const { return options_.name; }

 private:
  SharedPool(Options options, Members members, Metrics& metrics);
  struct Place {
    std::shared_ptr<const Endpoint> endpoint;
    size_t producer = 0;  // in producers_
  };

  void refresh_members();
  void ask_load(std::string& commands, std::vector<Question>& questions, const StoreClock& clock,
                TimePoint now);
  void ask_prefixes(std::string& commands, std::vector<Question>& questions);
  void drain_queues(std::string& commands, std::vector<Question>& questions);
  void spread_load();
  void show_peers(TimePoint now);
  void take_batches(const RespReply& reply);
  void take_batch(std::string_view bytes);
  void count(std::string_view event, uint64_t n = 1);  // REQUIRES: mutex_ is held
  void rebuild_places();

  const Options options_;
  const std::string load_key_;
  const std::string prefix_key_;
  const std::string label_;  // of the metrics
  Metrics& metrics_;
  std::vector<std::unique_ptr<kvindex::InsertQueue>> queues_;  // one for each loop
  std::atomic<bool> left_{false};
  std::atomic<uint64_t> dropped_{0};  // by the loops, and not counted yet

  mutable std::mutex mutex_;  // everything below
  Members members_;
  std::vector<std::weak_ptr<const SharedPrefixes>> producers_;
  std::shared_ptr<const PoolSnapshot> snapshot_;
  std::vector<uint64_t> keys_;  // by position in the snapshot
  std::unordered_map<uint64_t, Place> places_;
  bool places_old_ = true;

  // What is told.
  std::vector<SharedLoad> loads_;    // scratch
  std::vector<SharedLoad> written_;  // last
  TimePoint written_at_ = kNever;    // kNever: the store may not have it
  TimePoint kept_at_ = kNever;       // keys' life was extended
  uint64_t sequence_ = 0;
  uint64_t batches_ = 0;
  std::vector<uint64_t> hashes_;  // scratch
  std::string batch_;             // scratch

  // What was told.
  Peers peers_;
  std::unordered_map<uint64_t, Peers::Sum> sums_;
  size_t strangers_ = 0;                    // endpoints with load that are no members
  std::string read_to_ = "0-0";             // of the stream
  std::map<uint64_t, uint64_t> sequences_;  // of batches, by sender
  std::map<std::string, PeerState> shown_;  // replicas by id, as metrics and log have them
  bool behind_ = false;
  bool wrote_ = false;
};

}  // namespace penstock::sharing
