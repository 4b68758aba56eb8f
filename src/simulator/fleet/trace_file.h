#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "simulator/fleet/workload.h"

namespace penstock::simulator {

// Limits of a trace file.
inline constexpr size_t kMaxTraceBytes = size_t{1} << 30U;
inline constexpr size_t kMaxTraceRequests = 2'000'000;
inline constexpr size_t kMaxTracePieces = 100'000'000;
inline constexpr int64_t kMaxTraceTokens = 1 << 24;  // of one prompt or answer
inline constexpr double kMaxTraceMillis = 366.0 * 86400000.0;

// A trace as Mooncake publishes them (FAST'25): one JSON object a line,
//   {"timestamp": ms since the start, "input_length": tokens, "output_length": tokens, "hash_ids":
//   [integers]}
// where each id names a text of 512 tokens, the last one what is left; equal ids are equal texts. Other
// members are passed over, empty lines too; lines need not be in order of time. An answer without tokens gets
// one.
//
// `spread`: requests with equal timestamps come evenly spaced until the next timestamp (published traces are
// rounded to batches of seconds); otherwise all at once.
//
// Errors: "<source>:<line>: <member>: <what is wrong>".
Result<Workload> parse_trace(std::string_view text, std::string_view source, bool spread);
// The same from a file; the workload is named after it, without its ending. Errors: config::read_file()'s,
// too.
Result<Workload> read_trace(const std::string& path, bool spread);

}  // namespace penstock::simulator
