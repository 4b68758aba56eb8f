#pragma once

#include <optional>
#include <string_view>

namespace penstock::signals {

// Where an engine says whether it sleeps: vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1. The only
// way for versions whose metrics page doesn't have kSleepState.
inline constexpr std::string_view kSleepProbePath = "/is_sleeping";
// An answer is {"is_sleeping":true}, and no longer than this.
inline constexpr size_t kMaxSleepAnswer = 4096;

// The member is_sleeping of a JSON object, the last one of that name; nothing where it is absent or no
// boolean, or this is no object.
std::optional<bool> parse_sleep_answer(std::string_view body);

}  // namespace penstock::signals
