#pragma once

#include <string>

#include "base/clock.h"
#include "director/endpoint_health.h"
#include "director/policy.h"
#include "inference/freshness.h"
#include "inference/plugin.h"

// What Director::explain() shows beside the record of a decision. Each appends the elements of a JSON array,
// separated by commas; the caller writes the brackets.
namespace penstock::director {

// One element for each candidate, and scorer or picker that has something to say of it:
// {"profile","endpoint","scorer" or "picker","text"}.
void append_explanations(std::string& to, const Policy& policy, const SchedulingContext& ctx,
                         const SchedulingResult& scheduled);

// {"endpoint","signal","value","unit","state","age_ms"} of every endpoint and signal; `value` is null where
// it was never observed. With `freshness` (may be nullptr) "influence" and "sent_since" (requests) where they
// count.
void append_signals(std::string& to, const PoolSnapshot& pool, const SignalView& signals,
                    const Freshness* freshness, TimePoint now);

// {"endpoint", …} with the members of EndpointHealth::append_json(), "draining" and "asleep" where they hold.
void append_health(std::string& to, const PoolSnapshot& pool, const EndpointHealth& health, TimePoint now);

}  // namespace penstock::director
