#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/random.h"
#include "director/body_budget.h"
#include "director/director.h"
#include "director/observer.h"
#include "director/published.h"
#include "director/wall_follower.h"
#include "extproc/answers.h"
#include "extproc/credits.h"
#include "extproc/door.h"
#include "extproc/pool_choice.h"
#include "extproc/wire.h"
#include "protocol/parser.h"

namespace penstock::extproc {

// The families of the ext-proc door. Thread-safe.
class DoorMetrics {
 public:
  DoorMetrics(telemetry::MetricRegistry& registry, bool stream_metrics);

  std::array<telemetry::Counter*, kBodyModes> streams;  // by request body mode
  telemetry::Family<telemetry::Counter>& ends;          // reason
  telemetry::Counter& ends_ok;
  telemetry::Counter& ends_left;
  telemetry::Family<telemetry::Counter>& immediate;      // code, reason
  std::array<telemetry::Counter*, 2> pieces;             // by Answers::Side
  telemetry::Family<telemetry::Counter>& local_replies;  // status
  telemetry::Family<telemetry::Counter>& unparsed;       // why
  telemetry::Counter& unparsed_mode;
  telemetry::Counter& unparsed_partial;
  telemetry::Counter& served_elsewhere;
  telemetry::Counter& credits_expired;
  telemetry::Family<telemetry::Counter>& unassigned;  // reason
  // The reference's, null unless asked for.
  telemetry::Gauge* inflight = nullptr;
  telemetry::Histogram* duration = nullptr;
  telemetry::Family<telemetry::Counter>* codes = nullptr;

 private:
  telemetry::Family<telemetry::Counter>& streams_;
  telemetry::Family<telemetry::Counter>& pieces_;
};

// The pools of a door, and by what names streams mean them. Never changed once it is published.
struct ServedPools {
  PoolChoice names;
  std::vector<PoolHandle> pools;  // as in `names`
};

// Shared by all loops.
struct Core {
  Core(telemetry::MetricRegistry& registry, const Clock& the_clock, director::AccessLog* log,
       DoorOptions opts)
      : clock(the_clock),
        access_log(log),
        options(opts),
        metrics(registry, opts.stream_metrics),
        bodies(opts.buffered_bytes) {}

  const Clock& clock;
  director::AccessLog* access_log;
  DoorOptions options;
  DoorMetrics metrics;
  director::Published<ServedPools> pools;
  director::BodyBudget bodies;
  std::atomic<int64_t> open{0};
  std::atomic<int64_t> undecided{0};
  std::atomic<int64_t> active{0};  // requests whose accounts are open
  std::atomic<int64_t> credits{0};
  std::atomic<uint64_t> total{0};
  std::atomic<bool> stopping{false};
};

// A growing piece of memory, with the padding that parsers read ahead in.
class BodyBuffer {
 public:
  void clear() { size_ = 0; }
  size_t size() const { return size_; }
  void reserve(size_t bytes) {
    if (bytes + protocol::kBodyPadding > capacity_) grow(bytes);
  }
  void append(std::string_view bytes) {
    if (bytes.empty()) return;
    reserve(size_ + bytes.size());
    std::memcpy(data_.get() + size_, bytes.data(), bytes.size());
    size_ += bytes.size();
  }
  protocol::PaddedBody padded() {
    reserve(size_);
    std::memset(data_.get() + size_, 0, protocol::kBodyPadding);
    return {data_.get(), size_};
  }
  // Gives memory beyond `bytes` back.
  void trim(size_t bytes) {
    size_ = 0;
    if (capacity_ <= bytes) return;
    data_.reset();
    capacity_ = 0;
  }

 private:
  void grow(size_t bytes);
  std::unique_ptr<char[]> data_;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

// What a stream needs until its request is answered. Lent by the loop, so that a stream that waits for its
// answer takes little memory.
struct Deciding {
  Arena arena;
  BodyBuffer body;
  std::string header_bytes;  // what `fields` point into
  std::vector<HeaderField> fields;
  std::vector<HeaderField> set;
  std::vector<std::string_view> remove;
  std::string subset_text;  // what `subset` points into
  std::vector<director::SubsetEntry> subset;
  std::string error_body;
  std::array<char, 36> made_id{};
  std::array<char, 24> length_digits{};
};

struct LoopPart;

// One pool on one loop. Not thread-safe.
struct PoolPart {
  PoolPart(LoopPart& loop_part, director::Pool& the_pool, Duration freshness_budget, io::Loop* the_loop,
           std::unique_ptr<director::PictureSource> pictures);

  LoopPart& part;
  director::Pool& pool;
  director::Director director;
  Credits credits;
  size_t streams = 0;    // that are open
  bool leaving = false;  // ends with the last of them
};

// One pool as all loops share it.
struct ServedPool {
  ServedPool(DoorPool the_pool, size_t loops) : pool(the_pool), parts(loops), loops_to_leave(loops) {}

  const DoorPool pool;
  std::vector<std::unique_ptr<PoolPart>> parts;  // by loop: made, used and destroyed on it
  std::atomic<size_t> loops_to_leave;
  uint64_t collector = 0;  // in the pool's own metrics
};

// One loop's part of the door. Not thread-safe.
struct LoopPart {
  LoopPart(Core& the_core, io::Loop* the_loop, size_t loop_index);

  // A list of objects for the next stream.
  template <typename T>
  struct Shelf {
    static constexpr size_t kKept = 64;
    std::vector<std::unique_ptr<T>> free;
    std::unique_ptr<T> take() {
      if (free.empty()) return std::make_unique<T>();
      std::unique_ptr<T> object = std::move(free.back());
      free.pop_back();
      return object;
    }
    void give_back(std::unique_ptr<T> object) {
      if (free.size() < kKept) free.push_back(std::move(object));
    }
  };
  struct Watching {
    director::Request request;
    director::Observer observer;
  };

  std::unique_ptr<Deciding> take_deciding() {
    std::unique_ptr<Deciding> object = deciding.take();
    warm_bytes -= warm_of(*object);
    return object;
  }
  void give_back(std::unique_ptr<Deciding> object);
  void release_idle_memory();
  static size_t warm_of(const Deciding& object) { return object.arena.held_bytes(); }

  Core& core;
  io::Loop* loop;
  size_t index;
  Random random;
  director::WallFollower wall;
  director::PublishedReader<ServedPools> pools;
  Shelf<Deciding> deciding;
  Shelf<Watching> watching;
  Shelf<Answers> answers;
  size_t warm_bytes = 0;  // of arenas on the shelf
  // Scratch of one message.
  std::vector<HeaderField> fields;
  std::vector<std::string_view> pieces;
  std::vector<HeaderEdits::Edit> edits;
  std::vector<HeaderField> set;
  std::vector<std::string_view> remove;
  std::vector<Answers::Number> numbers;
};

}  // namespace penstock::extproc
