#pragma once

// What tests of the fleet simulator share.

#include <gtest/gtest.h>

#include <string>

#include "base/source_path_testing.h"
#include "simulator/fleet/fleet.h"
#include "simulator/fleet/trace_file.h"

namespace penstock::simulator {

// Tokens of a block in replays of block ids; what a block holds changes no hit rate, and short ones are
// quick. Prefix producers make theirs no shorter than kPrefixBlock.
inline constexpr uint32_t kTestBlock = 16;
inline constexpr uint32_t kPrefixBlock = 64;

// The workload with every piece one block long, a last token of its own behind each prompt (so that all
// blocks of a prompt can be hit) and answers of one token: what a replay of block ids with instant service
// sees.
inline Workload as_blocks(const Workload& from, uint32_t block = kTestBlock) {
  Workload out;
  out.name = from.name;
  for (const FleetRequest& request : from.requests) {
    FleetRequest copy;
    copy.at = request.at;
    copy.output_tokens = 1;
    out.requests.push_back(copy);
    for (uint32_t i = 0; i < request.pieces; ++i)
      out.add_piece({from.pieces[request.first_piece + i].id, block});
    out.add_piece({0xF0000000U, 1});
  }
  return out;
}

// Engines of `blocks` blocks that take no time.
inline FleetOptions instant_fleet(uint32_t engines, uint32_t blocks, uint32_t block = kTestBlock) {
  FleetOptions options;
  options.engines = engines;
  options.engine.block_size = block;
  options.engine.num_blocks = blocks + 2;  // the reserved one, and one for the prompt's last token
  options.engine.max_batched_tokens = 1U << 20U;
  options.engine.max_model_len = 1U << 24U;
  options.sample_interval = std::chrono::seconds(60);
  options.scrape_interval = std::chrono::seconds(1);
  return options;
}

// Blocks hit over blocks of all prompts. REQUIRES: the workload comes from as_blocks().
inline double block_hit_ratio(const FleetReport& report, const Workload& workload,
                              uint32_t block = kTestBlock) {
  const double blocks = static_cast<double>(workload.pieces.size() - workload.requests.size());
  return static_cast<double>(report.cached_tokens) / block / blocks;
}

// Of one LRU cache of `blocks` blocks for everybody.
inline double shared_lru_hit_ratio(const Workload& workload, uint32_t blocks) {
  const auto report = run_fleet(instant_fleet(1, blocks), workload, *builtin_policy("random", 0));
  EXPECT_TRUE(report.ok());
  return report.ok() ? block_hit_ratio(*report, workload) : 0;
}

inline Workload trace_of_vectors(std::string_view name, bool spread = false) {
  auto trace = read_trace(source_path("tests/vectors/traces/") + std::string(name), spread);
  EXPECT_TRUE(trace.ok()) << trace.error().message;
  return trace.ok() ? std::move(trace).value() : Workload{};
}

}  // namespace penstock::simulator
