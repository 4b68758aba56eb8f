#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "config/params.h"
#include "simulator/engine_model.h"

namespace penstock::simulator {

// Blocks of all engines of one process together; each takes some 45 bytes of memory.
inline constexpr int64_t kMaxBlocksInAll = int64_t{1} << 26U;

// The profile's name that means the two rates.
inline constexpr std::string_view kRates = "rates";

// What `penstock sim engine` and `penstock sim fleet` both take of an engine; the names in bind() are the
// flags'.
struct EngineFlags {
  std::string profile;                       // named step times; empty or kRates: the two rates below
  double prefill_tokens_per_second = 40000;  // 0: prefill takes no time
  double decode_ms = 5;                      // a step
  int64_t block_size = 16;                   // tokens
  int64_t num_blocks = 26311;                // of each engine
  int64_t max_num_seqs = 256;                // running at once
  int64_t max_num_batched_tokens = 8192;     // a step
  int64_t max_model_len = 262144;            // tokens
  int64_t max_loras = 4;                     // distinct adapters in one step
  int64_t max_cpu_loras = 0;                 // adapters in host memory; 0: max_loras
  Duration lora_load_time{};                 // host memory to GPU
  Duration lora_cold_load_time{};            // disk to host memory
  bool no_prefix_caching = false;
};

void bind(config::Binder& b, EngineFlags& flags);
// For a table that has the flags of `engines` engines: fails where they have more than kMaxBlocksInAll.
void check_blocks_in_all(config::Binder& b, const EngineFlags& flags, int64_t engines);
// REQUIRES: flags that bind() found right. Errors: no such profile.
Result<EngineModel::Options> engine_options(const EngineFlags& flags);

}  // namespace penstock::simulator
