#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "simulator/fleet/workload.h"

namespace penstock::simulator {

struct WorkloadKind {
  std::string_view name;
  size_t requests;  // unless another number is asked for
  std::string_view summary;
};
std::vector<WorkloadKind> workload_kinds();

inline constexpr size_t kMaxGeneratedRequests = 1'000'000;

// Draws a workload of a kind, at the kind's own rate; equal seeds give equal workloads. `requests` 0: the
// kind's own number. Errors: no such kind (lists them), too many requests.
Result<Workload> generate_workload(std::string_view kind, size_t requests, uint64_t seed);

// Conversations after the Mooncake FAST'25 traces (mooncake_generator.cc): prompts are chains of 512-token
// blocks, a further turn repeats its predecessor's full blocks and adds to them. What is drawn from where:
// turns of a conversation from the histogram of turn depths, length of the first turn, growth and gap from
// the quantiles of the trace. How close it comes is a test: the hit rate of an unlimited cache within 2
// points of the trace's, that of LRU caches of several sizes within 3.
enum class MooncakeTrace : uint8_t { kConversation, kSynthetic, kToolAgent };
Workload generate_mooncake(MooncakeTrace trace, size_t requests, uint64_t seed);

}  // namespace penstock::simulator
