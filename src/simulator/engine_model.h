#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "simulator/engine_stats.h"
#include "simulator/kv_cache.h"
#include "simulator/step_time.h"

namespace penstock::simulator {

// One answer to be generated. `root` seeds the block hashes: sequences share cached prefixes only under
// the same root (adapter and cache salt go into it).
struct SequenceSpec {
  uint64_t tag = 0;  // the caller's own, returned with every token
  std::span<const uint32_t> prompt;
  uint32_t output_tokens = 1;                          // generated unless the context ends before
  FinishReason finish_reason = FinishReason::kLength;  // reported with the last of them
  int adapter = -1;                                    // index from EngineModel::add_adapter, -1: base model
  uint64_t root = 0;
  uint64_t content_seed = 0;  // which words come out, see answer_token()
  uint32_t n = 1;             // of the request, for its histogram
  std::optional<uint32_t> max_tokens;
};

// One generated token. `cached_tokens` of the prompt came from the prefix cache.
struct TokenEvent {
  uint64_t tag = 0;
  uint32_t token = 0;
  uint32_t index = 0;
  uint32_t cached_tokens = 0;
  FinishReason finish = FinishReason::kNone;
  TimePoint at;
};

// A model server's engine without its server: waiting queue, continuous batching with chunked prefill,
// paged KV cache with prefix reuse, preemption and adapter slots, as vLLM's V1 scheduler does it:
//
//   A step has a budget of max_batched_tokens. Running sequences come first, in order: 1 token each for
//   decoding, the rest of the prompt for a prefill, as far as the budget goes. When blocks run out, the
//   last running sequence is preempted: its blocks are freed, it goes to the front of the queue and
//   computes everything again. If nothing was preempted, waiting sequences are admitted in order until
//   the budget, max_sequences or the blocks end (nothing overtakes one that does not fit); one whose
//   adapter would be more than max_adapters in this step is passed over and counts as deferred. All
//   tokens of a step appear at its end. A step takes a day at most, whatever the options say.
//
// Time is only what callers pass in, so the same model runs under a real clock and in a discrete-event
// simulation; equal calls give equal events. Not thread-safe.
class EngineModel {
 public:
  struct Options {
    uint32_t block_size = 16;             // tokens
    uint32_t num_blocks = 26311;          // one is reserved
    uint32_t max_sequences = 256;         // running at once
    uint32_t max_batched_tokens = 2048;   // a step
    uint32_t long_prefill_threshold = 0;  // tokens of one prefill in a step; 0: no own limit
    uint32_t max_model_len = 131072;      // tokens of prompt and answer; capped to what the blocks hold
    uint32_t max_adapters = 4;            // distinct adapters in one step
    uint32_t max_host_adapters = 0;       // adapters kept in host memory; 0: max_adapters
    Duration adapter_load{};              // host memory to GPU slot, lengthens the step
    Duration adapter_cold_load{};         // added when the adapter is not in host memory
    uint32_t max_queued_requests = 0;     // waiting and running sequences; 0: no limit
    bool prefix_caching = true;
    double time_scale = 1.0;  // multiplies every duration
    StepTime step_time{0, 0};

    // Tokens of prompt and answer that the engine really takes.
    uint32_t context() const;
  };

  explicit EngineModel(const Options& options);
  ~EngineModel();
  EngineModel(const EngineModel&) = delete;
  EngineModel& operator=(const EngineModel&) = delete;

  // Makes an adapter known; the index is never reused.
  int add_adapter(std::string name);

  struct Sequence;
  // Queues a sequence that arrives at `now`; nullptr and a count when the queue is full. Call advance(now)
  // before, so that no step in the past is still open, and after, so that an idle engine begins.
  // REQUIRES: 0 < prompt.size() < max_model_len, output_tokens > 0. The pointer is valid until the
  // sequence's last event is returned or abort().
  Sequence* add(const SequenceSpec& spec, TimePoint now);
  // Ends a sequence whose client went away; no further event of it. Slot and blocks are free at once.
  void abort(Sequence* sequence, TimePoint now);
  // True when `count` more sequences would not be rejected.
  bool has_room(uint32_t count) const;
  void count_rejection(uint32_t count) { stats_.rejected_requests += count; }

  // When advance() has something to do: the end of the current step, or the arrival of work that no step
  // has looked at; nothing when idle or paused.
  std::optional<TimePoint> next_event() const;
  // Ends every step due by `now` and begins the next ones, appending the tokens in order of time.
  // `wall_now` stamps the adapter series. Stops after `max_steps` ended steps; next_event() is then due.
  void advance(TimePoint now, WallTime wall_now, std::vector<TokenEvent>& out,
               uint32_t max_steps = UINT32_MAX);

  // Running steps end, no new one begins; sequences wait.
  void set_paused(bool paused) { paused_ = paused; }
  bool paused() const { return paused_; }
  // Multiplies the time of every step begun from now on.
  void set_slow_factor(double factor) { slow_factor_ = factor; }
  double slow_factor() const { return slow_factor_; }
  // Forgets the prefix cache; false while sequences hold blocks.
  bool reset_prefix_cache();

  const Options& options() const { return options_; }
  const EngineStats& stats() const { return stats_; }
  const KvCache& cache() const { return cache_; }
  // Now, not as of the last step.
  uint32_t running() const { return static_cast<uint32_t>(running_.size()); }
  uint32_t waiting() const { return static_cast<uint32_t>(waiting_.size()); }
  std::string_view adapter_name(int adapter) const { return adapters_[static_cast<size_t>(adapter)].name; }
  // In a GPU slot now.
  bool adapter_resident(int adapter) const;

  // The hash root of an adapter (by name and path, empty for the base model) and a cache salt.
  static uint64_t hash_root(std::string_view adapter, std::string_view path, std::string_view cache_salt);

 private:
  struct Adapter {
    std::string name;
    uint32_t running = 0;
    uint32_t waiting = 0;
    uint64_t step = 0;  // last step that had it
    bool on_gpu = false;
    bool in_host = false;
    uint64_t used = 0;  // recency
  };
  struct Scheduled {
    Sequence* sequence;
    uint32_t tokens;
  };

  bool start_step(TimePoint start);
  void finish_step(TimePoint end, std::vector<TokenEvent>& out);
  void schedule_running(uint32_t& budget, StepWork& work, bool& preempted);
  void schedule_waiting(TimePoint start, uint32_t& budget, StepWork& work, Duration& load);
  void schedule(Sequence& sequence, uint32_t tokens, StepWork& work);
  bool grow(Sequence& sequence, uint32_t tokens);
  void preempt(Sequence& sequence);
  bool adapter_fits(int adapter) const;
  Duration use_adapter(int adapter);
  void extend_hashes(Sequence& sequence);
  void finish(Sequence& sequence, FinishReason reason, TimePoint at);
  void retire(Sequence* sequence);
  void update_gauges(WallTime wall_now);
  Sequence* take_sequence();

  Options options_;
  KvCache cache_;
  EngineStats stats_;
  std::vector<Adapter> adapters_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> idle_sequences_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;
  std::vector<Scheduled> batch_;
  bool step_active_ = false;
  TimePoint step_end_{};
  TimePoint work_since_{};  // earliest moment at which an idle engine has work
  uint64_t step_ = 0;
  uint32_t adapters_in_step_ = 0;
  bool adapters_changed_ = true;
  bool paused_ = false;
  double slow_factor_ = 1.0;
};

}  // namespace penstock::simulator
