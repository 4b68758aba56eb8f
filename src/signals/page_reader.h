#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "inference/signals.h"
#include "signals/engine_table.h"
#include "signals/exposition_scanner.h"
#include "signals/signal_table.h"

namespace penstock::signals {

// What one page said, in terms of one engine's mapping.
struct Reading {
  enum class Found : uint8_t {
    kValue,
    kNotANumber,   // exported, but NaN, infinite or not an integer where one is needed: nothing is known
    kMissing,      // the mapping names it, the page doesn't have it
    kNotProvided,  // the mapping has no such signal
  };
  struct Value {
    Found found = Found::kNotProvided;
    double value = 0;
    const MetricSpec* by = nullptr;  // the name that matched; null when an info label did
  };
  const EngineMapping* engine = nullptr;
  std::array<Value, kSignalCount> signals{};

  bool lora_provided = false;
  bool lora_found = false;
  int32_t max_adapters = -1;  // -1: the series doesn't say
  // Hashes of adapter names, ascending.
  std::vector<uint64_t> running;
  std::vector<uint64_t> waiting;
  uint32_t dropped_adapters = 0;  // beyond kMaxAdapters

  // What kSleepState says, whatever the engine: true when none of its series is awake; nothing: not exported.
  std::optional<bool> asleep;

  // What the reference would report as extraction errors, one text each: missing names other than LoRA,
  // labels that are no numbers.
  std::vector<std::string> errors;
  ExpositionScanner::Stats stats;

  const Value& at(Signal s) const { return signals[static_cast<size_t>(s)]; }
};

// How vLLM tells of its sleep mode: the series of sleep_state="awake" is 1 while it serves, 0 while it sleeps
// (level 1 and 2).
inline constexpr std::string_view kSleepState = "vllm:engine_sleep_state";

// An EngineTable with the name sets its scans use. Immutable, shared by all readers.
class CompiledEngines {
 public:
  explicit CompiledEngines(EngineTable table);
  const EngineTable& table() const { return table_; }

 private:
  friend class PageReader;
  enum class Role : uint8_t { kScalar, kLora, kLoraResident, kCacheInfo, kSleep };
  struct Entry {
    const EngineMapping* mapping;
    const MetricSpec* spec;
    Role role;
    Signal signal;  // kScalar
  };
  // What one kind of scan looks for: one mapping, or all of them while the engine is unknown.
  struct Plan {
    explicit Plan(std::vector<Entry> all);
    std::vector<Entry> entries;
    NameSet names;
    std::vector<std::vector<uint32_t>> entries_of;  // by name index
  };
  static void collect(const EngineMapping& mapping, std::vector<Entry>& out);

  EngineTable table_;
  MetricSpec awake_;                          // of no mapping: every plan looks for it
  std::vector<std::unique_ptr<Plan>> plans_;  // one per mapping, the last one for all
};

// Reads one page after the other, keeping its memory. Series are chosen as SeriesMode says; see
// engine_table.h. Owned by one scrape at a time.
class PageReader final : private SampleSink {
 public:
  // `engines` outlives the reader.
  explicit PageReader(const CompiledEngines& engines, size_t max_page_bytes = 8UL * 1024 * 1024);

  PageReader(const PageReader&) = delete;
  PageReader& operator=(const PageReader&) = delete;

  // Begins a page. `mapping` null: the engine is chosen by what the page exports - the default mapping when
  // one of its required names is there, else the mapping most of whose required names are there.
  void begin(const EngineMapping* mapping);
  // False once the page is too large.
  bool feed(std::string_view piece) { return scanner_->feed(piece); }
  // Ends the page. The result lives until the next begin().
  const Reading& finish();

 private:
  struct Best {
    bool seen = false;
    double value = 0;
    int64_t timestamp_ms = 0;
  };
  struct RankBest {
    uint64_t rank = 0;  // hash of the label's value
    Best best;
  };
  struct Slot {
    Best best;
    std::vector<RankBest> ranks;  // strict mode
    // kLora: labels of the best series; kCacheInfo: block size and count.
    std::string first;
    std::string second;
    std::string third;
    std::vector<uint64_t> resident;  // kLoraResident
  };
  static constexpr size_t kMaxRanks = 64;

  void sample(const Sample& sample) override;
  void take(const CompiledEngines::Entry& entry, Slot& slot, const Sample& sample);
  const EngineMapping& detect() const;
  void read_scalar(Signal signal, const EngineMapping& mapping);
  void read_cache_info(const EngineMapping& mapping);
  void read_lora(const EngineMapping& mapping);
  void read_sleep();
  const Slot* slot_of(const MetricSpec& spec) const;
  double combine(const Slot& slot, Signal signal) const;

  const CompiledEngines& engines_;
  const size_t max_page_bytes_;
  const CompiledEngines::Plan* plan_ = nullptr;
  const EngineMapping* mapping_ = nullptr;
  std::unique_ptr<ExpositionScanner> scanner_;
  std::vector<Slot> slots_;
  Reading reading_;
};

// Adapters remembered after they left the engine's lists (strict mode): it lists only those with requests,
// but a loaded idle one still needs no loading.
class AdapterMemory {
 public:
  // Adds what was seen up to `keep` before `now` to `running`, sorted; zero `keep` does nothing.
  void apply(std::vector<uint64_t>& running, Duration keep, TimePoint now);
  void clear() { seen_.clear(); }

 private:
  struct Seen {
    uint64_t name_hash;
    TimePoint at;
  };
  std::vector<Seen> seen_;  // at most kMaxAdapters
};

// Puts a reading into a row. A missing signal keeps its last value and time but reads as name_missing; one
// that is not a number keeps everything and so grows stale. A missing LoRA family means that no adapter is
// loaded. Returns the required signals that are missing, one bit (1 << Signal) each.
uint32_t apply_reading(const Reading& reading, SignalRow& row, TimePoint observed_at);
// Every signal of the row reads as endpoint_down; values and times stay.
void mark_down(SignalRow& row);

}  // namespace penstock::signals
